"""What the suites of stores, journals and contents share: their base, and the keys and records that they write."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from ingestd.api.backend import Backend
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, Journal
from ingestd.api.store import state_key

__all__ = ["KEY", "MEMBERS", "NOW", "OTHER", "BackendContract", "append", "append_each", "make_record"]

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
KEY = state_key("contract", "shop", "visitor")
OTHER = state_key("contract", "shop", "another")
MEMBERS = state_key("contract-set", "shop", "visitor")


class BackendContract(ABC):
    """The base of each suite: the test class says how to open its back end."""

    @abstractmethod
    def backend(self, folder: Path) -> AbstractAsyncContextManager[Backend]:
        """An open back end, closed at the end. With the same folder it has the earlier durable data."""


def make_record(text: str = "x") -> Record:
    return Record("event", NOW, f'{{"id": "{text}"}}'.encode())


async def append(backend: Backend, records: Sequence[Record], cursor: Cursor | None = None) -> int:
    return await backend.journal.commit(records, backend.store.begin(NOW), cursor)


async def append_each(journal: Journal, appends: Sequence[Append]) -> Sequence[Exception | None]:
    """Append the transactions of events, and wait until all have ended. Returns the error of each."""
    ended: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()
    await journal.append(appends, ended.set_result)
    return await ended
