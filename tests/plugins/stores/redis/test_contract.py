"""The Redis back end keeps the contracts of stores and journals, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha1
from pathlib import Path

import pytest

from ingestd.api.backend import Backend
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.contents import ContentsContract
from ingestd.testing.journals import JournalContract
from ingestd.testing.stores import StoreContract
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


class _Redis:
    @pytest.fixture(autouse=True)
    def _serve(self, server: RedisServer) -> None:
        self.server = server

    @asynccontextmanager
    async def backend(self, folder: Path) -> AsyncIterator[Backend]:
        prefix = sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"
        pool = make_pool(self.server.url, (), timeout=2)
        backend = RedisBackend(pool, prefix=prefix, timeout=2, patience=5)
        await backend.open(serving=True)
        try:
            yield backend
        finally:
            await backend.close()


class TestRedisStore(_Redis, StoreContract):
    pass


class TestRedisJournal(_Redis, JournalContract):
    pass


class TestRedisJournalOfSmallPieces(_Redis, JournalContract):
    @pytest.fixture(autouse=True)
    def _divide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ingestd.plugins.stores.redis.link.PIECE_BYTES", 500)


class TestRedisContents(_Redis, ContentsContract):
    pass
