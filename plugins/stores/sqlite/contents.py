"""All entries in the SQLite file, for `ingestd store copy`."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec

from ingestd.api.contents import Contents, Entry
from ingestd.api.errors import CommandError

from ..cached_state import CachedState
from ..entry import cache_keys, set_key, stored_entry
from .commits import Commits
from .database import Database

__all__ = ["SqliteContents"]

_PAGE = 1000  # entries read at a time

_decode_keys = msgspec.json.Decoder(list[str]).decode


class SqliteContents(Contents):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def entries(self) -> AsyncIterator[Sequence[Entry]]:
        # Read the TTL log first: a write-back may move its entries to the rows during the walk.
        logged = dict.fromkeys((await self._database.log()).named())
        async for keys in self._keys("state"):
            yield await self._read([key for key in keys if key not in logged])
        rest = [*logged]
        for start in range(0, len(rest), _PAGE):
            yield await self._read(rest[start : start + _PAGE])
        async for keys in self._keys("member"):
            yield await self._read([*map(set_key, keys)])

    async def _keys(self, table: str) -> AsyncIterator[list[str]]:
        after = ""
        while keys := await self._database.connections.read(_select_keys, table, after):
            after = keys[-1]
            yield keys

    async def _read(self, keys: Sequence[str]) -> list[Entry]:
        """The entries with some keys of the cache, in any order."""
        found = map(stored_entry, await self._database.read_rows(keys))
        return [entry for entry in found if entry is not None]

    async def all_keys(self) -> AsyncIterator[Sequence[str]]:
        yield (await self._database.log()).named()
        for table in ("state", "member"):
            async for keys in self._keys(table):
                yield keys

    async def find(self, entries: Sequence[Entry]) -> Sequence[Entry | None]:
        keys = [entry.key for entry in entries]
        states = {entry.key: entry for entry in await self._read(keys)}
        sets = {entry.key: entry for entry in await self._read([*map(set_key, keys)])}
        return [_both(states.get(key), sets.get(key)) for key in keys]

    async def replace(self, entries: Sequence[Entry]) -> None:
        state = self._begin()
        await state.load(cache_keys(entries))
        for entry in entries:
            await state.delete(entry.key)
            if entry.value is not None:
                await state.put(entry.key, entry.value, entry.expires)
            await state.merge(entry.key, entry.fields or {}, ttl=entry.expires)
            members = entry.members or {}
            for member, at in members.items():
                await state.push(entry.key, member, at, keep=len(members), ttl=entry.expires)
        await self._database.commit(state)

    async def remove(self, entries: Sequence[Entry]) -> None:
        state = self._begin()
        await state.load(cache_keys(entries))
        for entry in entries:
            await state.delete(entry.key)
        await self._database.commit(state)

    def _begin(self) -> CachedState:
        """A transaction at the time 0, when nothing has expired yet: a lifetime then counts to the expiry itself."""
        self._owned()
        return CachedState(self._database.entries, 0)

    async def continue_after(self, position: int) -> None:
        commits = self._owned()
        await commits.commit(also=partial(_set_last, position))
        commits.last = position

    def _owned(self) -> Commits:
        commits = self._database.commits
        if commits is None:
            raise CommandError(f"{self._database.path}: a daemon has the file; stop it first")
        return commits


def _select_keys(connection: sqlite3.Connection, table: str, after: str) -> list[str]:
    """The next keys of a table, in order, each once."""
    query = f"SELECT DISTINCT key FROM {table} WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608 - two tables
    (text,) = connection.execute(f"SELECT json_group_array(key) FROM ({query})", (after, _PAGE)).fetchone()  # noqa: S608 - constant
    return _decode_keys(text)


def _both(state: Entry | None, members: Entry | None) -> Entry | None:
    """What a key has. If it has both, which it should not, the entry equals no other one, so a copy replaces it."""
    if state is None or members is None:
        return state or members
    return msgspec.structs.replace(state, members=members.members)


def _set_last(position: int, connection: sqlite3.Connection, _: int) -> None:
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'journal'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('journal', ?)", (position,))
