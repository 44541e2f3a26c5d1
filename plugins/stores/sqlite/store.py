"""The state in the SQLite file: transactions, and a scan of all values of a kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ingestd.api.store import State, Store

from ..cached_state import CachedState
from .batch import read_values
from .database import Database

__all__ = ["SqliteStore"]

_SCANNED = 1000  # entries read at a time


class SqliteStore(Store):
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, now: int, *, event: bool = False, step: bool = False) -> CachedState:
        return self._database.begin(now, event=event)

    async def commit(self, state: State) -> None:
        assert isinstance(state, CachedState)
        await self._database.commit(state)

    def discard(self, state: State) -> None:
        assert isinstance(state, CachedState)
        state.undo()

    async def scan(self, kind: str) -> AsyncIterator[tuple[str, str]]:
        # Read the TTL log first: a write-back may move its entries to the rows during the scan.
        renewals = await self._database.renewals_of(kind)
        after = f"{kind}:"
        while page := await self._database.connections.read(read_values, kind, after, _SCANNED):
            for entry in page:
                if entry[0] not in renewals:
                    yield entry
            after = page[-1][0]
        for entry in renewals.items():
            yield entry
