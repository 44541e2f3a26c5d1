"""A journal that lives apart from the state, behind another URL: two commits, the state's first."""

from __future__ import annotations

from collections.abc import Sequence

from .events import Record
from .journal import Cursor, Extent, Journal, Outline, Start
from .store import State, Store

__all__ = ["ApartJournal"]


class ApartJournal(Journal):
    """`store` is where the units' state lives, `home` the store beside the journal itself.

    What a failed append leaves behind in the state (a session, a link) is harmless: the event is
    refused, and sent again it finds them. A consumer's state may be ahead of its place after a crash,
    so what consumers write must bear being written twice.
    """

    def __init__(self, journal: Journal, home: Store, store: Store) -> None:
        self._journal = journal
        self._home = home
        self._store = store

    async def append(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        await self._store.commit(state)
        return await self._journal.append(records, self._home.begin(state.now), cursor)

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        return await self._journal.read(after, limit)

    async def wait(self, after: int) -> None:
        await self._journal.wait(after)

    async def last(self) -> int:
        return await self._journal.last()

    async def hold(self, name: str, start: Start) -> Cursor:
        return await self._journal.hold(name, start)

    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        return await self._journal.replace(changes)

    async def cursors(self) -> Sequence[Cursor]:
        return await self._journal.cursors()

    async def extent(self) -> Extent:
        return await self._journal.extent()

    async def outlines(self, after: int, limit: int) -> Sequence[Outline]:
        return await self._journal.outlines(after, limit)

    async def trim(self, up_to: int, limit: int) -> int:
        return await self._journal.trim(up_to, limit)
