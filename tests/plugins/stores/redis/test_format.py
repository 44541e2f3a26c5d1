"""A store on Redis says in which format it is written. An ingestd that does not know the format writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest

from ingestd.api.errors import ConfigError, Unavailable
from ingestd.api.store import state_key
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from tests.support.redis_server import RedisServer, redis_server

KEY = state_key("value", "shop", "visitor")
OURS, NEWER = b"1 0.1.0", "2 7.1.0"
REFUSED = "has format 2, and this ingestd knows 1: install ingestd 7.1.0 or later"

pytestmark = pytest.mark.logs(
    "ingestd.redis WARNING events cannot be stored: the store .* has format 2",
    "ingestd.redis WARNING events cannot be stored: the key .* has no number of a format",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"{uuid4().hex}:"


def make(server: RedisServer, prefix: str) -> RedisBackend:
    return RedisBackend(make_pool(server.url, (), timeout=2), prefix=prefix, timeout=2, patience=5)


async def put(backend: RedisBackend, value: str) -> None:
    state = backend.store.begin(1)
    await state.put(KEY, value)
    await backend.store.commit(state)


def everything(server: RedisServer, prefix: str) -> dict[bytes, bytes | None]:
    with server.client() as client:
        return {key: client.dump(key) for key in client.keys(f"{prefix}*")}


async def test_a_store_without_a_format_is_taken_up_and_gets_one(server: RedisServer, prefix: str) -> None:
    for _ in range(2):
        backend = make(server, prefix)
        await backend.open(serving=True)
        assert await backend.store.begin(1).get(KEY) in (None, "value")
        await put(backend, "value")
        await backend.close()
        with server.client() as client:
            assert client.get(f"{prefix}store-format") == OURS
            client.delete(f"{prefix}store-format")


@pytest.mark.parametrize("serving", [True, False])
async def test_a_store_of_a_newer_format_is_refused_and_left_alone(
    server: RedisServer, prefix: str, serving: bool
) -> None:
    backend = make(server, prefix)
    await backend.open(serving=True)
    await put(backend, "value")
    await backend.close()
    with server.client() as client:
        client.set(f"{prefix}store-format", NEWER)
    before = everything(server, prefix)
    with pytest.raises(ConfigError, match=f"the store {prefix}\\* {REFUSED}"):
        await make(server, prefix).open(serving=serving)
    assert everything(server, prefix) == before


@pytest.mark.parametrize("lost", [None, b"0 0.0.9"])
async def test_each_write_and_each_beat_raises_the_number_and_no_read_does(
    server: RedisServer, prefix: str, lost: bytes | None
) -> None:
    """A command may be the first that writes. A failover, or a move of the slot, may lose the number."""
    with server.client() as client:

        def lose() -> None:
            client.delete(f"{prefix}store-format")
            if lost is not None:
                client.set(f"{prefix}store-format", lost)

        lose()
        command = make(server, prefix)
        await command.open(serving=False)
        assert await command.store.begin(1).get(KEY) is None
        assert await command.try_write() is None
        assert client.get(f"{prefix}store-format") == lost
        await put(command, "value")
        assert client.get(f"{prefix}store-format") == OURS
        await command.close()
        daemon = make(server, prefix)
        await daemon.open(serving=True)
        for work in (partial(put, daemon, "later"), daemon.beat.by_link):
            lose()
            await work()
            assert client.get(f"{prefix}store-format") == OURS
        await daemon.close()


@pytest.mark.parametrize("found", [b"", b"1", b"-2 7.1.0", b"two", b"\xff\r\n 1 0.1.0"])
async def test_a_number_that_cannot_be_read_is_refused_and_left_alone(
    server: RedisServer, prefix: str, found: bytes
) -> None:
    with server.client() as client:
        client.set(f"{prefix}store-format", found)
    for serving in (True, False):
        with pytest.raises(ConfigError, match=f"the key {prefix}store-format has no number of a format"):
            await make(server, prefix).open(serving=serving)
    assert [*everything(server, prefix)] == [f"{prefix}store-format".encode()]


async def test_attempts_to_open_a_store_tell_a_refusal_once(
    server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return sum("has format 2" in record.getMessage() for record in caplog.records)

    backend = make(server, prefix)
    with server.client() as client:
        for number in (1, 2):
            client.set(f"{prefix}store-format", NEWER)
            for _ in range(3):
                with pytest.raises(ConfigError):
                    await backend.open(serving=True)
            assert told() == number
            client.delete(f"{prefix}store-format")
            await backend.open(serving=True)
            await backend.close()


async def test_a_running_daemon_stores_nothing_once_the_format_is_newer(server: RedisServer, prefix: str) -> None:
    backend = make(server, prefix)
    await backend.open(serving=True)
    await put(backend, "before")
    with server.client() as client:
        client.set(f"{prefix}store-format", NEWER)
        with pytest.raises(Unavailable):
            await put(backend, "after")
        assert backend.problem() == f"the store {prefix}* {REFUSED}"
        await backend.close()
        assert b"before" in (client.get(f"{prefix}{KEY}") or b"")
