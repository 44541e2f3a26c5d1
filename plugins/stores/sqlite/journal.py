"""The journal in the SQLite file: appending, reading, waiting, cursors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from ingestd.api.errors import CommandError, DuplicateMessage, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, Journal, JournalStats, RecordInfo, Start
from ingestd.api.store import State

from ..cached_state import CachedState
from .batch import last_position, read_records
from .commits import Commits
from .database import Database
from .guest_commits import put_idempotency_key
from .pending import Pending
from .removal import make_replacement
from .size import next_bound, read_extent, read_outlines, remove

__all__ = ["SqliteJournal"]


def _ours(state: State) -> CachedState:
    assert isinstance(state, CachedState)
    return state


class _Appending:
    """The transactions of one call of `append`."""

    __slots__ = ("_appends", "_errors", "_left", "_then")

    def __init__(self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]) -> None:
        self._appends = appends
        self._then = then
        self._errors: list[Exception | None] = [None] * len(appends)
        self._left = len(appends)

    async def begin(self, commits: Commits | None) -> None:
        if commits is None or not self._appends:
            self._then([Unavailable("The store is closed.")] * len(self._appends))
            return
        for index, append in enumerate(self._appends):
            state, records = _ours(append.state), () if append.record is None else (append.record,)
            pending = Pending(state.seen, partial(self._settle, index, state), records)
            try:
                # No pause between the key and the record: another transaction could store a key that it has seen.
                if append.idempotency_key is not None and (earlier := await put_idempotency_key(append)) is not None:
                    self._errors[index] = DuplicateMessage(earlier)
                    pending.records = ()  # the transaction is committed, so that the earlier message is durable
                commits.begin(pending)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                pending.error = error
                self._settle(index, state, pending)

    def _settle(self, index: int, state: CachedState, pending: Pending) -> None:
        if pending.error is None:
            state.committed()
        else:
            self._errors[index] = pending.error
            state.undo()
        self._left -= 1
        if not self._left:
            self._then(self._errors)


class SqliteJournal(Journal):
    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]
    ) -> Coroutine[Any, Any, None]:
        if self._database.is_guest:
            return self._append_as_guest(appends, then)
        return _Appending(appends, then).begin(self._database.commits)

    async def _append_as_guest(
        self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]
    ) -> None:
        self._database.guest_commits.append(appends, then)

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        return await self._database.commit(_ours(state), records, cursor)

    async def find_duplicate(self, key: str, state: State) -> str | None:
        return await state.get(key)

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        commits = self._database.commits
        recent = commits.tail.read(after, limit) if commits is not None else None
        return recent if recent is not None else await self._database.connections.read(read_records, after, limit)

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        await self._owned().wait(after)

    async def last(self) -> int:
        if self._database.commits is not None:
            return self._database.commits.last
        return await self._database.connections.read(last_position)

    async def ensure_cursor(self, name: str, start: Start) -> int:
        return (await self.acquire_cursor(name, start)).position

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        commits = self._owned()  # a file has one owner, so no other daemon can hold the cursor

        def select(connection: sqlite3.Connection) -> tuple[int | None, int]:
            row = connection.execute("SELECT position FROM cursors WHERE name = ?", (name,)).fetchone()
            return (None if row is None else int(row[0])), read_extent(connection).first - 1

        position, removed = await self._database.connections.read(select)
        if position is not None:
            return Cursor(name, max(position, removed))
        cursor = Cursor(name, commits.last if start == "now" else removed)
        await commits.commit(cursor=cursor)
        return cursor

    async def release(self, cursor: Cursor) -> None:
        """Nothing to do: no other daemon can hold the cursor."""

    async def cursors(self) -> Sequence[Cursor]:
        def select(connection: sqlite3.Connection) -> list[Cursor]:
            return [Cursor(*row) for row in connection.execute("SELECT name, position FROM cursors ORDER BY name")]

        return await self._database.connections.read(select)

    async def extent(self) -> JournalStats:
        return await self._database.connections.read(read_extent)

    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        return await self._database.connections.read(read_outlines, after, limit)

    async def trim(self, up_to: int, limit: int) -> int:
        commits = self._owned()
        bound = await self._database.connections.read(next_bound, up_to, limit)
        if bound is None:
            return 0
        commits.tail.forget(bound)
        removed: list[int] = []
        await commits.commit(also=lambda connection, _: removed.append(remove(connection, bound)))
        return removed[-1]

    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        return await self._database.replace([make_replacement(record, body) for record, body in changes])

    def _owned(self) -> Commits:
        if self._database.commits is None:
            raise CommandError("only the daemon can consume or trim the journal")
        return self._database.commits
