"""The journal's side of the file: reading, waiting, places of consumers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingestd.errors import CommandError
from ingestd.events import Record
from ingestd.journal import Cursor, Journal, Start
from ingestd.store import State

from .state import SqliteState

if TYPE_CHECKING:
    from .backend import SqliteBackend
    from .commits import Commits

__all__ = ["SqliteJournal", "last_position"]


class SqliteJournal(Journal):
    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend

    async def append(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        assert isinstance(state, SqliteState)
        return await self._backend.write(state, records, cursor)

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        def select(connection: sqlite3.Connection) -> list[Record]:
            rows = connection.execute(
                "SELECT type, at, body, position FROM journal WHERE position > ? ORDER BY position LIMIT ?",
                (after, limit),
            )
            return [Record(*row) for row in rows]

        return await self._backend.read(select)

    async def wait(self, after: int) -> None:
        commits = self._owned()
        while commits.last <= after:
            await commits.committed.wait()

    async def last(self) -> int:
        if self._backend.commits is not None:
            return self._backend.commits.last
        return await self._backend.read(last_position)

    async def hold(self, name: str, start: Start) -> Cursor:
        self._owned()  # the file has one owner, so no other holder can be waited for

        def select(connection: sqlite3.Connection) -> int | None:
            row = connection.execute("SELECT position FROM cursors WHERE name = ?", (name,)).fetchone()
            return None if row is None else int(row[0])

        position = await self._backend.read(select)
        if position is not None:
            return Cursor(name, position)
        cursor = Cursor(name, await self.last() if start == "now" else 0)
        await self._backend.write(SqliteState(self._backend.entries, 0), (), cursor)
        return cursor

    def _owned(self) -> Commits:
        if self._backend.commits is None:
            raise CommandError("only the daemon itself can consume the journal")
        return self._backend.commits


def last_position(connection: sqlite3.Connection) -> int:
    """Of the newest record there ever was: positions are not reused."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
    return 0 if row is None else int(row[0])
