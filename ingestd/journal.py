"""The contract of the journal: an append-only, durable, ordered log of records."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from .events import Record
from .store import State

__all__ = ["Append", "Claim", "Cursor", "Extent", "Journal", "Outline", "Start", "size_of", "size_of_all"]

Start = Literal["now", "beginning"]


class Cursor(NamedTuple):
    """The place of a consumer: the position of the last record it has done with.

    `fence` tells the present holder from earlier ones where several daemons share a journal.
    """

    name: str
    position: int
    fence: int = 0
    record: Record | None = None
    """The last record of the step that moves it. Where a journal holds another one in its place by now, the step
    was made of records that are lost, and is refused.
    """
    deferrable: bool = False
    """Whether the step may be undone by a power failure, since all it did is done again then."""


class Claim(NamedTuple):
    """An entry that only the first to ask for it gets, for `ttl` milliseconds."""

    key: str
    """Like a key of the state, and in no way that of one."""
    value: str
    ttl: int


class Append(msgspec.Struct, frozen=True, gc=False):
    """A record with the unit of work that it came of, and its claim.

    Several without claims may be of one unit, each of another `part` of it; see `Journal.begin_part`.
    """

    record: Record
    state: State
    claim: Claim | None = None
    part: int = 0


class Extent(NamedTuple):
    """What of the journal there is, of durable records."""

    first: int
    """The position of the oldest record; where there is none, of the next one to come."""
    last: int
    """The position of the newest record there ever was, 0 if there was none."""
    records: int
    bytes: int
    """What the records hold together, each as `size_of` says."""
    oldest_at: int | None
    """The time of the oldest record in milliseconds; None where there is none."""


class Outline(NamedTuple):
    """A record without what is in it: `at` in milliseconds, `bytes` as `size_of` says."""

    position: int
    at: int
    bytes: int


_BESIDE = 32


def size_of(record: Record) -> int:
    """The bytes a record counts for: its body, and 32 for what is kept beside it."""
    return len(record.body) + _BESIDE


def size_of_all(records: Sequence[Record]) -> int:
    """The bytes that records count for together, each as `size_of` says."""
    return sum([len(record.body) for record in records]) + _BESIDE * len(records)


class Journal(ABC):
    """Positions are consecutive: a record's is one more than that of the record before it."""

    @abstractmethod
    async def append(
        self, records: Sequence[Record], state: State, cursor: Cursor | None = None, claim: Claim | None = None
    ) -> int:
        """Append records and return the position of the last one, or of the cursor, once durable.

        With a deferrable cursor and no records it may return before that: the crash of a process undoes it never,
        a power failure may until another append has followed.

        What `state` wrote becomes durable with them, in the same commit where journal and state live
        together; with `cursor`, the consumer's place moves in it too, and with `claim`, that is made.
        All of it happens or nothing. Raises `Unavailable`, `Claimed`, with a cursor `NotHolder`, and with a state of
        `recall` `Stale`.
        """

    async def begin(
        self, record: Record, state: State, then: Callable[[Exception | None], None], claim: Claim | None = None
    ) -> None:
        """As `append` of one record, for who does not wait: `then` is called once, with what that raised or None.

        It is called in the event loop, before this returns or later, and must not raise. Raises nothing itself. A back
        end that can return before the record is durable overrides it: to wait costs more than much of what an event
        needs.
        """
        try:
            await self.append([record], state, claim=claim)
        except Exception as error:  # noqa: BLE001 - it is told
            then(error)
        else:
            then(None)

    def begin_part(self, state: State) -> int | None:
        """Let a unit of work of the store go on as that of one more event, behind those it has been of.

        What it reads and writes from now on is another part of it, the number of which this returns. `append_each` then
        takes each part as if it was a unit by itself, and a part without a record with the others. None where a unit
        can be of one event only. A back end that can do this overrides it: units cost more than what most events do.
        """
        return None

    async def append_each(self, appends: Sequence[Append]) -> list[Exception | None]:
        """Append records in order, each as if by itself; for each, what that raised, None once it is durable.

        One that cannot be appended keeps the others from nothing, but for those that depend on what its unit wrote;
        and behind one that is `Stale` all others are, so that they keep their order when they come again.
        A back end that can do this at less cost than one after the other overrides it.
        """
        answers = await asyncio.gather(
            *(self.append([each.record], each.state, claim=each.claim) for each in appends), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
        return [answer if isinstance(answer, Exception) else None for answer in answers]

    def recall(self, now: int) -> State | None:
        """A unit of work on what this daemon remembers, to resolve an event at once; None if nothing is remembered.

        For journals whose state is a trip away. The unit's operations never wait, and take effect with `append` only;
        one that cannot be done with what is remembered raises `Stale`. So does `append`, having done nothing, where
        something that the unit has seen is another by now. Then the event is to be resolved with a unit of the store.
        """
        return None

    @abstractmethod
    async def claimed(self, key: str, state: State) -> str | None:
        """What has been claimed under that key, None if nothing is; `state` is that of who asks."""

    @abstractmethod
    async def read(self, after: int, limit: int) -> Sequence[Record]:
        """The next records behind a position, in order, at most `limit` and less of long ones; durable ones only.

        Where the next ones have been removed, it goes on with the oldest record there is.
        """

    @abstractmethod
    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        """Returns when there are records behind that position.

        Raises `NotHolder` once the place of `cursor` is another daemon's, soon after it has become that.
        """

    @abstractmethod
    async def last(self) -> int:
        """The position of the newest durable record, 0 in an empty journal."""

    @abstractmethod
    async def place(self, name: str, start: Start) -> int:
        """See to it that a consumer has a durable place, whoever holds it; returns its position.

        A name never seen before starts as told: behind the present last record, or before the first. No
        place lies before what has been removed.
        """

    @abstractmethod
    async def hold(self, name: str, start: Start) -> Cursor:
        """Become the one holder of a consumer's place, waiting for another daemon to let go of it."""

    @abstractmethod
    async def release(self, cursor: Cursor) -> None:
        """Let go of a place, so that another daemon may go on with it at once."""

    @abstractmethod
    async def cursors(self) -> Sequence[Cursor]:
        """The durable place of every consumer there ever was, by name."""

    @abstractmethod
    async def extent(self) -> Extent:
        """What there is; cheap enough to be asked many times a second."""

    @abstractmethod
    async def outlines(self, after: int, limit: int) -> Sequence[Outline]:
        """Of the records that `read` would return, without reading them."""

    @abstractmethod
    async def trim(self, up_to: int, limit: int) -> int:
        """Remove the oldest records up to a position, durably; returns how many.

        At most `limit`, and no more (but one) than a commit can remove without holding up the others;
        0 means that there are none left up to there. Consumers' places that lie before the last one
        removed move there in the same commit. Raises `Unavailable`.
        """

    @abstractmethod
    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        """Give records, as they were read, another body; returns how many got it, once that is durable.

        For taking out of the journal what must not stay in it: position, type and time remain, and soon
        nobody can read the old bodies from the storage. A record that is not there as it was read (any
        more) is passed over. Raises `Unavailable`.
        """
