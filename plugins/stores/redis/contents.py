"""All entries on Redis, for `ingestd store copy`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ingestd.api import times
from ingestd.api.contents import Contents, Entry
from ingestd.api.errors import CommandError

from ..entry import cache_keys, set_key, stored_entry
from .database import Database
from .state import ANY_PLACEMENT, loaded_row

__all__ = ["RedisContents"]

_PAGE = 250  # entries of one read: Redis does nothing else meanwhile
_SEEN = 1_000_000  # keys that one scan remembers, in some 100 MB

_CLAIM = "claim:"
"""In front of idempotency keys, which are apart from the state."""
_NAME = re.compile(r"(?!batch:)(?:claim:)?[^:]+:[0-9a-f]{32}")
"""The names of entries. Other keys have the journal, names of fields, and results of batches."""


class RedisContents(Contents):
    notes_changes = True

    def __init__(self, database: Database) -> None:
        self._database = database

    async def entries(self) -> AsyncIterator[Sequence[Entry]]:
        # A scan may give a key twice. Large stores are scanned several times, each time for a part of the keys, so that
        # the remembered keys of a scan need a bounded memory.
        slot = self._database.slot
        (size,) = await self._database.pipeline(("DBSIZE",) if slot is None else ("CLUSTER", "COUNTKEYSINSLOT", slot))
        parts = size // _SEEN + 1
        for part in range(parts):
            async for names in self._scan(part, parts):
                yield [entry for entry in await self._load(names) if entry is not None]

    async def _scan(self, part: int, parts: int) -> AsyncIterator[list[str]]:
        """The names of entries in one of `parts` parts, each name once."""
        seen: set[str] = set()
        waiting: list[str] = []
        async for names in self._names():
            for name in names:
                if (parts == 1 or int(name[-32:-24], 16) % parts == part) and name not in seen:
                    seen.add(name)
                    waiting.append(name)
            while len(waiting) >= _PAGE:
                yield waiting[:_PAGE]
                waiting = waiting[_PAGE:]
        if waiting:
            yield waiting

    async def _names(self) -> AsyncIterator[list[str]]:
        """The names of all entries in pages; a name may come twice."""
        async for names in self._database.names(""):
            yield [name for name in names if _NAME.fullmatch(name)]

    async def all_keys(self) -> AsyncIterator[Sequence[str]]:
        async for names in self._names():
            yield [_key(name) for name in names]

    async def find(self, entries: Sequence[Entry]) -> Sequence[Entry | None]:
        return await self._load([_name(entry) for entry in entries])

    async def _load(self, names: Sequence[str]) -> list[Entry | None]:
        """The entries with some names, in their order."""
        entries: list[Entry | None] = []
        for start in range(0, len(names), _PAGE):
            some = names[start : start + _PAGE]
            answer = await self._database.link.ask("entries", 0, some, weight=len(some))
            entries += map(_entry_of, some, answer)
        return entries

    async def replace(self, entries: Sequence[Entry]) -> None:
        await self._write([each for entry in entries for each in (("delete", _name(entry)), _write_of(entry))])
        self._forget(entries)

    async def remove(self, entries: Sequence[Entry]) -> None:
        await self._write([("delete", _name(entry)) for entry in entries])
        self._forget(entries)

    async def _write(self, writes: Sequence[Any]) -> None:
        """Commit writes in the form of batch.lua."""
        operation = ("commit", times.now(), (), 0, None, (), writes, (), ANY_PLACEMENT)
        await self._database.link.ask(*operation, weight=len(writes))

    def _forget(self, entries: Iterable[Entry]) -> None:
        self._database.entries.forget(cache_keys(entries))

    async def note_changes(self, name: int) -> None:
        await self._database.link.ask("note_changes", 0, name)

    async def take_changes(self, name: int, limit: int) -> Sequence[str]:
        found = await self._database.link.ask("take_changes", 0, name, limit)
        if found is False:
            raise CommandError("another command has begun to move a tenant, or too much has changed since; try again")
        return [_key(each) for each in found]

    async def continue_after(self, position: int) -> None:
        await self._database.link.ask("continue_after", 0, position)


def _name(entry: Entry) -> str:
    """The key on Redis, without the prefix of all keys."""
    return _CLAIM + entry.key if entry.is_idempotency_key else entry.key


def _key(name: str) -> str:
    return name.removeprefix(_CLAIM)


def _entry_of(name: str, found: Any) -> Entry | None:
    """The entry in an answer: a raw value, or a type with a list of fields or members."""
    if not found:
        return None
    key = _key(name)
    if isinstance(found, str):
        return stored_entry(loaded_row(key, found))
    kind, flat, *end_of_fields = found
    if kind == "hash":
        return stored_entry(loaded_row(key, [*filter(None, end_of_fields), *flat]))
    return stored_entry(loaded_row(set_key(key), flat))


def _write_of(entry: Entry) -> tuple[Any, ...]:
    """The write of a whole entry, in the form of batch.lua."""
    name = _name(entry)
    if entry.value is not None:
        return "value", name, entry.value, entry.expires
    if entry.fields is not None:
        return "fields", name, [(field, *content) for field, content in entry.fields.items()], (), entry.expires
    return "members", name, [*(entry.members or {}).items()], (), entry.expires
