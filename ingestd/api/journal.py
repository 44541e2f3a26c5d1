"""The contract of the journal: an append-only, durable, ordered log of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from .events import Record
from .store import State

__all__ = [
    "IDEMPOTENCY_KIND",
    "Append",
    "Cursor",
    "IdempotencyKey",
    "Journal",
    "JournalStats",
    "RecordInfo",
    "Start",
    "size_of",
    "size_of_all",
]

Start = Literal["now", "beginning"]

IDEMPOTENCY_KIND = "message"
"""The kind of all idempotency keys. No state has keys of this kind."""


class Cursor(NamedTuple):
    """The durable progress of a consumer: the position of the last record that it has processed.

    `fence` distinguishes the present holder from earlier ones if several daemons share a journal.
    """

    name: str
    position: int
    fence: int = 0
    record: Record | None = None
    """The last record of the step that moves the cursor.

    If the journal now has another record at that position, the step used lost records, and is refused.
    """
    deferrable: bool = False
    """Whether a power failure may undo the step, because all its work is repeated then."""


class IdempotencyKey(NamedTuple):
    """An entry that only the first append with its key makes. It stays for `ttl` milliseconds."""

    key: str
    """A state key of the kind `IDEMPOTENCY_KIND`."""
    value: str
    ttl: int


class Append(msgspec.Struct, frozen=True, gc=False):
    """The transaction of one event, with its record, if there is one, and the key of its message."""

    state: State
    record: Record | None = None
    idempotency_key: IdempotencyKey | None = None


class JournalStats(NamedTuple):
    """The extent of the journal, counting durable records."""

    first: int
    """The position of the oldest record; in an empty journal, the position of the next record."""
    last: int
    """The position of the newest record ever appended, or 0 if there was none."""
    records: int
    bytes: int
    """The size of all records, as `size_of` counts it."""
    oldest_at: int | None
    """The time of the oldest record in milliseconds, or None if there are no records."""


class RecordInfo(NamedTuple):
    """A record without its content: `at` in milliseconds, `bytes` as `size_of` counts them."""

    position: int
    at: int
    bytes: int


_BESIDE = 32


def size_of(record: Record) -> int:
    """The size of a record: the bytes of its body, and 32 for its metadata."""
    return len(record.body) + _BESIDE


def size_of_all(records: Sequence[Record]) -> int:
    """The total size of records, as `size_of` counts it."""
    return sum([len(record.body) for record in records]) + _BESIDE * len(records)


class Journal(ABC):
    """Positions are consecutive: each record's position is one more than that of the record before it."""

    @abstractmethod
    async def append(self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]) -> None:
        """Commit the transactions of events, in order, each together with its record and its key.

        `then` is called once, when all have ended, with the error of each; None stands for a durable one. The call is
        on the event loop, before this method returns or later, and must not raise. This method raises nothing. It may
        return before anything is durable: a caller that waits costs more than most other work on an event.

        A transaction succeeds or fails independently of the others, with two exceptions. If it fails, so do those that
        have read its writes. After a `WriteConflict` all later transactions of the call get one, so that they keep
        their order in the next attempt. The errors are `DuplicateMessage`, `WriteConflict`, `Unavailable` and `Failed`.
        No record is appended for a transaction with an error. Its writes are undone, except that those of a duplicate
        message may stay.
        """

    @abstractmethod
    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        """Commit the step of a consumer, or the records of a command.

        Return the position of the last record, or of the cursor, once all is durable. The records, the writes of
        `state` and the move of `cursor` are in one commit if the journal and the state share a back end: all of it
        happens, or nothing.

        With a deferrable cursor and no records, this may return earlier. A crash of the process never undoes such a
        step. A power failure may, until a later commit is durable.

        Raises `Unavailable` and `WriteConflict`, and with a cursor also `LeaseLost`.
        """

    @abstractmethod
    async def find_duplicate(self, key: str, state: State) -> str | None:
        """The value that an earlier append stored under an idempotency key. `state` is the caller's transaction.

        None if there is none, or if finding out takes a trip to another process: `append` finds out.
        """

    @abstractmethod
    async def read(self, after: int, limit: int) -> Sequence[Record]:
        """The next durable records after a position, in order: at most `limit`, and fewer if they are long.

        If the next records have been removed, the answer begins with the oldest record left. Records that a failover
        could still take back are not durable: a serving daemon reads them once it knows that replicas have them, which
        `last` and `wait` find out.
        """

    @abstractmethod
    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        """Return once there are records after that position.

        Raises `LeaseLost` soon after another daemon has acquired `cursor`, or is to acquire it.
        """

    @abstractmethod
    async def last(self) -> int:
        """The position of the newest durable record, or 0 in an empty journal."""

    @abstractmethod
    async def ensure_cursor(self, name: str, start: Start) -> int:
        """Create the durable cursor of a consumer if it has none, and return its position. The holder does not matter.

        The cursor of a new name begins as `start` says: after the last record, or before the first. No cursor is before
        the removed records.
        """

    @abstractmethod
    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        """Acquire a consumer's cursor, after waiting until another daemon releases it."""

    @abstractmethod
    async def release(self, cursor: Cursor) -> None:
        """Release a cursor, so that another daemon can acquire it at once."""

    @abstractmethod
    async def cursors(self) -> Sequence[Cursor]:
        """The durable cursors of all consumers ever seen, by name."""

    @abstractmethod
    async def extent(self) -> JournalStats:
        """The extent of the journal. Callers may ask many times a second."""

    @abstractmethod
    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        """The outlines of the records that `read` would return, without reading the records."""

    @abstractmethod
    async def trim(self, up_to: int, limit: int) -> int:
        """Remove the oldest records up to a position, durably. Return the number of removed records.

        A call removes at most `limit` records. It removes no more, except for a single one, than a commit can remove
        without delaying others. 0 means that no records are left up to the position. The same commit moves cursors
        before the last removed record to that record. Raises `Unavailable`.
        """

    @abstractmethod
    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        """Replace the bodies of records that were read. Return the number of replaced bodies, once durable.

        This removes content that must not stay in the journal. Position, type and time stay, and soon nobody can read
        the old bodies from the storage. A record that has changed or gone since it was read is skipped. Raises
        `Unavailable`.
        """
