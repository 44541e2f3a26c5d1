"""The state in the SQLite file: transactions, and a scan of all values of a kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from ingestd.api import times
from ingestd.api.errors import CommandError
from ingestd.api.store import State, Store, StoreSize, kinds_of, state_key

from ..cached_state import CachedState
from .batch import read_values
from .database import Database
from .size import find_endless, read_size, set_ends

__all__ = ["LOSS_KEY", "SqliteStore"]

LOSS_KEY = state_key("store-loss", "", "")
"""The key of the loss that stands, as a sentence for operators. `ingestd store restore` writes it."""

_SCANNED = 1000  # entries read at a time
_PAUSE = 0.02  # seconds between two changes of many entries, for commits


class SqliteStore(Store):
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, now: int, *, event: bool = False, step: bool = False) -> CachedState:
        database = self._database
        database.clock = max(database.clock, now)
        if database.commits is None:
            return database.guest_commits.begin(now) if event else database.visit(now)
        return CachedState(database.entries, now)

    async def commit(self, state: State) -> None:
        assert isinstance(state, CachedState)
        await self._database.commit(state)

    def discard(self, state: State) -> None:
        assert isinstance(state, CachedState)
        state.undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        for beginning in kinds_of(kind):
            async for entry in self._scan(beginning):
                yield entry

    async def _scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        # Read the TTL log first: a write-back may move its entries to the rows during the scan.
        renewals = (await self._database.log()).of_kind(kind)
        after = f"{kind}:"
        while page := await self._database.connections.read(read_values, kind, after, _SCANNED):
            for entry in page:
                if entry[0] not in renewals:
                    yield entry
            after = page[-1][0]
        for entry in renewals.items():
            yield entry

    async def size(self) -> StoreSize:
        return await self._database.connections.read(read_size, self._database.path)

    async def set_ends(self, kind: str, end: Callable[[str], int]) -> None:
        commits = self._database.commits
        if commits is None:
            raise CommandError("only the daemon can give entries an end")
        after: str | None = f"{kind}:"
        while after is not None:
            after, keys = await self._database.connections.read(find_endless, kind, after, _SCANNED)
            if keys:
                ends = [(key, end(key)) for key in keys]
                self._database.entries.set_ends(ends)
                await commits.commit(also=partial(set_ends, ends))
            await asyncio.sleep(_PAUSE)

    async def look_for_loss(self) -> None:
        if self.loss is not None:  # only a restore causes a loss, and no daemon runs meanwhile
            await self.read_loss()

    async def read_loss(self) -> None:
        """Read the loss of the file that was just opened. Raises `Unavailable`."""
        rows = await self._database.read_rows([LOSS_KEY])
        self.loss = rows[0][1] if rows else None

    async def clear_loss(self) -> bool:
        state = self.begin(times.now())
        stood = await state.get(LOSS_KEY) is not None
        await state.delete(LOSS_KEY)
        await self.commit(state)
        self.loss = None
        return stood
