"""The contract of a state store: what plugins remember between events.

A back end (`ingestd.backend`) implements `State` and `Store`; `ingestd.testing.stores` has the suite
they must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

__all__ = ["Field", "State", "Store", "key_digest", "passing_key", "state_key"]


_LONGEST_REMEMBERED = (
    64  # characters: ids are shorter, and the memory of thousands of longer ones is their senders' choice
)


def state_key(kind: str, tenant: str, part: str) -> str:
    """The key of one entry: `kind` (of the plugin's choice, without a colon) and a hash of the rest.

    `part` may be anything a caller sent. It is hashed together with the tenant, so no tenant and no
    caller can reach another's entry, and a key's length is bounded.
    """
    if len(part) > _LONGEST_REMEMBERED:
        return passing_key(kind, tenant, part)
    return _remembered_key(kind, tenant, part)


@lru_cache(maxsize=32_768)  # some megabytes; the events of a visit ask for the same, and need not make them anew
def _remembered_key(kind: str, tenant: str, part: str) -> str:
    return f"{kind}:{key_digest(tenant, part)}"


def passing_key(kind: str, tenant: str, part: str) -> str:
    """As `state_key`, of what comes once: it would only push out what is asked for again."""
    return f"{kind}:{_digest(tenant, part)}"


def key_digest(tenant: str, part: str) -> str:
    """What stands behind the kind in a key: 32 hexadecimal digits, the same for every kind."""
    return _digest(tenant, part) if len(part) > _LONGEST_REMEMBERED else _remembered_digest(tenant, part)


def _digest(tenant: str, part: str) -> str:
    return blake2b(f"{len(tenant)}:{tenant}{part}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_remembered_digest = lru_cache(maxsize=16_384)(_digest)  # likewise: an event asks for several kinds of its visitor


class Field(NamedTuple):
    """One field of a merged entry: when it was set (milliseconds) and to what."""

    at: int
    value: str


class State(ABC):
    """State as one unit of work (an event, a step of a consumer) reads and changes it.

    Every operation is atomic and takes effect in the order of the calls, also between units; what a
    unit writes is seen by others at once. It becomes durable with the unit's commit: `Store.commit`,
    or `Journal.append` together with records. A unit that read what another wrote and could not make
    durable is refused at its own commit, with `Unavailable`.

    Values are text. `ttl` is in milliseconds from `now` (inclusive: an entry is still there exactly
    `ttl` later); None keeps an entry for ever. A write that leaves a value as it was never shortens
    its life. Every operation raises `Unavailable` when the store cannot be read.
    """

    __slots__ = ()

    now: int
    """The unit's time in milliseconds: what counts as expired, and what `ttl` starts from."""

    @abstractmethod
    async def get(self, key: str) -> str | None:
        """The value, or None where there is none (any more)."""

    @abstractmethod
    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        """Set the value; returns the one it replaced."""

    @abstractmethod
    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        """Set the value if the present one is `expected` (None: absent); returns whether it was."""

    @abstractmethod
    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        """Get or create, and slide: the present value with a fresh life, or else `candidate`.

        Returns the value and whether it was created.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the value, all fields or the set; nothing happens where there is none."""

    @abstractmethod
    async def merge(
        self, key: str, fields: Mapping[str, Field], *, keep: int | None = None, keep_size: int | None = None
    ) -> int:
        """Set fields one by one; a field already set later than `at` keeps its value.

        Of more than `keep` fields, or than `keep_size` bytes of names and values in UTF-8, the oldest go: by their
        time, and by their name where times are equal. None is no bound, and no given fields change nothing. Returns
        how many fields went. A merge costs by the fields it is given, not by those that are there.

        An entry holds either a value or fields, never both; fields do not expire.
        """

    @abstractmethod
    async def fields(self, key: str) -> dict[str, Field]:
        """All fields, empty where there are none."""

    @abstractmethod
    async def push(
        self,
        key: str,
        member: str,
        at: int,
        *,
        keep: int,
        first: bool = False,
        since: int | None = None,
        ttl: int | None = None,
    ) -> None:
        """Add a member to a set, with its time (milliseconds); one that is there gets the new time.

        Members are ordered by time, and by their text where times are equal. Those before `since` go; of
        more than `keep` the newest stay, with `first` the very first one too. A member lives `ttl` from its
        last push, and at most as long as the others. A key that holds a set holds nothing else.
        """

    @abstractmethod
    async def pull(self, key: str, members: Collection[str]) -> None:
        """Take members out of a set, those that are there."""

    @abstractmethod
    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        """The members of a set with their times, in order, from `since` to `until` (inclusive; None: no bound)."""

    @abstractmethod
    async def load(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        """Get ready what will be read next, all at once: entries, and sets. It changes only how long that takes."""


class Store(ABC):
    """A store that can come back empty, or older, while a daemon runs, tells so: it has lost data.

    A loss stands until it is cleared, by an operator or because nothing is missing any more. All processes that open
    the store learn of it. A store that cannot lose data leaves these members as they are.
    """

    distant: bool = False
    """Whether operations take a trip to another process, so that independent ones should be asked for at once."""
    store_id: str | None = None
    """A random name of what the store holds, and another one after a loss; None where it has none."""
    losses: int = 0
    """How many losses this process has met since it opened the store. It grows before anything is read after a loss."""
    loss: str | None = None
    """The loss that stands, in a sentence for operators, as this process knows it; None where there is none."""

    @abstractmethod
    def begin(self, now: int, *, step: bool = False) -> State:
        """A new unit of work at that time (milliseconds).

        `step`: that of a consumer, who alone writes what it writes. Others may see it only with its commit.
        """

    @abstractmethod
    async def commit(self, state: State) -> None:
        """Returns when everything the unit wrote and read is durable. Raises `Unavailable`."""

    @abstractmethod
    def discard(self, state: State) -> None:
        """Undo what the unit wrote, as far as the store can; for a consumer's step that failed."""

    @abstractmethod
    def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """All durable entries of a kind that hold a value: key and value, each key once, in no order.

        What is written meanwhile, or has expired, may be among them or not. It reads all there is, in
        short steps: for commands, not for the path of an event. Raises `Unavailable`.
        """

    async def look_for_loss(self) -> None:  # noqa: B027 - most cannot lose data
        """Bring `loss` up to date: another process may have cleared it. Raises `Unavailable`."""

    async def clear_loss(self) -> bool:
        """The loss stands no more, for all processes; returns whether one stood. Raises `Unavailable`."""
        return False

    async def report_loss(self, what: str) -> None:  # noqa: B027 - as above
        """Record a loss that shows otherwise, unless one stands already. Raises `Unavailable`.

        `what` is the rest of a sentence that begins with "the store".
        """
