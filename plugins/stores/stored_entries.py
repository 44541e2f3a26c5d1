"""Stored entries as `Contents` gives them, from the rows that a back end has read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingestd.api.contents import Entry

from .entry import Row, key_of, set_key
from .fields import Fields

__all__ = ["arrange", "cache_keys", "entries_of"]


def entries_of(rows: Iterable[Row]) -> list[Entry]:
    """The entries of rows that were read. A row without a value, fields and members is no entry."""
    entries = map(_entry_of, rows)
    return [entry for entry in entries if entry.value is not None or entry.fields or entry.members]


def _entry_of(row: Row) -> Entry:
    key, value, content, expires = row
    if isinstance(content, dict):
        members = {member: at for member, (_, at, _) in content.items() if at is not None}
        ends = [end for _, _, end in content.values()]
        # As in the cache: a set lives as long as its last member.
        whole = None if None in ends else max((end for end in ends if end is not None), default=None)
        return Entry(key_of(key), members=members, expires=whole)
    if isinstance(content, Fields) and content:
        return Entry(key, fields=dict(content.items()))
    return Entry(key, value, expires=expires)


def cache_keys(entries: Iterable[Entry]) -> list[str]:
    """The keys under which the rows of these entries are read, whether they are sets or not."""
    return [name for entry in entries for name in (entry.key, set_key(entry.key))]


def arrange(entries: Sequence[Entry], rows: Iterable[Row]) -> list[Entry | None]:
    """The rows that were read for these entries, in their order."""
    found = {entry.key: entry for entry in entries_of(rows)}
    return [found.get(entry.key) for entry in entries]
