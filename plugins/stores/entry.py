"""Entries of the cache of state: the state of one key in memory, and its changes that are not stored yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ingestd.api import contents
from ingestd.api.store import Field

from .fields import FieldChanges, Fields, text_memory

__all__ = [
    "Change",
    "KeyState",
    "Row",
    "SetEntry",
    "cache_keys",
    "is_renewal",
    "is_set",
    "key_of",
    "make_entry",
    "not_renewed",
    "set_key",
    "stored_entry",
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
_BESIDE = 400  # bytes of an entry without its value: the object, its key, and its slot in the cache
_BESIDE_FIELD = 150  # the same for a field, without its name and its value
_BESIDE_MEMBER = 200
_UNCHANGED = FieldChanges({}, with_row=False)


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


class KeyState:
    """The state of one key. A key without state has a KeyState without value and fields.

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
            return self.key, None, changes, self.expires
        # The row's fields in the file disappear with it: the row is deleted, or gets the value.
        self.fields = None
        self.written = None if self.expires is None else self.value
        return self.key, self.value, None, self.expires

    def merge(
        self, fields: Mapping[str, Field], keep: int | None, keep_size: int | None, now: int, ttl: int | None
    ) -> tuple[bool, int]:
        """Set fields; a value is replaced. Returns whether anything changed, and how many fields were dropped.

        `State.merge` explains the bounds.
        """
        present = Fields() if self.fields is None else self.fields
        if self.expires is not None and self.expires < now:
            present.clear()
        expires = None if ttl is None else now + ttl
        has_life = len(present) > 0
        if has_life:
            expires = None if expires is None or self.expires is None else max(expires, self.expires)
        lives_on = has_life and expires == self.expires
        changed = present.merge(fields) or (has_life and not lives_on)
        gone = present.drop_oldest(keep, keep_size)
        if changed:
            if not lives_on:
                present.write_row()
            self.value, self.fields, self.expires = None, present, expires
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


class SetEntry(KeyState):
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


def make_entry(key: str, row: tuple[Any, Any, Any] | None) -> KeyState:
    if not is_set(key):
        return KeyState(key) if row is None else KeyState(key, *row)
    return SetEntry(key) if row is None else SetEntry(key, row[1])


def stored_entry(row: Row) -> contents.Entry | None:
    """The content of a row that was read, as `Contents` gives it; None for a row without content."""
    entry = make_entry(row[0], row[1:])
    if entry.absent:
        return None
    if isinstance(entry, SetEntry):
        return contents.Entry(key_of(entry.key), members=entry.members, expires=entry.expires)
    fields = dict(entry.fields.items()) if entry.fields else None
    return contents.Entry(entry.key, entry.value, fields, expires=entry.expires)


def cache_keys(entries: Iterable[contents.Entry]) -> list[str]:
    """The keys under which the cache has these entries, whether they are sets or not."""
    return [name for entry in entries for name in (entry.key, set_key(entry.key))]
