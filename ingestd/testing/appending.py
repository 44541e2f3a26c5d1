"""Records and appends for the journal suites."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api.backend import Backend
from ingestd.api.events import Record
from ingestd.api.journal import Cursor

__all__ = ["NOW", "append", "make_record"]

NOW = 1_795_233_906_000


def make_record(text: str = "x") -> Record:
    return Record("event", NOW, f'{{"id": "{text}"}}'.encode())


async def append(backend: Backend, records: Sequence[Record], cursor: Cursor | None = None) -> int:
    return await backend.journal.append(records, backend.store.begin(NOW), cursor)
