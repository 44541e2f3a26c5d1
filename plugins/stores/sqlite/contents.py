"""All entries in the SQLite file, for `ingestd store copy`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial

from ingestd.api.contents import Contents, Entry
from ingestd.api.errors import CommandError

from ..cached_state import CachedState
from ..entry import set_key
from ..stored_entries import arrange, cache_keys, entries_of
from .commits import Commits
from .database import Database

__all__ = ["SqliteContents"]

_PAGE = 1000  # entries read at a time

_STATES = "SELECT key FROM state WHERE key > ? ORDER BY key LIMIT ?"
_SETS = "SELECT DISTINCT key FROM member WHERE key > ? ORDER BY key LIMIT ?"


class SqliteContents(Contents):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def entries(self) -> AsyncIterator[Sequence[Entry]]:
        # Read the TTL log first: a write-back may move its entries to the rows during the walk.
        logged = await self._database.logged_keys()
        after = ""
        while keys := await self._keys(_STATES, after):
            after = keys[-1]
            yield await self._read([key for key in keys if key not in logged])
        rest = [*logged]
        for start in range(0, len(rest), _PAGE):
            yield await self._read(rest[start : start + _PAGE])
        after = ""
        while keys := await self._keys(_SETS, after):
            after = keys[-1]
            yield await self._read([set_key(key) for key in keys])

    async def _keys(self, query: str, after: str) -> list[str]:
        return await self._database.connections.read(_select_keys, query, after)

    async def _read(self, keys: Sequence[str]) -> list[Entry]:
        return entries_of(await self._database.read_rows(keys))

    async def find(self, entries: Sequence[Entry]) -> Sequence[Entry | None]:
        return arrange(entries, await self._database.read_rows(cache_keys(entries)))

    async def replace(self, entries: Sequence[Entry]) -> None:
        state = self._begin()
        await state.load(cache_keys(entries))
        for entry in entries:
            await state.delete(entry.key)
            if entry.value is not None:
                await state.put(entry.key, entry.value, entry.expires)
            await state.merge(entry.key, entry.fields or {})
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
        return self._database.begin(0)

    async def continue_after(self, position: int) -> None:
        commits = self._owned()
        await commits.commit(also=partial(_set_last, position))
        commits.last = position

    def _owned(self) -> Commits:
        commits = self._database.commits
        if commits is None:
            raise CommandError(f"{self._database.path}: a daemon has the file; stop it first")
        return commits


def _select_keys(connection: sqlite3.Connection, query: str, after: str) -> list[str]:
    (text,) = connection.execute(f"SELECT json_group_array(key) FROM ({query})", (after, _PAGE)).fetchone()  # noqa: S608 - constant
    keys: list[str] = json.loads(text)
    return keys


def _set_last(position: int, connection: sqlite3.Connection, _: int) -> None:
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'journal'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('journal', ?)", (position,))
