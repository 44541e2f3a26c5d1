"""All tests of attribution, with the state and the journal on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from hashlib import sha1
from itertools import repeat
from pathlib import Path

import pytest

from ingestd.api.backend import Backend
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.support.periodic import TIMING
from tests.plugins.attribution import (
    test_attribution,
    test_bounds,
    test_refunds,
    test_replay,
    test_rollups,
)
from tests.plugins.attribution.test_replay import LONG_AFTER, RULES, busy
from tests.support import attribution
from tests.support.attribution import attributing
from tests.support.backends import sqlite_backend
from tests.support.journals import append
from tests.support.redis_server import RedisServer, redis_server

LEASE = 0.5  # seconds: short, because some tests kill the holder repeatedly

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

for module in (
    test_attribution,
    test_bounds,
    test_refunds,
    test_replay,
    test_rollups,
):
    globals().update({name: each for name, each in vars(module).items() if name.startswith("test_")})


def on_redis(server: RedisServer, folder: Path) -> Backend:
    pool = make_pool(server.url, (), timeout=5)
    return RedisBackend(pool, prefix=prefix_of(folder), timeout=5, patience=10)


def prefix_of(folder: Path) -> str:
    """The prefix of keys for the tests in this folder."""
    return sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def arrangement(server: RedisServer) -> Iterator[None]:
    with arranged(server, on_redis):
        yield


@contextmanager
def arranged(server: RedisServer, make: Callable[[RedisServer, Path], Backend]) -> Iterator[None]:
    """Replace the SQLite back end of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribution, "sqlite_backend", opener(server, make))
        patch.setattr(TIMING, "redis_lease", LEASE)
        patch.setattr(TIMING, "redis_heartbeat", LEASE / 3)
        patch.setattr(TIMING, "redis_cursor", LEASE / 10)
        yield


def opener(
    server: RedisServer, make: Callable[[RedisServer, Path], Backend]
) -> Callable[[Path], AbstractAsyncContextManager[Backend]]:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Backend]:
        backend = make(server, folder)
        await backend.open(serving=True)
        try:
            yield backend
        finally:
            await backend.close()

    return opened


async def test_redis_and_sqlite_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = busy(1000)

    async def derived(folder: Path) -> list[bytes]:
        async with attributing(folder, RULES) as attribution:
            await append(attribution.backend, records)
            await attribution.work_off(repeat(77), LONG_AFTER)
            return await attribution.derived()

    on_redis = await derived(tmp_path)
    monkeypatch.setattr(attribution, "sqlite_backend", sqlite_backend)
    assert on_redis == await derived(tmp_path)
    assert len(on_redis) > 60


async def test_after_a_loss_of_the_state_the_journal_gives_the_same_bytes(tmp_path: Path, server: RedisServer) -> None:
    async with attributing(tmp_path, RULES) as attribution:
        await append(attribution.backend, busy(1000))
        await attribution.work_off(repeat(500), LONG_AFTER)
        first = await attribution.derived()
    lost = ("touches", "attribution-", "consumer-step")
    with server.client() as client:
        found = [*client.scan_iter(prefix_of(tmp_path) + "*", count=1000)]
        kinds = {key: key.decode().split(":")[1] for key in found}
        gone = [key for key, kind in kinds.items() if kind.startswith(lost)]
        assert client.delete(*gone) == len(gone) > 100
    async with attributing(tmp_path, RULES) as attribution:
        journal = attribution.backend.journal
        place = await journal.acquire_cursor(attribution.consumer.name, "now")
        await journal.commit([], attribution.backend.store.begin(LONG_AFTER, step=True), place._replace(position=0))
        await journal.release(place)
        await attribution.work_off(repeat(333), LONG_AFTER)
        assert await attribution.derived() == first * 2
