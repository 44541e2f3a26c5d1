"""Failovers by Sentinel: the new primary has all answered events, and daemons continue there at once."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.options import Address
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from tests.support.clients import wait_until
from tests.support.journals import read_all, until
from tests.support.redis_sentinel import URL, SentinelProcess, WatchedRedis, watched_redis
from tests.support.redis_server import RedisServer
from tests.support.senders import LONG, NOW, Senders, texts

TIMEOUT = 0.5
PATIENCE = 1.5

LINES = pytest.mark.logs(
    "ingestd.redis WARNING events cannot be stored: ",
    "ingestd.redis WARNING the primary is ",
    r"ingestd.redis WARNING Redis has 0 replicas and wait_replicas is 1: ",  # until they follow a new primary
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


@asynccontextmanager
async def opened(
    watched: WatchedRedis, *, replicas: int = 1, grace: float = 0.0, sentinels: list[Address] | None = None
) -> AsyncIterator[RedisBackend]:
    pool = make_pool(URL, watched.addresses if sentinels is None else sentinels, timeout=TIMEOUT)
    backend = RedisBackend(
        pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE, replicas=replicas, promotion_grace=grace
    )
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def replaced(watched: WatchedRedis, primary: RedisServer) -> None:
    """Wait until all Sentinels name another primary."""
    old = primary.port

    def agreed() -> bool:
        ports = {sentinel.primary_port for sentinel in watched.sentinels}
        return len(ports) == 1 and old not in ports

    await asyncio.to_thread(wait_until, agreed, LONG)


async def append(backend: RedisBackend, text: str) -> None:
    await backend.journal.commit([Record("event", NOW, text.encode())], backend.store.begin(NOW))


# Failovers


@LINES
async def test_a_planned_failover_loses_no_answer(watched: WatchedRedis, caplog: pytest.LogCaptureFixture) -> None:
    """Daemons wait for one of two replicas. The other one may be promoted while the former primary still writes."""
    async with opened(watched) as one, opened(watched) as two:
        senders = Senders((one, two), 8)
        await senders.more(100)
        primary = watched.primary
        with caplog.at_level(logging.WARNING, "ingestd.redis"):
            watched.fail_over()
            await replaced(watched, primary)
            now = f"127.0.0.1:{watched.primary.port}"
            await until(lambda: one.database.link.address == two.database.link.address == now)
            await senders.more(200)
        await senders.end()
        assert sorted(await texts(one, "event")) == sorted(senders.answered)
        assert [backend.database.link.failovers for backend in (one, two)] == [1, 1]
    told = [record.getMessage() for record in caplog.records if "the primary is" in record.getMessage()]
    assert len(told) == 2
    assert all(f"the primary is {now}, no longer 127.0.0.1:{primary.port}: " in line for line in told)


@LINES
async def test_the_death_of_a_primary_loses_no_answered_event(watched: WatchedRedis) -> None:
    async with opened(watched) as one, opened(watched) as two:
        senders = Senders((one, two), 8)
        await senders.more(100)
        primary = watched.primary
        primary.kill()
        await replaced(watched, primary)
        await senders.more(200)
        await senders.end()
        assert sorted(await texts(one, "event")) == sorted(senders.answered)


@LINES
async def test_a_primary_that_is_cut_off_from_the_others_loses_no_answered_event(watched: WatchedRedis) -> None:
    """The daemons still reach it, and it accepts their writes."""
    async with opened(watched) as one, opened(watched) as two:
        senders = Senders((one, two), 8)
        await senders.more(100)
        primary = watched.primary
        watched.cut_off(primary)
        await replaced(watched, primary)
        await senders.more(200)
        with primary.client() as client:
            assert client.info("replication")["role"] == "master"
        await senders.end()
        assert sorted(await texts(one, "event")) == sorted(senders.answered)


@LINES
async def test_a_primary_that_is_cut_off_together_with_the_daemon_accepts_no_event(watched: WatchedRedis) -> None:
    """The daemon reaches only one Sentinel, which is cut off too and does not know of the failover."""
    async with opened(watched, sentinels=watched.addresses[:1]) as backend:
        await append(backend, "before")
        primary, (near, *_) = watched.primary, watched.sentinels
        near.signal(signal.SIGSTOP)
        watched.cut_off(primary)
        senders = Senders((backend,), 4)
        await until(lambda: backend.problem() is not None, LONG)
        assert "NOREPLICAS 0 of 1" in f"{backend.problem()}"
        assert senders.answered == []
        near.signal(signal.SIGCONT)
        await replaced(watched, primary)
        await senders.more(50)
        await senders.end()
        assert sorted(await texts(backend, "event")) == sorted(["before", *senders.answered])


# Replicas


@LINES
async def test_a_promoted_primary_answers_without_replicas_for_a_while(watched: WatchedRedis) -> None:
    grace = 3.0  # seconds: on a busy machine the daemon learns late of its new primary
    async with opened(watched, grace=grace) as backend:
        await append(backend, "before")
        primary, replicas = watched.primary, watched.replicas
        for replica in replicas[1:]:
            replica.kill()
        primary.kill()
        await replaced(watched, primary)
        await until(lambda: backend.problem() is None, LONG)  # a slow failover outlasts the patience of the link
        await append(backend, "alone")
        with pytest.raises(Unavailable):  # noqa: PT012 - the clock decides when it raises
            while True:
                await append(backend, "more")
        assert "NOREPLICAS 0 of 1" in f"{backend.problem()}"
        await asyncio.to_thread(watched.reunite)
        await until(lambda: backend.problem() is None, LONG)
        # Now it waits for replicas again.
        for replica in watched.replicas:
            replica.signal(signal.SIGSTOP)
        with pytest.raises(Unavailable):
            await append(backend, "waits")
        for replica in watched.replicas:
            replica.signal(signal.SIGCONT)
        await until(lambda: backend.problem() is None, LONG)


@pytest.mark.logs("ingestd.redis WARNING Redis has 2 replicas and wait_replicas is 0: .* Set .* wait_replicas = 2")
@pytest.mark.parametrize("by_url", [True, False], ids=["by URL", "by Sentinels"])
async def test_replicas_without_wait_replicas_cause_a_warning(
    watched: WatchedRedis, caplog: pytest.LogCaptureFixture, *, by_url: bool
) -> None:
    pool = make_pool(f"redis://:shop@127.0.0.1:{watched.primary.port}/0", (), timeout=TIMEOUT)
    for replicas, status in ((0, "warning"), (1, "ok")):
        caplog.clear()
        if by_url:
            backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE, replicas=replicas)
        else:
            pool = make_pool(URL, watched.addresses, timeout=TIMEOUT)
            backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE, replicas=replicas)
        await backend.open(serving=True)
        try:
            found = {finding.name: finding for finding in await backend.describe()}
            assert found["replicas"].status == status
            assert found["replicas"].facts == {"replicas": 2, "wait_replicas": replicas}
            assert ("wait_replicas = 2 keeps them" in found["replicas"].text) == (replicas == 1)
            assert ("sentinels" in found) is not by_url
            warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(warnings) == (1 if status == "warning" else 0)
        finally:
            await backend.close()


async def test_a_start_on_a_replica_is_refused(watched: WatchedRedis) -> None:
    replica = watched.replicas[0]
    pool = make_pool(f"redis://:shop@127.0.0.1:{replica.port}/0", (), timeout=TIMEOUT)
    backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{replica.port} is a read only replica, not the primary"):
        await backend.open(serving=True)


# Sentinels


@LINES
async def test_an_outdated_sentinel_brings_no_former_primary_back(watched: WatchedRedis, tmp_path: Path) -> None:
    """The outdated Sentinel is asked first and names the former primary, which the daemon can reach."""
    primary = watched.primary
    stale = SentinelProcess(tmp_path / "stale", primary, 1, password="wrong")
    stale.start()
    try:
        addresses = [stale.address, *watched.addresses]
        async with opened(watched, sentinels=addresses) as backend:
            watched.cut_off(primary)
            await replaced(watched, primary)
            now = f"127.0.0.1:{watched.primary.port}"
            await until(lambda: backend.database.link.address == now and backend.problem() is None, LONG)
            await append(backend, "new")
            assert stale.primary_port == primary.port
            # Even if no other Sentinel answers any more.
            for sentinel in watched.sentinels:
                sentinel.signal(signal.SIGSTOP)
            await asyncio.sleep(3 * TIMEOUT)
            await append(backend, "newer")
            assert backend.database.link.address == now
            for sentinel in watched.sentinels:
                sentinel.signal(signal.SIGCONT)
            assert await texts(backend, "event") == ["new", "newer"]
            assert backend.database.link.failovers == 1
        await until(watched.has_replica, LONG)  # the Sentinels that were stopped may replace the primary again
        async with opened(watched, sentinels=addresses) as backend:
            assert await texts(backend, "event") == ["new", "newer"]
            found = {finding.name: finding for finding in await backend.describe()}["sentinels"]
            assert found.status == "warning"
            # The Sentinels that were stopped may have replaced the primary again.
            assert found.text.startswith("3 of 4 Sentinels name ")
            assert f":{primary.port} " not in found.text
    finally:
        stale.end()


@pytest.mark.logs(r"ingestd.redis WARNING no Sentinel answers; the primary stays 127\.0\.0\.1:\d+ \(127\.0\.0\.1:\d+: ")
async def test_without_sentinels_the_daemon_continues_with_its_primary(
    watched: WatchedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(watched) as backend:
        await append(backend, "before")
        for sentinel in watched.sentinels:
            sentinel.end()
        await until(lambda: "no Sentinel answers" in caplog.text, LONG)
        with watched.server(backend.database.link.address).client() as client:
            client.client_kill_filter(_type="normal", skipme=True)  # so new connections are needed
        await append(backend, "after")
        assert [record.body for record in await read_all(backend.journal)] == [b"before", b"after"]
        assert backend.problem() is None
        assert caplog.text.count("no Sentinel answers") == 1
        with caplog.at_level(logging.INFO, "ingestd.redis"):
            for sentinel in watched.sentinels:
                sentinel.start()
            await until(lambda: "the Sentinels answer again" in caplog.text, LONG)


async def test_a_name_unknown_to_the_sentinels_is_reported(watched: WatchedRedis) -> None:
    pool = make_pool("redis://:shop@Store/0", watched.addresses, timeout=TIMEOUT)
    backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE)
    with pytest.raises(Unavailable, match=r"no Sentinel names the primary of Store \(127.*No such master"):
        await backend.open(serving=True)
