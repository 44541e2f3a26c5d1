"""Transactions on Redis: they work in memory, and keep a log of the reads and writes for their commit."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ingestd.api.errors import WriteConflict
from ingestd.api.store import Field

from ..cache import Entries, Loaded
from ..cached_state import CachedState
from ..entry import Change, KeyState, Row, SetEntry, is_set, key_of, set_key
from ..fields import Fields
from .link import Link

__all__ = [
    "ANY_PLACEMENT",
    "CheckedState",
    "Log",
    "StepState",
    "Transaction",
    "has_writes",
    "loaded_row",
    "make_entries",
    "pairs",
]

_ENTRIES = 50_000  # entries in the cache of a daemon
_SIZE = 40 << 20  # bytes of these entries
_LARGEST = 16 << 10  # bytes of an entry that stays in the cache: only a hostile caller has many that are larger
_LOADED = 250  # entries of one read; events are served between two reads
_LOADED_IN_STEP = 16  # the same for a step, whose entries are larger
ANY_PLACEMENT = 1 << 52  # of a transaction that belongs to no version of the placement of tenants
_IN_STEP = 1_000_000  # entries of one step; they are dropped with it


Log = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]
"""What a commit needs, as batch.lua takes it: `checks`, `writes` and `contents` of a `CheckedState`."""


def has_writes(log: Log) -> bool:
    checks, writes, _ = log
    return bool(writes) or any(len(check) == 3 for check in checks)


class Transaction(CachedState):
    """Base of all transactions on Redis. After a loss of data the store refuses those that began before it."""

    __slots__ = ("_link", "_store_id", "placement")

    def __init__(self, link: Link, entries: Entries, now: int) -> None:
        super().__init__(entries, now)
        self._link = link
        self._store_id = link.store_id
        self.placement = link.placement

    @abstractmethod
    def _log(self) -> Log: ...

    def log(self) -> Log:
        """The log for the commit. Raises `Unavailable` if the store has lost data since the transaction began."""
        if self._link.store_id != self._store_id:
            raise self._link.unavailable()
        return self._log()

    def go_on(self) -> None:
        """Begin a new log after a commit. The entries stay."""


class CheckedState(Transaction):
    """A transaction whose reads are checked by its commit.

    The cache may be shared with other transactions. A transaction keeps the entries that it has read, and replaces the
    entries that it changes. So its own view does not change when others write.
    """

    __slots__ = ("_before", "_checks", "_contents", "_large", "_touched", "_writes")

    def __init__(self, link: Link, entries: Entries, now: int) -> None:
        # Every event begins one, so without the calls and the lists of the base classes.
        self.now, self.entries, self._missed, self._calls = now, entries, None, None
        self._link, self._store_id, self.placement = link, link.store_id, link.placement
        self._touched: dict[str, KeyState] = {}
        """The entries as this transaction sees them."""
        self._before: dict[str, list[Any] | None] = {}
        """The content, before this transaction, of entries that it has changed. None: it no longer matters."""
        self._checks: list[tuple[Any, ...]] = []
        """The values that were read: key and value, and for a renewal the new lifetime."""
        self._writes: list[tuple[Any, ...]] = []
        """The other writes, in their order."""
        self._contents: list[tuple[Any, ...]] = []
        """The fields and windows that were read: kind, content, key and bounds."""
        self._large = False
        """Whether some entries are too large for the cache."""

    @property
    def size(self) -> int:
        return sum([entry.weight for entry in self._touched.values()])

    def _log(self) -> Log:
        if self._link.placement != self.placement:  # its tenant may belong elsewhere now, and have other keys
            raise WriteConflict
        return self._checks, self._writes, self._contents

    def go_on(self) -> None:
        self._checks, self._writes, self._contents, self._before = [], [], [], {}

    def committed(self) -> None:
        if self._calls is not None:
            super().committed()
        if self._large:
            self.entries.forget([key for key, entry in self._touched.items() if entry.weight > _LARGEST])

    def undo(self) -> None:
        """Drop from the cache all that this transaction has read or written, since some of it is wrong."""
        self.entries.forget(self._touched)

    def _at_hand(self, key: str) -> KeyState | None:
        entry = self._touched.get(key)
        if entry is None:
            entry = self.entries.known(key)
            # Another daemon may have renewed an expired entry, so load it again.
            if entry is None or (entry.expires is not None and entry.expires < self.now):
                return None
            self._touched[key] = entry
        return entry

    async def look(self, key: str) -> KeyState:
        entry = self._at_hand(key)
        if entry is None:
            self.entries.forget((key,))
            missed, self._missed = self._missed, key
            loaded = await self.entries.get(key, missed)
            # Another operation of this transaction may have come first.
            entry = self._touched.setdefault(key, loaded)
            self._large = self._large or entry.weight > _LARGEST
        return entry

    def _replace(self, entry: KeyState) -> None:
        self._touched[entry.key] = entry
        self.entries.replace(entry)
        self._large = self._large or entry.weight > _LARGEST

    async def _copy(self, key: str) -> None:
        """Replace an entry by a copy, which this transaction can change."""
        entry = await self.look(key)
        if key not in self._before:
            self._before[key] = [] if self._has_expired(entry) else _content(entry)
            copy = type(entry)(key)
            copy.restore(entry.saved())
            self._replace(copy)

    def _live(self, entry: KeyState) -> str | None:
        value = None if entry.expires is not None and entry.expires < self.now else entry.value
        if entry.key not in self._before:
            self._checks.append((entry.key, value))
        return value

    def _set(self, entry: KeyState, present: str | None, value: str, ttl: int | None, *, sliding: bool = False) -> None:
        key, expires = entry.key, None if ttl is None else self.now + ttl
        if value == present:  # writing the same value again never shortens its life
            is_own = key in self._before
            if is_own and expires is not None and (entry.expires is None or expires <= entry.expires):
                return
            expires = None if expires is None or entry.expires is None else max(entry.expires, expires)
        if value == present and ttl is not None and not is_own:
            # Also if the entry lives longer here: another transaction, which has no commit yet, may have renewed it.
            entry.expires = expires
            self._checks[-1] = (key, value, ttl)  # the check of `_live`
        else:
            # Also with the same value: `merge` changes the entries in `_before`, so others must not have read them.
            self._replace(KeyState(key, value, None, expires))
            self._before[key] = None
            self._writes.append(("put", key, value, ttl))

    def _changed(self, entry: KeyState) -> None:
        entry.row()  # empties the entry's own log of changes
        self.entries.weigh(entry)
        self._large = self._large or entry.weight > _LARGEST

    async def delete(self, key: str) -> None:
        for entry in (KeyState(key), SetEntry(set_key(key))):
            self._replace(entry)
            self._before[entry.key] = None
        self._writes.append(("delete", key))

    async def merge(
        self,
        key: str,
        fields: Mapping[str, Field],
        *,
        keep: int | None = None,
        keep_size: int | None = None,
        ttl: int | None = None,
    ) -> int:
        if not fields:
            return 0
        await self._copy(key)
        self._writes.append(("merge", key, [(name, *field) for name, field in fields.items()], keep, keep_size, ttl))
        return await super().merge(key, fields, keep=keep, keep_size=keep_size, ttl=ttl)

    def release(self, keys: Collection[str] = (), sets: Collection[str] = ()) -> None:
        """Nothing is freed: the transaction keeps its view of all entries that it has read."""

    async def fields(self, key: str) -> dict[str, Field]:
        found = await super().fields(key)
        self._has_read(key, "fields", _flat(found), key)
        return found

    def _has_read(self, cache_key: str, kind: str, content: list[Any], key: str, *bounds: int | None) -> None:
        """Have the commit check what was read, or the content of before this transaction has changed it."""
        if cache_key not in self._before:
            self._contents.append((kind, content, key, *bounds))
        elif (before := self._before[cache_key]) is not None:
            self._contents.append((kind, before, key))
            self._before[cache_key] = None

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
        await self._copy(set_key(key))
        self._writes.append(("push", key, member, at, keep, first, since, ttl))
        await super().push(key, member, at, keep=keep, first=first, since=since, ttl=ttl)

    async def pull(self, key: str, members: Collection[str]) -> None:
        await self._copy(set_key(key))
        self._writes.append(("pull", key, [*members]))
        await super().pull(key, members)

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        found = await super().window(key, since, until)
        self._has_read(set_key(key), "window", [each for pair in found for each in pair], key, since, until)
        return found


def _content(entry: KeyState) -> list[Any]:
    """The fields or members of an entry, as batch.lua compares them."""
    if isinstance(entry, SetEntry):
        return [each for pair in entry.members.items() for each in pair]
    return [] if entry.fields is None else _flat(entry.fields)


def _flat(fields: Mapping[str, Field] | Fields) -> list[str]:
    return [each for name, field in fields.items() for each in (name, f"{field.at}|{field.value}")]


class StepState(Transaction):
    """The transaction of a consumer's step. Only the holder of the cursor writes this state, so no read is checked."""

    __slots__ = ()

    def __init__(self, link: Link, now: int) -> None:
        super().__init__(link, make_entries(link, _IN_STEP, _LOADED_IN_STEP), now)

    def _log(self) -> Log:
        changed = [entry for entry in dict.fromkeys(self.written) if entry.dirty]
        for entry in changed:
            entry.dirty = False
        return (), [_row(entry) for entry in changed], ()


def _row(entry: KeyState) -> tuple[Any, ...]:
    """The changes of an entry, as batch.lua writes them."""
    key = entry.key
    if isinstance(entry, SetEntry):
        changes, entry.changes = entry.changes, {}
        members = [(member, at) for member, (_, at, _) in changes.items() if at is not None]
        gone = [member for member, (_, at, _) in changes.items() if at is None]
        return "members", key_of(key), members, gone, entry.expires
    if entry.value is not None:
        return "value", key, entry.value, entry.expires
    if not entry.fields:
        return "delete", key
    fields = entry.fields.take_changes().fields
    added = [(name, *field) for name, field in fields.items() if field is not None]
    return "fields", key, added, [name for name, field in fields.items() if field is None], entry.expires


def make_entries(link: Link, limit: int = _ENTRIES, loaded_at_once: int = _LOADED) -> Entries:
    """A cache of entries on Redis."""

    async def load(keys: Sequence[str], loaded: Loaded) -> None:
        rows: list[Row] = []
        try:
            for first in range(0, len(keys), loaded_at_once):
                some = keys[first : first + loaded_at_once]
                answer = await link.ask("load", 0, some, weight=len(some))
                rows += [loaded_row(key, found) for key, found in zip(some, answer, strict=True) if found]
        except Exception as error:  # noqa: BLE001 - the waiting callers raise it
            loaded(error)
        else:
            loaded(rows)

    def begin(keys: Sequence[str], loaded: Loaded) -> None:
        # Nothing else needs to refer to the task: it waits for nothing but the link, which refers to it.
        asyncio.get_running_loop().create_task(load(keys, loaded), name="redis: load")

    return Entries(limit, begin, size=_SIZE)


def loaded_row(key: str, found: Any) -> Row:
    """The entry of an answer: a raw value, or a list of fields or members."""
    if isinstance(found, str):
        expires, _, value = found.partition("|")
        return key, value, None, int(expires) if expires else None
    if not is_set(key):
        end: int | None = found.pop(0) if len(found) % 2 else None
        return key, None, Fields({name: _field(raw) for name, raw in pairs(found)}, durable=True), end
    members = {member: int(float(at)) for member, at in pairs(found)}
    ends = members.pop("", None)
    entries: dict[str, Change] = {member: (0, at, ends and -ends) for member, at in members.items()}
    return key, None, entries, None


def _field(raw: str) -> Field:
    at, _, value = raw.partition("|")
    return Field(int(at), value)


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Redis gives pairs one after the other."""
    return zip(flat[::2], flat[1::2], strict=True)
