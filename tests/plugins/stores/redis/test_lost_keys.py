"""A Redis that has lost keys: every known key stays valid until the declared keys are written again."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingestd.api.errors import Unauthorized
from ingestd.api.events import Endpoint, Request
from ingestd.api.options import Secret
from ingestd.api.times import now
from ingestd.plugins.auth.hmac_auth import HmacPlugin
from ingestd.plugins.auth.key_registry import Key, change_keys
from ingestd.plugins.auth.keys import DeclaredKey, KeysPlugin
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.support.periodic import TIMING
from tests.support.backends import PluginDaemon
from tests.support.journals import until
from tests.support.redis_server import RedisServer, redis_server

PUBLIC = "declared-public-key-of-the-shop"
SERVER = "5d0e1a64-93f4-4d39-8a39-6c6f3a1f2b11"
SECRET = "a-secret-for-tests-only-0123456789"
CREATED = "a-public-key-that-a-command-created"

POLL = 0.005

pytestmark = pytest.mark.logs(
    "ingestd.redis ERROR the store (came back empty|has lost keys)",
    "ingestd.keys WARNING the store cannot be read",  # by a poll before the loss is adopted
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TIMING, "keys", POLL)


@dataclass
class Plugins:
    """Both plugins for keys, on a store that has one more key."""

    daemon: PluginDaemon
    keys: KeysPlugin
    hmac_auth: HmacPlugin

    def is_known(self, public: str) -> bool:
        return self.keys.authenticate(_request(public, Endpoint.TRACK)) is not None

    def assert_declared_keys_are_valid(self) -> None:
        assert self.is_known(PUBLIC)
        assert self.hmac_auth.authenticate(_request(SERVER, Endpoint.CUSTOMER_EVENTS)) is not None
        if self.daemon.store.loss is not None:
            with pytest.raises(Unauthorized):  # a server key on a public endpoint
                self.keys.authenticate(_request(SERVER, Endpoint.TRACK))

    async def recover(self) -> None:
        """As a daemon does it after a loss of data."""
        await self.keys.store_lost(self.daemon.store)
        await self.hmac_auth.store_lost(self.daemon.store)


def _request(credential: str, endpoint: Endpoint) -> Request:
    signature = hmac.new(SECRET.encode(), b"{}", "sha256").hexdigest()
    headers = {"Authorization": f"Bearer {credential}", "x-signature": signature}
    return Request(endpoint, headers, b"{}", received_at=now())


@asynccontextmanager
async def plugins(server: RedisServer) -> AsyncIterator[Plugins]:
    backend = RedisBackend(make_pool(server.url, (), timeout=2), prefix="shop:", timeout=2, patience=5)
    await backend.open(serving=True)
    daemon = PluginDaemon(backend)
    try:
        created = Key(id=CREATED, kind="public", tenant="shop", created_at=now())
        await change_keys(daemon.store, lambda _: [created])
        declared = (
            DeclaredKey(id=PUBLIC, kind="public", tenant="shop"),
            DeclaredKey(id=SERVER, kind="server", tenant="shop", secret=Secret(SECRET), grants={"CRM": ("ADMIN",)}),
        )
        both = Plugins(daemon, KeysPlugin(KeysPlugin.Options(declared=declared)), HmacPlugin(HmacPlugin.Options()))
        daemon.plugins = {"keys": both.keys, "hmac_auth": both.hmac_auth}
        await both.keys.startup(daemon)
        await both.hmac_auth.startup(daemon)
        yield both
    finally:
        for task in daemon.tasks:
            task.cancel()
        await asyncio.gather(*daemon.tasks, return_exceptions=True)
        await backend.close()


def come_back_empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


def lose_keys(server: RedisServer) -> None:
    with server.client() as client:
        client.delete(*client.scan_iter("shop:keys*"))


@pytest.mark.parametrize("lose", [come_back_empty, lose_keys])
async def test_known_keys_stay_valid_until_the_declared_keys_are_written_again(
    server: RedisServer, lose: Callable[[RedisServer], None]
) -> None:
    async with plugins(server) as both:
        both.assert_declared_keys_are_valid()
        lose(server)
        await until(lambda: both.daemon.store.losses == 1)
        for _ in range(20):  # many polls, which must not load what the store has now
            both.assert_declared_keys_are_valid()
            assert both.is_known(CREATED)
            await asyncio.sleep(POLL)
        recovery = asyncio.create_task(both.recover())
        while not recovery.done():
            both.assert_declared_keys_are_valid()
            await asyncio.sleep(0)
        await recovery
        both.assert_declared_keys_are_valid()
        assert not both.is_known(CREATED)


async def test_after_the_recovery_changes_of_keys_have_effect_again(server: RedisServer) -> None:
    async with plugins(server) as both:
        come_back_empty(server)
        await until(lambda: both.daemon.store.losses == 1)
        await both.recover()
        created = Key(id=CREATED, kind="public", tenant="shop", created_at=now())
        await change_keys(both.daemon.store, lambda _: [created])
        await until(lambda: both.is_known(CREATED))
