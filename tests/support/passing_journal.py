"""A journal that delegates all methods to another journal. Tests override some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, Journal, JournalStats, RecordInfo, Start
from ingestd.api.store import State

__all__ = ["PassingJournal"]


class PassingJournal(Journal):
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def append(self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]) -> None:
        await self._journal.append(appends, then)

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        return await self._journal.commit(records, state, cursor)

    async def find_duplicate(self, key: str, state: State) -> str | None:
        return await self._journal.find_duplicate(key, state)

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        return await self._journal.read(after, limit)

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        await self._journal.wait(after, cursor)

    async def last(self) -> int:
        return await self._journal.last()

    async def ensure_cursor(self, name: str, start: Start) -> int:
        return await self._journal.ensure_cursor(name, start)

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        return await self._journal.acquire_cursor(name, start)

    async def release(self, cursor: Cursor) -> None:
        await self._journal.release(cursor)

    async def cursors(self) -> Sequence[Cursor]:
        return await self._journal.cursors()

    async def extent(self) -> JournalStats:
        return await self._journal.extent()

    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        return await self._journal.outlines(after, limit)

    async def trim(self, up_to: int, limit: int) -> int:
        return await self._journal.trim(up_to, limit)

    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        return await self._journal.replace(changes)
