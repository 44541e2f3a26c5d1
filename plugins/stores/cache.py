"""State entries in memory: what is cached, what is not yet on disk, and loading what is neither."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from itertools import count
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
"""A member's number, its time and the end of its life. Without a time it is to go."""

Row = tuple[str, str | None, Fields | FieldChanges | dict[str, Change] | None, int | None]
"""key, value, fields, expires: a row of the table `state`; or of the table `member`, members in place of fields.

A row that was read has `Fields`, a row to be written has changes of fields. With a value and changes of fields, as no
entry has them both, it is a renewal: the value is there, and only lives longer, or it will most likely be renewed soon;
and without `expires`, what was renewed before is another value by now.
"""

_SET = "#"
_BESIDE = 400  # bytes of an entry beside its value: itself, its key, and its place among the others
_BESIDE_FIELD = 150  # likewise of a field, beside its name and its value
_BESIDE_MEMBER = 200
_UNCHANGED = FieldChanges({}, is_first=False)


def set_key(key: str) -> str:
    """Under which a set is known here: it may be looked for where there is a value, and the other way round."""
    return _SET + key


def not_renewed(key: str) -> Row:
    return key, "", _UNCHANGED, None


def is_renewal(row: Row) -> bool:
    return row[1] is not None and row[2] is not None


def is_set(key: str) -> bool:
    return key.startswith(_SET)


def key_of(set_key: str) -> str:
    """The key of a set in the contract's terms."""
    return set_key[len(_SET) :]


Loaded = Callable[[Sequence[Row] | BaseException], None]
Load = Callable[[Sequence[str], Loaded], None]
"""Has the rows of some keys read, of those that have one, and calls with them, or with an error, in the event loop.

Raises `Unavailable` where it cannot even begin; then it does not call.
"""


class Entry:
    """One key's state. An entry that is not there is an Entry without value and fields.

    `dirty`: changed since it was last handed to a commit. `in_flight`: in the commit that is under way.
    `dead`: a commit that held it failed, so whoever has seen it has seen what never was. `written`: the
    value that the file has, if it is one with an end, or will have unless a commit fails and the entry
    dies. `sliding`: the value is one that will most likely be renewed. `fields` that are empty beside a
    value, or without one, are those that the entry had: the next commit removes them.
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
        """About how many bytes it has in memory."""
        if self.fields:
            return _BESIDE + _BESIDE_FIELD * len(self.fields) + self.fields.memory
        return _BESIDE if self.value is None else _BESIDE + text_memory(self.value)

    @property
    def absent(self) -> bool:
        return self.value is None and not self.fields

    @property
    def is_renewed(self) -> bool:
        """Whether all that is to be written of it is that it lives longer."""
        return self.value is not None and self.value == self.written and self.expires is not None

    def row(self, *, early: bool = False) -> Row:
        """What is to be written of it. `early`: as a renewal also where the value is new, if it is a sliding one."""
        if self.fields is not None:
            return self._row_of_fields(self.fields)
        renewal = self.is_renewed or (early and self.sliding and self.value is not None and self.expires is not None)
        self.written = None if self.expires is None else self.value
        return self.key, self.value, _UNCHANGED if renewal else None, self.expires

    def _row_of_fields(self, fields: Fields) -> Row:
        changes = fields.take_changes()
        if fields:
            return self.key, None, changes, None
        # The fields in the file go with the row: it is deleted, or gets the value.
        self.fields = None
        self.written = None if self.expires is None else self.value
        return self.key, self.value, None, self.expires

    def merge(self, fields: Mapping[str, Field], keep: int | None, keep_size: int | None) -> tuple[bool, int]:
        """Set fields, in place of a value. Returns whether anything changed, and how many fields went.

        The bounds are those of `State.merge`.
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
        """What `restore` takes to make it as it is now."""
        return self.value, None if self.fields is None else self.fields.copy(), self.expires, self.dirty

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.value, self.fields, self.expires, self.dirty = saved


class SetEntry(Entry):
    """A set: its members with their times, in order, and what of them has changed since the last commit.

    `expires` is the end of the longest life among them. Each has a number, which is that of its row in the file.
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
        """A new member gets the next of `numbers`."""
        if not self.members:
            self.expires = expires
        elif self.expires is not None:
            self.expires = None if expires is None else max(self.expires, expires)
        if self.members.pop(member, None) is None:
            self._memory += text_memory(member)
        behind = []  # most are the newest, or have few behind them that always come last
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
            gone = self.changes.get(member)  # and not yet from the file
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
    """At most `limit` entries of at most `size` bytes; those not yet on disk come on top and are never let go."""

    def __init__(
        self,
        limit: int,
        load: Load,
        members: int = 0,
        definitely_absent: Callable[[str], bool] = lambda key: False,
        *,
        size: int = 1 << 62,
    ) -> None:
        """`definitely_absent` tells of some keys that the file has nothing of them."""
        self.numbers = count(members + 1)
        """Of members of sets that are new; `members` is the highest there has been."""
        self._definitely_absent = definitely_absent
        self._limit = limit
        self._size = size
        self.weight = 0
        """About how many bytes the entries have in memory."""
        self._load_rows = load
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._wanted: dict[str, list[asyncio.Future[None]]] = {}
        self._loading: dict[str, list[asyncio.Future[None]]] = {}
        """Who waits for a key that is to be loaded, or is just being loaded."""
        self._together: dict[str, set[str]] = {}
        """The kinds of entries that units have missed next, by that of the entry they missed."""
        self._beginning = False
        """Whether a load is about to begin."""
        self._adrift: set[str] = set()
        """What the file is about to say something else of."""
        self.pinned: frozenset[str] = frozenset()
        """Keys that are not let go of, once they are loaded."""
        self.hits = 0
        self.ruled_out = 0
        self.misses = 0
        """How often what a unit wanted was in memory, was known to be nowhere, and was looked for in the file."""
        self.deleted = False
        """Whether a unit has deleted something since somebody last set it to False."""

    def known(self, key: str) -> Entry | None:
        """The entry, if it is in memory or nowhere. The caller may change it until it next awaits."""
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

    def _remove(self, key: str) -> None:
        self.weight -= self._known.pop(key).weight

    def weigh(self, entry: Entry) -> None:
        """It has changed."""
        if self._known.get(entry.key) is entry:
            before, entry.weight = entry.weight, entry.weigh()
            self.weight += entry.weight - before

    @property
    def count(self) -> int:
        """How many are in memory."""
        return len(self._known)

    async def get(self, key: str, after: str | None = None) -> Entry:
        """The entry, from memory or from the file. The caller may change it until it next awaits.

        `after` is what the caller has missed before: where that is of the same visitor, whoever misses one of its kind
        from now on has this kind loaded with it, rather than miss it next.
        """
        entry = self.known(key)
        if entry is None:
            self.misses += 1
            if after is not None:
                self._learn(after, key)
        while entry is None:  # it may have been let go of again before our turn came
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
        """Misses of one key share one load, and those of one turn, or of one load's time, one statement."""
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
            # At the end of the turn, with what else is missed in it. In no context: it loads for many.
            asyncio.get_running_loop().call_soon(self._begin, context=Context())

    def _begin(self) -> None:
        """Load what is wanted; or later, where the file is about to say something else of it."""
        self._beginning = False
        if self._loading or not self._wanted or not self._adrift.isdisjoint(self._wanted):
            return
        self._loading, self._wanted = self._wanted, {}
        try:
            self._load_rows([*self._loading], self._loaded)
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            self._loaded(error)

    def _loaded(self, rows: Sequence[Row] | BaseException) -> None:
        loading, self._loading = self._loading, {}
        error = rows if isinstance(rows, BaseException) else None
        if not isinstance(rows, BaseException):
            self._let_go(len(loading))
            found = {row[0]: row[1:] for row in rows}
            for key in loading:
                if key not in self._known:  # it may have been ruled out meanwhile, and have been written to since
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
        """At least so many that weigh at least so much together, if there are."""
        # Those not yet on disk are the busy ones, so they are seldom among the oldest.
        for key, entry in self._known.items():
            if count <= 0 and weight <= 0:
                return
            if not entry.dirty and not entry.in_flight and key not in self.pinned:
                count -= 1
                weight -= entry.weight
                yield key

    def land(self, flown: Iterable[Entry]) -> None:
        """The commit under way has ended, well or not."""
        for entry in flown:
            entry.in_flight = False
        self._adrift.clear()
        self._let_go(0)
        if self._wanted:
            self._begin()

    def kill(self, entry: Entry) -> None:
        """What this entry says never came to be: forget it, and let all who have seen it know."""
        entry.invalidated = True
        entry.dirty = False
        if self._known.get(entry.key) is entry:
            self._remove(entry.key)
            if entry.in_flight:
                self._adrift.add(entry.key)

    def forget(self, keys: Iterable[str]) -> None:
        """The file has changed beside the commits: load these again, but for what is about to be written anyway."""
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
        future.exception()  # nobody may be left to ask
