"""The fields of one entry in memory, oldest first, and their changes that the next commit writes."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping
from typing import NamedTuple

from ingestd.api.store import Field

__all__ = ["FieldChanges", "Fields", "field_size", "text_memory"]

_BESIDE = 50  # bytes of an empty text
_WIDEST = 8  # bytes of a character: four in Python, and four in the UTF-8 copy that Python keeps once it is made


def text_memory(text: str) -> int:
    """An upper bound of a text's memory, in bytes. It never depends on earlier uses of the text."""
    return _BESIDE + (len(text) if text.isascii() else _WIDEST * len(text))


class FieldChanges(NamedTuple):
    """Changed fields by name; None stands for a removed field.

    `with_row`: the file has no row of the entry yet, or one with another expiry.
    """

    fields: Mapping[str, Field | None]
    with_row: bool


class Fields:
    """Fields by name. The cost of a merge depends on the merged fields, not on the fields that are there already."""

    __slots__ = ("_by_name", "_changed", "_in_order", "_with_row", "memory", "size")

    def __init__(self, by_name: Mapping[str, Field] | None = None, *, durable: bool = False) -> None:
        self._by_name = {} if by_name is None else dict(by_name)
        self._in_order = not by_name
        """Whether the oldest come first. Sorting waits until the order matters; newer fields at the end keep it."""
        self._changed: dict[str, Field | None] = {} if durable else {**self._by_name}
        self._with_row = not durable
        self.size = sum([field_size(name, field) for name, field in self._by_name.items()])
        """Size of all names and values, in bytes of UTF-8."""
        self.memory = sum([_memory_of(name, field) for name, field in self._by_name.items()])
        """Approximate memory of all names and values, in bytes."""

    def __len__(self) -> int:
        return len(self._by_name)

    def items(self) -> ItemsView[str, Field]:
        return self._by_name.items()

    def copy(self) -> Fields:
        copy = Fields()
        copy._by_name = {**self._by_name}
        copy._in_order = self._in_order
        copy._changed = {**self._changed}
        copy._with_row = self._with_row
        copy.size, copy.memory = self.size, self.memory
        return copy

    def merge(self, fields: Mapping[str, Field]) -> bool:
        """Set fields. A present field with a later time keeps its value. Returns whether anything changed."""
        by_name = self._by_name
        changed = False
        newest = next(reversed(by_name.items()), None)
        for name, field in sorted(fields.items(), key=_age):
            present = by_name.get(name)
            if present is not None:
                if field.at < present.at or field == present:
                    continue
                self._count(name, present, -1)
                del by_name[name]
            if newest is not None and _age((name, field)) < _age(newest):
                self._in_order = False  # rare: most fields are newer than all before them
            newest = name, field
            by_name[name] = field
            self._changed[name] = field
            self._count(name, field, 1)
            changed = True
        return changed

    def drop_oldest(self, keep: int | None, keep_size: int | None) -> int:
        """Drop the oldest fields beyond `keep` fields or `keep_size` bytes. Returns how many were dropped."""
        gone = 0
        while self._by_name and (
            (keep is not None and len(self._by_name) > keep) or (keep_size is not None and self.size > keep_size)
        ):
            if not self._in_order:
                self._by_name = dict(sorted(self._by_name.items(), key=_age))
                self._in_order = True
            name = next(iter(self._by_name))
            self._count(name, self._by_name.pop(name), -1)
            self._changed[name] = None
            gone += 1
        return gone

    def write_row(self) -> None:
        """Have the next commit write the row of the entry too."""
        self._with_row = True

    def clear(self) -> None:
        self._changed.update(dict.fromkeys(self._by_name))
        self._by_name = {}
        self._in_order = True
        self.size = self.memory = 0

    def _count(self, name: str, field: Field, times: int) -> None:
        self.size += times * field_size(name, field)
        self.memory += times * _memory_of(name, field)

    def take_changes(self) -> FieldChanges:
        """The changes since the last call, for a commit to write."""
        changes = FieldChanges(self._changed, self._with_row)
        self._changed, self._with_row = {}, False
        return changes


def field_size(name: str, field: Field) -> int:
    """Size of a field's name and value, in bytes of UTF-8."""
    return _bytes_of(name) + _bytes_of(field.value)


def _memory_of(name: str, field: Field) -> int:
    return text_memory(name) + text_memory(field.value)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _age(item: tuple[str, Field]) -> tuple[int, str]:
    name, field = item
    return field.at, name
