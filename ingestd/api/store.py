"""The contract of a state store: the data that plugins keep between events.

A back end (`ingestd.api.backend`) implements `State` and `Store`. `ingestd.testing.stores` has the suite that they must
pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

import msgspec

__all__ = [
    "Field",
    "State",
    "Store",
    "StoreSize",
    "StoredValue",
    "key_digest",
    "kind_of_tenant",
    "kinds_of",
    "passing_key",
    "state_key",
    "tenant_digest",
    "use_namespaces",
]


Value = TypeVar("Value")
_encode = msgspec.json.Encoder().encode

_LONGEST_REMEMBERED = 64  # characters of ASCII, as most ids have; callers may send thousands of others

_namespaces: dict[str, int] = {}


def use_namespaces(namespaces: Mapping[str, int]) -> None:
    """Let the keys of these tenants have a number after the kind, from now on. All other keys have none.

    A tenant that `ingestd partitions place` has moved has a number of its own in each place. So its entries are told
    from those that an earlier move, or another tenant, has left there.
    """
    if namespaces != _namespaces:
        _namespaces.clear()
        _namespaces.update(namespaces)
        _remembered_key.cache_clear()


def kind_of_tenant(kind: str, tenant: str) -> str:
    """What the keys of a kind begin with for this tenant, before the colon."""
    number = _namespaces.get(tenant)
    return f"{kind}@{number}" if number else kind


def kinds_of(kind: str) -> list[str]:
    """What the keys of a kind begin with, for all tenants."""
    return [kind, *(f"{kind}@{number}" for number in _namespaces.values() if number)]


def state_key(kind: str, tenant: str, part: str) -> str:
    """The key of one entry: `kind` (a name without `:` and `@`, chosen by the plugin) and a hash of tenant and part.

    A moved tenant has other keys (`use_namespaces`), so nobody keeps a key longer than for one transaction.
    `part` may be any text that a caller sent. The hash includes the tenant, so no tenant and no caller can reach
    another's entry. The hash also bounds the length of the key.
    """
    if len(part) <= _LONGEST_REMEMBERED and part.isascii():
        return _remembered_key(kind, tenant, part)
    return passing_key(kind, tenant, part)


@lru_cache(maxsize=16_384)  # 9 MB; the events of a visit use the same keys
def _remembered_key(kind: str, tenant: str, part: str) -> str:
    return f"{kind_of_tenant(kind, tenant)}:{key_digest(tenant, part)}"


def passing_key(kind: str, tenant: str, part: str) -> str:
    """The same key as `state_key`, for a part that occurs once. It is not cached, so it displaces no key in use."""
    return f"{kind_of_tenant(kind, tenant)}:{_digest(tenant, part)}"


def key_digest(tenant: str, part: str) -> str:
    """The part of a key after its kind: 32 hexadecimal digits, the same for every kind."""
    if len(part) <= _LONGEST_REMEMBERED and part.isascii():
        return _remembered_digest(tenant, part)
    return _digest(tenant, part)


def _digest(tenant: str, part: str) -> str:
    return blake2b(f"{len(tenant)}:{tenant}{part}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# 3 MB, as above: an event uses several kinds of keys of its visitor.
_remembered_digest = lru_cache(maxsize=8_192)(_digest)


@lru_cache(maxsize=1024)
def tenant_digest(tenant: str) -> str:
    """A digest of a tenant in 32 hexadecimal digits.

    The key of an entry does not tell its tenant, but a value may begin with this. Then `ingestd store copy` finds the
    partition of the entry.
    """
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Field(NamedTuple):
    """One field of a merged entry: when it was set (milliseconds), and its value."""

    at: int
    value: str


class StoredValue(Generic[Value]):
    """Values of one type, each as JSON under a key of one kind.

    A value has a text as its name, and may belong to a tenant. `type_` is any type that msgspec decodes. So a later
    version adds members with defaults only.
    """

    def __init__(self, kind: str, type_: type[Value]) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(type_).decode

    def key(self, name: str = "", tenant: str = "") -> str:
        return state_key(self._kind, tenant, name)

    def decode(self, text: str) -> Value:
        return self._decode(text)

    def encode(self, value: Value) -> str:
        return _encode(value).decode()

    async def load(self, state: State, name: str = "", tenant: str = "") -> Value | None:
        """None if there is no such value. Raises `Unavailable`."""
        found = await state.get(self.key(name, tenant))
        return None if found is None else self._decode(found)

    async def save(
        self, state: State, value: Value | None, name: str = "", tenant: str = "", *, ttl: int | None = None
    ) -> None:
        """None removes the value. `ttl` is its life in milliseconds. Raises `Unavailable`."""
        key = self.key(name, tenant)
        if value is None:
            await state.delete(key)
        else:
            await state.put(key, _encode(value).decode(), ttl)


class StoreSize(NamedTuple):
    """How large a store is, in bytes."""

    used: int
    """All that it uses on its disk, or in the memory of its server. The journal is included if it is there too."""
    fields: int
    """What entries with fields use. Callers choose how long fields are."""
    capacity: int
    """The size of the disk, or the memory that its server may use."""
    free: int
    """What is left of the capacity."""


class State(ABC):
    """The state as one transaction (an event, a step of a consumer, a command) reads and changes it.

    A transaction works in memory. An operation waits only while an entry that it needs is loaded; entries that are
    missing at the same time are loaded together. The writes become durable with the commit of the transaction:
    `Journal.append` or `Journal.commit` together with records, or `Store.commit`. If another transaction has changed
    meanwhile what this one has read, the commit changes nothing and raises `WriteConflict`.

    Transactions of events in one process see each other's writes at once, in the order of the calls. Such a transaction
    may read a write of another one whose commit fails. Then its own commit fails with `Unavailable` or `WriteConflict`.
    Every other transaction sees at least all that was durable when it began.

    Values are text. `ttl` is in milliseconds from `now`, inclusive: the entry still exists exactly `ttl` later. None
    keeps an entry for ever. A write that does not change a value never shortens its lifetime. Every operation raises
    `Unavailable` if the store cannot be read.
    """

    __slots__ = ()

    now: int
    """The time of the transaction in milliseconds. Expiry is decided by it, and `ttl` counts from it."""

    @property
    def size(self) -> int:
        """Approximate bytes in memory of all that the transaction has read and written."""
        return 0

    @abstractmethod
    def on_commit(self, call: Callable[[], None]) -> None:
        """Make this call once the transaction is durable, and never if it fails.

        It is for effects outside of the state, such as metrics: after a `WriteConflict` a hook runs again for the same
        event. The call must not raise.
        """

    @abstractmethod
    async def get(self, key: str) -> str | None:
        """The value, or None if the entry is absent or has expired."""

    @abstractmethod
    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        """Set the value, and return the value that it replaces."""

    @abstractmethod
    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        """Set the value if the present value is `expected` (None: absent). Return whether it was."""

    @abstractmethod
    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        """Return the present value with a new lifetime, or create the entry with the value `candidate`.

        The answer is the value, and whether it was created.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the value, all fields or the set. An absent entry is no error."""

    @abstractmethod
    async def merge(
        self,
        key: str,
        fields: Mapping[str, Field],
        *,
        keep: int | None = None,
        keep_size: int | None = None,
        ttl: int | None = None,
    ) -> int:
        """Set fields one by one. A field that was set at a later time than the given `at` keeps its value.

        The oldest fields beyond `keep` fields are removed, and beyond `keep_size` bytes of names and values in UTF-8.
        Fields of the same time are removed in the order of their names. None is no limit. Without given fields nothing
        changes. Return the number of removed fields. The cost depends on the number of given fields, not of stored
        fields.

        All fields of an entry live `ttl` from the last merge. No merge shortens the lifetime of present fields.

        An entry has either a value or fields, never both.
        """

    @abstractmethod
    async def fields(self, key: str) -> dict[str, Field]:
        """All fields, or an empty dict if there are none."""

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
        """Add a member to a set with its time (milliseconds). A member that is present gets the new time.

        Members are ordered by time, and by text if times are equal. Members before `since` are removed. The newest
        `keep` members stay, and with `first` also the very first one. A member lives `ttl` from its last push, and at
        most as long as the other members. A key that has a set has nothing else.
        """

    @abstractmethod
    async def pull(self, key: str, members: Collection[str]) -> None:
        """Remove members from a set. Absent members are no error."""

    @abstractmethod
    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        """The members of a set with their times, in order, from `since` to `until` (inclusive; None: no bound)."""

    @abstractmethod
    async def load(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        """Load entries and sets that will be read next, all at once. Only the speed of these reads changes."""

    def release(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:  # noqa: B027 - none must
        """Free the memory of large entries and sets that the transaction has read. Changed ones stay until the commit.

        They may be read again, but this takes as long as the first time.
        """


class Store(ABC):
    """A store of state.

    A store may come back empty or older while a daemon runs, and then reports a loss of data. A loss stands until an
    operator clears it, or until no data is missing. All processes that open the store learn of it. A store that cannot
    lose data leaves `store_id`, `losses`, `loss` and the methods for losses unchanged.
    """

    may_conflict: bool = False
    """Whether a commit can raise `WriteConflict`. A store with one owner never does."""
    store_id: str | None = None
    """A random name of the stored data, which changes after a loss. None if the store has no such name."""
    losses: int = 0
    """The losses that this process met since it opened the store. It grows before any read after a loss."""
    loss: str | None = None
    """The loss that stands, as this process knows it, in a sentence for operators; None if there is no loss."""
    tenants: int | None = None
    """The number of tenants with keys whose state is here, for texts about a loss. The plugin with the keys sets it."""
    max_size: float = math.inf
    """`[store] max_size` in bytes, or its default. The daemon sets it."""
    field_bytes: float = 0
    """What entries with fields use. The daemon measures it every few seconds, and plugins add what they write."""
    clock_ahead: int = 0
    """Milliseconds by which the clock of the store's server is ahead of this process', beyond the time of a request."""
    placement: int = 0
    """The version of the placement of tenants that this process uses. A transaction belongs to the one at its begin."""

    @property
    def version(self) -> Hashable:
        """Equal as long as nothing changes in the state and in the journal beside it, by any process.

        It may be late by some seconds. None: the store does not know, so one has to look.
        """
        return None

    def of_tenant(self, tenant: str) -> Store:
        """The store that has the state of a tenant.

        Only this store can read and write it, if the state of tenants is in several partitions. Otherwise it is the
        same object.
        """
        return self

    @property
    def parts(self) -> Sequence[Store]:
        """The stores of all partitions, in an order that never changes. Each tenant's state is in one of them."""
        return (self,)

    @abstractmethod
    def begin(self, now: int, *, event: bool = False, step: bool = False) -> State:
        """Begin a transaction at that time (milliseconds).

        With several partitions, the transaction is in the first one. State that belongs to no tenant is there.

        `event`: the transaction of an event, which is run again after a `WriteConflict`. The store may serve its reads
        from memory that is out of date, because the commit finds out.

        `step`: the transaction of a consumer's step. Nothing else writes its entries, so the store may hide its writes
        from others until the commit, and need not check its reads.
        """

    @abstractmethod
    async def commit(self, state: State) -> None:
        """Return once all reads and writes of the transaction are durable.

        Raises `Unavailable`, and `WriteConflict` unless the transaction has written nothing.
        """

    @abstractmethod
    def discard(self, state: State) -> None:
        """Undo the writes of a transaction that is given up. Others that have read them may be refused."""

    @abstractmethod
    def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        """All durable entries of a kind that have a value: key and value, each key once, in any order.

        Entries that are written during the scan, and expired entries, may be included or missing. The scan reads all
        entries in short steps. It is for commands, not for the path of an event. Raises `Unavailable`.
        """

    async def size(self) -> StoreSize | None:
        """The present size, without a scan; None if the store does not know it. Raises `Unavailable`."""
        return None

    async def set_ends(self, kind: str, end: Callable[[str], int]) -> None:  # noqa: B027 - see below
        """Give all values and fields of a kind that have no end the end (milliseconds) that `end` returns for the key.

        An earlier version of a plugin may have stored them so. They stay for ever in a store without this method. It
        works in short steps, beside events. Raises `Unavailable`.
        """

    async def fence(self, placement: int) -> None:
        """Commit no transaction from now on, of any process, that belongs to an earlier placement of tenants.

        Such a commit of an event raises `WriteConflict`, one of a step `LeaseLost`, and one of a command `Unavailable`.

        Raises `CommandError` if the placement is not newer than an earlier one, and `Unavailable`. Only a store whose
        `Contents` note changes has this method.
        """
        raise NotImplementedError

    async def look_for_loss(self) -> None:  # noqa: B027 - most cannot lose data
        """Update `loss`, since another process may have cleared it. Raises `Unavailable`."""

    async def clear_loss(self) -> bool:
        """Clear the loss for all processes. Return whether there was one. Raises `Unavailable`."""
        return False

    async def report_loss(self, what: str) -> None:  # noqa: B027 - as above
        """Record a loss that the store cannot detect, unless a loss stands already. Raises `Unavailable`.

        `what` is the rest of a sentence that begins with "the store".
        """
