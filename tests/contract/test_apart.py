"""A journal behind another URL than the state keeps the contract of the journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ingestd.apart import ApartJournal
from ingestd.backend import Backend
from ingestd.findings import Finding
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.testing.journals import JournalContract


class _Apart(Backend):
    """Two files, as one back end."""

    def __init__(self, place: Path) -> None:
        self._both = [SqliteBackend(place / name, cache=100, busy_timeout=1.0) for name in ("state.db", "journal.db")]
        state, journal = self._both
        self.store = state.store
        self.journal = ApartJournal(journal.journal, journal.store, state.store)

    async def open(self, *, serving: bool) -> None:
        for backend in self._both:
            await backend.open(serving=serving)

    async def close(self) -> None:
        for backend in self._both:
            await backend.close()

    def problem(self) -> str | None:
        return next(filter(None, (backend.problem() for backend in self._both)), None)

    async def describe(self) -> Sequence[Finding]:
        return [finding for backend in self._both for finding in await backend.describe()]


class TestApartJournal(JournalContract):
    @asynccontextmanager
    async def backend(self, place: Path) -> AsyncIterator[Backend]:
        backend = _Apart(place)
        await backend.open(serving=True)
        try:
            yield backend
        finally:
            await backend.close()
