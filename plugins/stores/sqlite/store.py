"""The state in the SQLite file: transactions, and a scan of all values of a kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ingestd.api import times
from ingestd.api.store import State, Store, state_key

from ..cached_state import CachedState
from .batch import read_values
from .database import Database

__all__ = ["LOSS_KEY", "SqliteStore"]

LOSS_KEY = state_key("store-loss", "", "")
"""The key of the loss that stands, as a sentence for operators. `ingestd store restore` writes it."""

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
