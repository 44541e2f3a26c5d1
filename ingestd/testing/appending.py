"""Records and appends for the journal suites."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ingestd.api.backend import Backend
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, Journal

__all__ = ["NOW", "append", "append_each", "make_record"]

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon


def make_record(text: str = "x") -> Record:
    return Record("event", NOW, f'{{"id": "{text}"}}'.encode())


async def append(backend: Backend, records: Sequence[Record], cursor: Cursor | None = None) -> int:
    return await backend.journal.commit(records, backend.store.begin(NOW), cursor)


async def append_each(journal: Journal, appends: Sequence[Append]) -> Sequence[Exception | None]:
    """Append the transactions of events, and wait until all have ended. Returns the error of each."""
    ended: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()
    await journal.append(appends, ended.set_result)
    return await ended
