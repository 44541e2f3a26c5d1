"""The cache of state entries: entries in memory, their unwritten changes, and loading from the file."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from itertools import count, takewhile
from types import MappingProxyType
from typing import Any

from ingestd.api.store import Field

from .fields import FieldChanges, Fields
from .text_memory import text_memory

__all__ = [
    "Change",
    "Entries",
    "Entry",
    "Loaded",
    "Row",
    "SetEntry",
    "is_renewal",
    "is_set",
    "key_of",
    "not_renewed",
    "set_key",
]

Change = tuple[int, int | None, int | None]
"""Number, time and expiry of a set's member. No time means that the member is removed."""

Row = tuple[str, str | None, Fields | FieldChanges | dict[str, Change] | None, int | None]
"""key, value, fields, expires: a row of the table `state`. For a set, its members stand in place of the fields.

A row that was read has `Fields`. A row to be written has changes of fields. No entry has both a value and changes of
fields, so a row with both is a renewal: the value is unchanged and expires later, or is expected to be renewed soon.
A renewal without `expires` says that the value renewed before has been replaced.
"""

_SET = "#"
_MARK = ""  # the key of an entry that only marks a place in the order of use
_BESIDE = 400  # bytes of an entry without its value: the object, its key, and its slot in the cache
_BESIDE_FIELD = 150  # the same for a field, without its name and its value
_BESIDE_MEMBER = 200
_UNCHANGED = FieldChanges({}, is_first=False)


def set_key(key: str) -> str:
    """The cache key of a set. The same key can hold a value, so both are looked up under different cache keys."""
    return _SET + key


def not_renewed(key: str) -> Row:
    return key, "", _UNCHANGED, None


def is_renewal(row: Row) -> bool:
    return row[1] is not None and row[2] is not None


def is_set(key: str) -> bool:
    return key.startswith(_SET)


def key_of(set_key: str) -> str:
    """The key of a set as callers of `State` name it."""
    return set_key[len(_SET) :]


Loaded = Callable[[Sequence[Row] | BaseException], None]
Load = Callable[[Sequence[str], Loaded], None]
"""Starts to read the rows of some keys. Calls back in the event loop with the rows found, or with an error.

Raises `Unavailable`, without a call, if the read cannot start.
"""


class Entry:
    """The state of one key. A key without state has an Entry without value and fields.

    `dirty`: changed since the entry was last handed to a commit.
    `in_flight`: part of the commit in progress.
    `invalidated`: a commit of this entry failed, so its readers have seen a state that was never stored.
    `written`: the value with an expiry that the file has, or will have once the commit in progress succeeds.
    `sliding`: the value will most likely be renewed.
    `fields`: empty fields stand for fields that the file still has. The next commit removes them.
    """

    __slots__ = (
        "dirty",
        "expires",
        "fields",
        "in_flight",
        "invalidated",
        "key",
        "sliding",
        "value",
        "weight",
        "written",
    )

    def __init__(
        self,
        key: str,
        value: str | None = None,
        fields: Fields | None = None,
        expires: int | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self.fields = fields
        self.expires = expires
        self.written = None if expires is None else value
        self.sliding = False
        self.dirty = False
        self.invalidated = False
        self.in_flight = False
        self.weight = 0

    def weigh(self) -> int:
        """Approximate memory of the entry, in bytes."""
        if self.fields:
            return _BESIDE + _BESIDE_FIELD * len(self.fields) + self.fields.memory
        return _BESIDE if self.value is None else _BESIDE + text_memory(self.value)

    @property
    def absent(self) -> bool:
        return self.value is None and not self.fields

    @property
    def is_renewed(self) -> bool:
        """Whether a later expiry is the only change to write."""
        return self.value is not None and self.value == self.written and self.expires is not None

    def row(self, *, early: bool = False) -> Row:
        """The row to write. `early` writes a new sliding value as a renewal too."""
        if self.fields is not None:
            return self._row_of_fields(self.fields)
        renewal = self.is_renewed or (early and self.sliding and self.value is not None and self.expires is not None)
        self.written = None if self.expires is None else self.value
        return self.key, self.value, _UNCHANGED if renewal else None, self.expires

    def _row_of_fields(self, fields: Fields) -> Row:
        changes = fields.take_changes()
        if fields:
            return self.key, None, changes, None
        # The row's fields in the file disappear with it: the row is deleted, or gets the value.
        self.fields = None
        self.written = None if self.expires is None else self.value
        return self.key, self.value, None, self.expires

    def merge(self, fields: Mapping[str, Field], keep: int | None, keep_size: int | None) -> tuple[bool, int]:
        """Set fields; a value is replaced. Returns whether anything changed, and how many fields were dropped.

        `State.merge` explains the bounds.
        """
        present = Fields() if self.fields is None else self.fields
        changed = present.merge(fields)
        gone = present.drop_oldest(keep, keep_size)
        if changed:
            self.value, self.fields, self.expires = None, present, None
        return changed or gone > 0, gone

    def clear(self) -> None:
        self.value = self.expires = None
        if self.fields is not None:
            self.fields.clear()

    def saved(self) -> tuple[Any, ...]:
        """A copy of the entry's content, for `restore`."""
        return self.value, None if self.fields is None else self.fields.copy(), self.expires, self.dirty

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.value, self.fields, self.expires, self.dirty = saved


class SetEntry(Entry):
    """A set: its members with their times, in order, and the members changed since the last commit.

    `expires` is the latest expiry among the members. The number of a member is the number of its row in the file.
    """

    __slots__ = ("_memory", "changes", "members", "numbers")

    def __init__(self, key: str, members: Mapping[str, Change] = MappingProxyType({})) -> None:
        lives = [expires for _, _, expires in members.values()]
        super().__init__(
            key, expires=None if None in lives else max((life for life in lives if life is not None), default=None)
        )
        self.members = {member: at for member, (_, at, _) in members.items() if at is not None}
        self.numbers = {member: number for member, (number, _, _) in members.items()}
        self.changes: dict[str, Change] = {}
        self._memory = sum(map(text_memory, self.members))

    def weigh(self) -> int:
        return _BESIDE + len(self.members) * _BESIDE_MEMBER + self._memory

    @property
    def absent(self) -> bool:
        return not self.members

    def row(self, *, early: bool = False) -> Row:
        changes, self.changes = self.changes, {}
        return self.key, None, changes, None

    def add(self, member: str, at: int, expires: int | None, numbers: Iterator[int]) -> None:
        """Add a member or change its time. A new member gets the next of `numbers`."""
        if not self.members:
            self.expires = expires
        elif self.expires is not None:
            self.expires = None if expires is None else max(self.expires, expires)
        if self.members.pop(member, None) is None:
            self._memory += text_memory(member)
        behind = []  # usually empty or short: most members are newer than all others
        for each in reversed(self.members.items()):
            if (each[1], each[0]) <= (at, member):
                break
            behind.append(each)
        self.members[member] = at
        for other, time in reversed(behind):
            del self.members[other]
            self.members[other] = time
        number = self.numbers.get(member)
        if number is None:
            gone = self.changes.get(member)  # removed, but the removal is not written yet
            number = self.numbers[member] = next(numbers) if gone is None else gone[0]
        self.changes[member] = number, at, expires

    def remove(self, members: Iterable[str]) -> None:
        for member in members:
            del self.members[member]
            self._memory -= text_memory(member)
            self.changes[member] = self.numbers.pop(member), None, None

    def saved(self) -> tuple[Any, ...]:
        return dict(self.members), dict(self.numbers), dict(self.changes), self.expires, self.dirty, self._memory

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.members, self.numbers, self.changes, self.expires, self.dirty, self._memory = saved


class Entries:
    """At most `limit` entries of at most `size` bytes. Entries not yet on disk come on top and are never evicted."""

    def __init__(
        self,
        limit: int,
        load: Load,
        members: int = 0,
        definitely_absent: Callable[[str], bool] = lambda key: False,
        *,
        size: int = 1 << 62,
    ) -> None:
        """`definitely_absent` returns True only for keys that the file does not have."""
        self.numbers = count(members + 1)
        """Numbers for new members of sets. `members` is the highest number used so far."""
        self._definitely_absent = definitely_absent
        self._limit = limit
        self._size = size
        self.weight = 0
        """Approximate memory of all entries, in bytes."""
        self._load_rows = load
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._wanted: dict[str, list[asyncio.Future[None]]] = {}
        self._loading: dict[str, list[asyncio.Future[None]]] = {}
        """Futures of the callers that wait for a key to be loaded."""
        self._together: dict[str, set[str]] = {}
        """For each kind of entry that was missed, the kinds that transactions missed next."""
        self._beginning = False
        """Whether a load is scheduled."""
        self._adrift: set[str] = set()
        """Keys whose row the commit in progress still changes, although their entry was invalidated."""
        self.pinned: frozenset[str] = frozenset()
        """Keys that are not evicted once they are loaded."""
        self.hits = 0
        self.ruled_out = 0
        self.misses = 0
        """How many look-ups found the entry in memory, found it definitely absent, and had to read the file."""
        self.deleted = False
        """Whether a transaction has deleted something since the flag was last cleared."""

    def known(self, key: str) -> Entry | None:
        """The entry, if it is in memory or definitely absent. The caller may change it until it next awaits."""
        entry = self._known.get(key)
        if entry is not None:
            self._known.move_to_end(key)
            self.hits += 1
        elif self._definitely_absent(key):
            self.ruled_out += 1
            self._let_go(1)
            entry = self._add(key, None)
        return entry

    def _add(self, key: str, row: tuple[Any, Any, Any] | None) -> Entry:
        entry = self._known[key] = _made(key, row)
        entry.weight = entry.weigh()
        self.weight += entry.weight
        return entry

    def replace(self, entry: Entry) -> None:
        """Hold this entry instead of the present entry of its key."""
        if entry.key in self._known:
            self._remove(entry.key)
        self._known[entry.key] = entry
        entry.weight = entry.weigh()
        self.weight += entry.weight

    def _remove(self, key: str) -> None:
        self.weight -= self._known.pop(key).weight

    def weigh(self, entry: Entry) -> None:
        """Count the weight of an entry anew after a change."""
        if self._known.get(entry.key) is entry:
            before, entry.weight = entry.weight, entry.weigh()
            self.weight += entry.weight - before

    @property
    def count(self) -> int:
        """Number of entries in memory."""
        return len(self._known)

    async def get(self, key: str, after: str | None = None) -> Entry:
        """The entry, from memory or from the file. The caller may change it until it next awaits.

        `after` is the key that the caller missed before. If both keys belong to one visitor, later misses of the first
        kind load the second kind too. This saves a second read.
        """
        entry = self.known(key)
        if entry is None:
            self.misses += 1
            if after is not None:
                self._learn(after, key)
        while entry is None:  # the entry may have been evicted before this task ran
            future = asyncio.get_running_loop().create_future()
            self._wait(key, future)
            await future
            entry = self._known.get(key)
        return entry

    def _learn(self, missed: str, key: str) -> None:
        before, _, digest = missed.partition(":")
        kind, _, same = key.partition(":")
        if digest == same and kind != before:
            self._together.setdefault(before, set()).add(kind)

    def _wait(self, key: str, future: asyncio.Future[None]) -> None:
        """Join a load of the key. All misses of one loop turn, or during one load, share the next statement."""
        waiting = self._loading.get(key)
        if waiting is None:
            waiting = self._wanted.get(key)
        if waiting is not None:
            waiting.append(future)
            return
        self._wanted[key] = [future]
        kind, _, digest = key.partition(":")
        for other in self._together.get(kind, ()):
            beside = f"{other}:{digest}"
            if beside not in self._known and beside not in self._loading:
                self._wanted.setdefault(beside, [])
        if not self._loading and not self._beginning:
            self._beginning = True
            # At the end of the turn, to include its other misses. Without a context, since the load has many callers.
            asyncio.get_running_loop().call_soon(self._begin, context=Context())

    def _begin(self) -> None:
        """Load the wanted keys. Wait if the commit in progress still changes one of their rows."""
        self._beginning = False
        if self._loading or not self._wanted or not self._adrift.isdisjoint(self._wanted):
            return
        self._loading, self._wanted = self._wanted, {}
        try:
            self._load_rows([*self._loading], self._loaded)
        except Exception as error:  # noqa: BLE001 - the waiting callers raise it
            self._loaded(error)

    def _loaded(self, rows: Sequence[Row] | BaseException) -> None:
        loading, self._loading = self._loading, {}
        error = rows if isinstance(rows, BaseException) else None
        if not isinstance(rows, BaseException):
            self._let_go(len(loading))
            found = {row[0]: row[1:] for row in rows}
            for key in loading:
                if key not in self._known:  # it may have been definitely absent meanwhile, and then written
                    self._add(key, found.get(key))
        for waiting in loading.values():
            for future in waiting:
                _settle(future, error)
        self._begin()

    def _let_go(self, room: int) -> None:
        excess = len(self._known) + room - self._limit
        if excess > 0 or self.weight > self._size:
            for key in [*self._oldest(excess, self.weight - self._size)]:
                self._remove(key)

    def _oldest(self, count: int, weight: int) -> Iterable[str]:
        """The oldest entries: at least `count`, of at least `weight` bytes together, as far as there are any."""
        # Entries not yet on disk are in use, so few of them are among the oldest.
        for key, entry in self._known.items():
            if count <= 0 and weight <= 0:
                return
            if not entry.dirty and not entry.in_flight and key not in self.pinned:
                count -= 1
                weight -= entry.weight
                yield key

    def land(self, flown: Iterable[Entry]) -> None:
        """End the commit in progress, whether it succeeded or failed."""
        for entry in flown:
            entry.in_flight = False
        self._adrift.clear()
        self._let_go(0)
        if self._wanted:
            self._begin()

    def kill(self, entry: Entry) -> None:
        """Forget an entry whose state was never stored, and mark it so that its readers fail."""
        entry.invalidated = True
        entry.dirty = False
        if self._known.get(entry.key) is entry:
            self._remove(entry.key)
            if entry.in_flight:
                self._adrift.add(entry.key)

    def forget_unused(self) -> None:
        """Drop the entries that nobody has looked up since the last call."""
        if _MARK in self._known:
            unused = [*takewhile(lambda key: key != _MARK, self._known)]
            self.forget(unused)
            self._remove(_MARK)
        self._add(_MARK, None)

    def forget(self, keys: Iterable[str]) -> None:
        """Drop entries that were changed in the file outside of commits. Entries about to be written stay."""
        for key in keys:
            entry = self._known.get(key)
            if entry is not None and not entry.dirty and not entry.in_flight:
                self._remove(key)


def _made(key: str, row: tuple[Any, Any, Any] | None) -> Entry:
    if not is_set(key):
        return Entry(key) if row is None else Entry(key, *row)
    return SetEntry(key) if row is None else SetEntry(key, row[1])


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # every caller may have been cancelled
