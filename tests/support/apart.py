"""Two back ends used as one: the state is in one of them and the journal in the other."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api.backend import Backend
from ingestd.api.check_result import CheckResult
from ingestd.storage.split_journal import SplitJournal

__all__ = ["Apart"]


class Apart(Backend):
    """`home` is the store beside the journal."""

    def __init__(self, state: Backend, journal: Backend) -> None:
        self._both = [state, journal]
        self.home = journal.store
        self.store = state.store
        self.journal: SplitJournal = SplitJournal(journal.journal, journal.store, state.store)

    async def open(self, *, serving: bool) -> None:
        for backend in self._both:
            await backend.open(serving=serving)

    async def close(self) -> None:
        for backend in self._both:
            await backend.close()

    def problem(self) -> str | None:
        return next(filter(None, (backend.problem() for backend in self._both)), None)

    async def describe(self) -> Sequence[CheckResult]:
        return [finding for backend in self._both for finding in await backend.describe()]
