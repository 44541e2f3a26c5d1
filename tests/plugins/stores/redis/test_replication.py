"""Consumers get no record that a failover can take back. Reading waits for no replica."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from tests.support.clients import wait_until
from tests.support.cut_sinks import Taker, calling
from tests.support.journals import append, read_all, running, until
from tests.support.redis_pieces import entries_of_journal
from tests.support.redis_sentinel import URL, WatchedRedis, watched_redis
from tests.support.senders import LONG, NOW

TIMEOUT, PATIENCE = 0.5, 1.5

LINES = pytest.mark.logs(
    "ingestd.redis WARNING events cannot be stored: ",
    "ingestd.redis WARNING the primary is ",
    r"ingestd.consumers WARNING (sink|journal): the store cannot be used now: .*; it is tried again",
)


@pytest.fixture(scope="module")
def one_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedRedis]:
    with watched_redis(tmp_path_factory.mktemp("watched"), replicas=2, sentinels=3) as watched:
        yield watched


@pytest.fixture
def watched(one_set: WatchedRedis) -> Iterator[WatchedRedis]:
    """A primary with two replicas and three Sentinels, empty. It is repaired for the next test."""
    with one_set.primary.client() as client:
        client.flushall()
    yield one_set
    one_set.reunite()


def make_backend(watched: WatchedRedis, *, grace: float = 0.0, patience: float = PATIENCE) -> RedisBackend:
    pool = make_pool(URL, watched.addresses, timeout=TIMEOUT)
    return RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=patience, replicas=1, promotion_grace=grace)


@asynccontextmanager
async def opened(
    watched: WatchedRedis, *, serving: bool = True, grace: float = 0.0, patience: float = PATIENCE
) -> AsyncIterator[RedisBackend]:
    backend = make_backend(watched, grace=grace, patience=patience)
    await backend.open(serving=serving)
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def replicas_asleep(watched: WatchedRedis) -> AsyncIterator[None]:
    """The replicas stay connected, and take nothing."""
    replicas = watched.replicas
    for replica in replicas:
        replica.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for replica in replicas:
            replica.signal(signal.SIGCONT)


def stored(watched: WatchedRedis, backend: RedisBackend) -> int:
    """The number of records that the primary has."""
    with watched.server(backend.database.link.address).client() as client:
        return len(entries_of_journal(client, "shop:"))


def bodies(taken: Sequence[Record]) -> set[bytes]:
    """A step whose commit failed is repeated, so its records may be there more than once."""
    return {each.body for each in taken}


def record(text: str) -> Record:
    return Record("event", NOW, text.encode())


async def test_a_record_that_no_replica_has_yet_reaches_no_consumer(watched: WatchedRedis) -> None:
    """Neither in the daemon that has written it, nor in another one, nor after another daemon takes over."""
    taken: list[Record] = []
    async with opened(watched, patience=LONG) as one, opened(watched, patience=LONG) as two:
        await append(one, [record("before")])
        await two.journal.last()
        async with replicas_asleep(watched):
            writing = asyncio.create_task(append(one, [record("unreplicated")]))
            await until(lambda: stored(watched, one) == 2)
            assert [each.body for each in await two.journal.read(0, 10)] == [b"before"]
            assert [each.body for each in await one.journal.read(0, 10)] == [b"before"]
            assert not writing.done()
        await writing
        async with running(two, Taker(taken)):
            await until(lambda: len(taken) == 2)
        assert [each.body for each in await read_all(one.journal)] == [b"before", b"unreplicated"]
        assert one.journal.unreplicated == two.journal.unreplicated == 0


@pytest.mark.logs("ingestd.redis WARNING events cannot be stored: NOREPLICAS 0 of 1 .* attribution wait")
async def test_reading_waits_for_no_replica(watched: WatchedRedis) -> None:
    """A command reads all that the primary has, at once. A command that writes is told why it cannot."""
    async with opened(watched, patience=LONG) as daemon:
        await append(daemon, [record("before")])
        async with replicas_asleep(watched):
            writing = asyncio.create_task(append(daemon, [record("unreplicated")]))
            await until(lambda: stored(watched, daemon) == 2)
            async with opened(watched, serving=False) as command:
                began = time.thread_time()
                assert [each.body for each in await read_all(command.journal)] == [b"before", b"unreplicated"]
                assert (await command.journal.extent()).records == 2
                assert await command.store.begin(NOW).get("session:0") is None
                assert time.thread_time() - began < 1
                assert command.problem() is None
                with pytest.raises(Unavailable, match="The store cannot be used now: NOREPLICAS 0 of 1 replicas"):
                    await append(command, [record("refused")])
        await writing


@LINES
async def test_a_new_primary_without_replicas_answers_events_and_consumers_wait(watched: WatchedRedis) -> None:
    taken: list[Record] = []
    async with opened(watched, grace=LONG) as backend, running(backend, Taker(taken), patience=LONG):
        await append(backend, [record("before")])
        await until(lambda: bodies(taken) == {b"before"})
        primary, replicas = watched.primary, watched.replicas
        replicas[1].kill()
        primary.kill()
        await asyncio.to_thread(wait_until, lambda: replicated_by_another(watched, primary.port), LONG)
        await until(lambda: backend.problem() is None, LONG)
        await append(backend, [record(f"{n}") for n in range(3)])
        await asyncio.sleep(3 * TIMEOUT)
        assert bodies(taken) == {b"before"}, "a second failover could take the records back"
        assert backend.journal.unreplicated == 3
        found = {each.name: each for each in await backend.describe_server()}["replicas"]
        assert (found.status, "sinks and attribution wait" in found.text) == ("unavailable", True)
        await asyncio.to_thread(watched.reunite)
        await until(lambda: bodies(taken) == {b"before", b"0", b"1", b"2"}, LONG)
        assert backend.journal.unreplicated == 0


def replicated_by_another(watched: WatchedRedis, port: int) -> bool:
    """Whether all Sentinels name another primary than the one at that port."""
    ports = {sentinel.primary_port for sentinel in watched.sentinels}
    return len(ports) == 1 and port not in ports


@LINES
@pytest.mark.parametrize("cuts", [1, pytest.param(12, marks=pytest.mark.long)])
async def test_sinks_beside_the_journal_have_what_it_has_after_cuts(watched: WatchedRedis, cuts: int) -> None:
    """The primary is cut off from replicas and Sentinels, while daemons still write to it and sinks run.

    The failover outlasts the patience of the daemons. So the callers send their messages again, as other records.
    """
    async with (
        opened(watched, grace=LONG, patience=0.3) as one,
        opened(watched, grace=LONG, patience=0.3) as two,
        calling((one, two)),
    ):
        for _ in range(cuts):
            await asyncio.sleep(0.5)
            primary = watched.primary
            watched.cut_off(primary)
            await asyncio.to_thread(wait_until, lambda: replicated_by_another(watched, primary.port), LONG)  # noqa: B023
            await asyncio.to_thread(watched.reunite)
