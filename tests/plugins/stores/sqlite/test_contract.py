"""The SQLite back end keeps the contracts of stores and journals, with its usual cache and with a tiny one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ingestd.api.backend import Backend
from ingestd.plugins.stores.sqlite import SqliteBackend
from ingestd.testing.contents import ContentsContract
from ingestd.testing.journals import JournalContract
from ingestd.testing.stores import StoreContract


class _Sqlite:
    cache = 200_000

    @asynccontextmanager
    async def backend(self, folder: Path) -> AsyncIterator[Backend]:
        backend = SqliteBackend(folder / "ingestd.db", cache=self.cache, busy_timeout=1.0)
        await backend.open(serving=True)
        try:
            yield backend
        finally:
            await backend.close()


class TestSqliteStore(_Sqlite, StoreContract):
    pass


class TestSqliteStoreWithoutCache(_Sqlite, StoreContract):
    cache = 1


class TestSqliteJournal(_Sqlite, JournalContract):
    pass


class TestSqliteContents(_Sqlite, ContentsContract):
    pass


class TestSqliteContentsWithoutCache(_Sqlite, ContentsContract):
    cache = 1
