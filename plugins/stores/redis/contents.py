"""All entries on Redis, for `ingestd store copy`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ingestd.api import times
from ingestd.api.contents import Contents, Entry

from ..entry import Row, set_key
from ..stored_entries import arrange, cache_keys, entries_of
from .database import Database, literal
from .state import loaded_row

__all__ = ["RedisContents"]

_PAGE = 250  # entries of one read: Redis does nothing else meanwhile
_SCANNED = 1000  # keys of one step of a scan
_SEEN = 1_000_000  # keys that one scan remembers, in some 100 MB

_CLAIM = "claim:"
"""In front of idempotency keys, which are apart from the state."""
_KEY = re.compile(r"(?!batch:)(?:claim:)?[^:]+:([0-9a-f]{32})")
"""The keys of entries. Other keys have the journal, names of fields, and results of batches."""


class RedisContents(Contents):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def entries(self) -> AsyncIterator[Sequence[Entry]]:
        # A scan may give a key twice. Large stores are scanned several times, each time for a part of the keys, so that
        # the remembered keys of a scan need a bounded memory.
        slot = self._database.slot
        (size,) = await self._database.pipeline(("DBSIZE",) if slot is None else ("CLUSTER", "COUNTKEYSINSLOT", slot))
        parts = size // _SEEN + 1
        for kind in ("string", "hash", "zset"):
            for part in range(parts):
                async for keys in self._scan(kind, part, parts):
                    names = [set_key(key) for key in keys] if kind == "zset" else keys
                    yield entries_of(await self._load(names))

    async def _scan(self, kind: str, part: int, parts: int) -> AsyncIterator[list[str]]:
        """The keys of one type in one of `parts` parts, each key once."""
        prefix = self._database.prefix
        seen: set[str] = set()
        waiting: list[str] = []
        async for found in self._keys(kind):
            for raw in found:
                key = raw.decode()[len(prefix) :]
                match = _KEY.fullmatch(key)
                if match and int(match[1][:8], 16) % parts == part and key not in seen:
                    seen.add(key)
                    waiting.append(key)
            while len(waiting) >= _PAGE:
                yield waiting[:_PAGE]
                waiting = waiting[_PAGE:]
        if waiting:
            yield waiting

    async def _keys(self, kind: str) -> AsyncIterator[Sequence[bytes]]:
        """The keys of one type in pages, of whatever use; a key may come twice."""
        prefix = self._database.prefix
        if self._database.slot is not None:
            async for keys in self._database.keys(prefix):
                types = await self._database.pipeline(*(("TYPE", key) for key in keys))
                yield [key for key, found in zip(keys, types, strict=True) if found == kind.encode()]
            return
        position = 0
        while True:
            command = ("SCAN", position, "MATCH", literal(prefix) + "*", "COUNT", _SCANNED, "TYPE", kind)
            ((position, found),) = await self._database.pipeline(command)
            position = int(position)
            yield found
            if not position:
                return

    async def _load(self, names: Sequence[str]) -> list[Row]:
        """The rows under some names of the cache, or of Redis."""
        rows: list[Row] = []
        for start in range(0, len(names), _PAGE):
            some = names[start : start + _PAGE]
            answer = await self._database.link.ask("load", 0, some, weight=len(some))
            rows += [loaded_row(_key(name), found) for name, found in zip(some, answer, strict=True) if found]
        return rows

    async def find(self, entries: Sequence[Entry]) -> Sequence[Entry | None]:
        claims = {entry.key for entry in entries if entry.is_idempotency_key}
        names = [_CLAIM + name if name in claims else name for name in cache_keys(entries)]
        return arrange(entries, await self._load(names))

    async def replace(self, entries: Sequence[Entry]) -> None:
        await self._write([each for entry in entries for each in (("delete", _name(entry)), _write_of(entry))])
        self._forget(entries)

    async def remove(self, entries: Sequence[Entry]) -> None:
        await self._write([("delete", _name(entry)) for entry in entries])
        self._forget(entries)

    async def _write(self, writes: Sequence[Any]) -> None:
        """Commit writes in the form of batch.lua."""
        await self._database.link.ask("commit", times.now(), (), 0, None, (), writes, (), weight=len(writes))

    def _forget(self, entries: Iterable[Entry]) -> None:
        self._database.entries.forget(cache_keys(entries))

    async def continue_after(self, position: int) -> None:
        await self._database.link.ask("continue_after", 0, position)


def _name(entry: Entry) -> str:
    """The key on Redis, without the prefix of all keys."""
    return _CLAIM + entry.key if entry.is_idempotency_key else entry.key


def _key(name: str) -> str:
    return name.removeprefix(_CLAIM)


def _write_of(entry: Entry) -> tuple[Any, ...]:
    """The write of a whole entry, in the form of batch.lua."""
    name = _name(entry)
    if entry.value is not None:
        return "value", name, entry.value, entry.expires
    if entry.fields is not None:
        return "fields", name, [(field, *content) for field, content in entry.fields.items()], ()
    return "members", name, [*(entry.members or {}).items()], (), entry.expires
