"""After the death of the primary Sentinel promotes its replica, and daemons continue there without help."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from ingestd.api.consumer import Step
from ingestd.api.errors import DuplicateMessage, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.backends import append_each
from tests.support.deriver import Deriver
from tests.support.journals import running, until
from tests.support.redis_proxy import redis_proxy
from tests.support.redis_sentinel import URL, WatchedRedis, watched_redis
from tests.support.redis_server import RedisServer, redis_server
from tests.support.senders import LONG, NOW, Senders, texts

TIMEOUT = 0.5
PATIENCE = 1.0

LINES = pytest.mark.logs(
    "ingestd.redis WARNING events cannot be stored: ",
    "ingestd.redis WARNING the primary is ",
    "ingestd.redis WARNING Redis has 1 replica and wait_replicas is 0",
    r"ingestd.consumers WARNING (deriver|journal): .*; it is tried again",
)
LOSS = pytest.mark.logs(
    "ingestd.redis ERROR the store came back with older content",
    r"ingestd.consumers WARNING (deriver|journal): .*; it is tried again",
)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedRedis]:
    """A primary and its replica."""
    with watched_redis(tmp_path, replicas=1, sentinels=1) as watched:
        yield watched


@asynccontextmanager
async def opened(watched: WatchedRedis, *, replicas: int) -> AsyncIterator[RedisBackend]:
    pool = make_pool(URL, watched.addresses, timeout=TIMEOUT)
    backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE, replicas=replicas)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def derived_once(backend: RedisBackend) -> bool:
    """Wait until everything is derived. Returns whether each record is derived once and in order."""
    async with asyncio.timeout(LONG):
        while len(await texts(backend, "derived")) < len(await texts(backend, "event")):  # noqa: ASYNC110 - another backend may derive
            await asyncio.sleep(0.05)
    events = await texts(backend, "event")
    counted = await backend.store.begin(NOW).get(Deriver.key)
    return (await texts(backend, "derived"), counted) == (events, f"{len(events)}")


@LINES
async def test_with_wait_replicas_a_failover_loses_no_answered_event_and_repeats_no_step(
    watched: WatchedRedis,
) -> None:
    async with (
        opened(watched, replicas=1) as one,
        opened(watched, replicas=1) as two,
        running(one, Deriver(), patience=LONG),
        running(two, Deriver(), patience=LONG),
    ):
        senders = Senders((one, two), 8)
        await senders.more(100)
        primary = watched.primary
        primary.kill()
        await until(lambda: one.problem() and two.problem())
        await until(lambda: watched.primary is not primary, LONG)
        # The new primary has no replica yet.
        await until(lambda: "NOREPLICAS" in f"{one.problem()}" and "NOREPLICAS" in f"{two.problem()}", LONG)
        before = len(senders.answered)
        await asyncio.sleep(2 * TIMEOUT)
        assert len(senders.answered) == before
        await asyncio.to_thread(watched.reunite)
        await senders.more(100)
        await senders.end()
        await until(lambda: one.problem() is None and two.problem() is None)
        events = await texts(one, "event")
        assert max(Counter(events).values()) == 1
        assert {*events} == {*senders.answered}
        assert await derived_once(one)


@LINES
@LOSS
async def test_daemons_forget_records_that_the_promoted_replica_did_not_have(watched: WatchedRedis) -> None:
    """Without `wait_replicas` records are lost. Later records at the same positions are derived from nevertheless."""
    async with (
        opened(watched, replicas=0) as one,
        opened(watched, replicas=0) as two,
        running(one, Deriver(), patience=LONG),
        running(two, Deriver(), patience=LONG),
    ):
        senders = Senders((one, two), 8)
        await senders.more(100)
        primary, (replica,) = watched.primary, watched.replicas
        replica.signal(signal.SIGSTOP)
        with primary.client() as client:  # otherwise the replica would later read the writes from its socket
            client.client_kill_filter(_type="replica")
        await senders.more(100)  # daemons derive from some of these records and know more of them
        primary.kill()
        replica.signal(signal.SIGCONT)
        await until(lambda: watched.primary is not primary, LONG)
        await senders.more(400)
        await senders.end()
        events = await texts(two, "event")
        assert max(Counter(events).values()) == 1
        assert len(events) < len(senders.answered), "nothing was lost, so the test shows nothing"
        assert await derived_once(two)


@LINES
async def test_the_answer_to_a_duplicate_waits_until_a_replica_has_the_record(watched: WatchedRedis) -> None:
    """A sender that is told that its event is stored does not send it again."""
    claim, client = IdempotencyKey("message", "its answer", 86_400_000), watched.primary.client()

    def written() -> int:
        return int(client.info("replication")["master_repl_offset"])

    async with opened(watched, replicas=1) as backend:

        async def claimed() -> Exception | None:
            append = Append(backend.store.begin(NOW, event=True), Record("event", NOW, b"{}"), claim)
            (error,) = await append_each(backend.journal, [append])
            return error

        assert await claimed() is None
        before = written()
        await until(lambda: written() == before)
        assert isinstance(await claimed(), DuplicateMessage)
        assert written() > before, "WAIT waits for what its connection has written"


@LINES
async def test_a_repeated_request_waits_for_the_replica_too(watched: WatchedRedis) -> None:
    """The first reply, which waited, got lost. The new connection has no writes, so WAIT would not wait."""
    async with redis_proxy(watched.primary.port) as proxy:
        pool = make_pool(proxy.url.replace("://", "://:shop@"), (), timeout=TIMEOUT)
        backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=PATIENCE, replicas=1)
        (replica,) = watched.replicas
        await backend.open(serving=True)
        try:
            await append(backend, "before")
            replica.signal(signal.SIGSTOP)
            proxy.loses_reply = lambda sent: b"commit" in sent and proxy.lost == 0
            with pytest.raises(Unavailable):
                await append(backend, "not yet")
            assert proxy.lost == 1
            replica.signal(signal.SIGCONT)
            await until(lambda: backend.problem() is None)
            await append(backend, "after")
            assert await texts(backend, "event") == ["before", "not yet", "after"]
        finally:
            await backend.close()


@LINES
async def test_a_primary_that_becomes_a_replica_before_it_waits_refuses_no_event(watched: WatchedRedis) -> None:
    """It has written the event, and answers that a replica cannot wait. The event is sent again, and stored once."""
    primary = watched.primary

    def turn(*place: str) -> None:
        with primary.client() as client:
            client.execute_command("REPLICAOF", *place)

    def demote() -> None:
        turn("127.0.0.1", "1")
        asyncio.get_running_loop().call_later(TIMEOUT / 2, turn, "NO", "ONE")

    async with redis_proxy(primary.port) as proxy:
        pool = make_pool(proxy.url.replace("://", "://:shop@"), (), timeout=TIMEOUT)
        backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=LONG, replicas=1)
        await backend.open(serving=True)
        try:
            await append(backend, "before")
            proxy.before["WAIT"] = demote
            await append(backend, "meanwhile")
            assert not proxy.before
            assert await texts(backend, "event") == ["before", "meanwhile"]
        finally:
            await backend.close()


class Lapse:
    """A server that loses all writes between `begin` and `end`, like a failover."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._kept = server.folder.with_name("kept")

    @property
    def url(self) -> str:
        return self._server.url

    def begin(self) -> None:
        self._server.kill()
        shutil.copytree(self._server.folder, self._kept)
        self._server.start()

    def end(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.folder)
        self._kept.rename(self._server.folder)
        self._server.start()


@pytest.fixture
def lapse(tmp_path: Path) -> Iterator[Lapse]:
    with redis_server(tmp_path / "redis") as server:
        yield Lapse(server)


@asynccontextmanager
async def on(lapse: Lapse) -> AsyncIterator[RedisBackend]:
    pool = make_pool(lapse.url, (), timeout=TIMEOUT)
    backend = RedisBackend(pool, prefix="shop:", timeout=TIMEOUT, patience=LONG)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def append_anew(backend: RedisBackend, *texts: str) -> None:
    """Append with retries, because the first append after the loss is refused."""
    for text in texts:
        while True:
            with suppress(Unavailable):
                await append(backend, text)
                break
            await asyncio.sleep(0.05)


async def append(backend: RedisBackend, *texts: str) -> None:
    for text in texts:
        await backend.journal.commit([Record("event", NOW, text.encode())], backend.store.begin(NOW))


class Waiter(Deriver):
    """Waits in the step that has a certain record."""

    def __init__(self, text: str) -> None:
        self.reached = asyncio.Event()
        self.may_go = asyncio.Event()
        self._text = text.encode()

    async def process(self, records: Sequence[Record], step: Step) -> None:
        if self._text in (record.body for record in records):
            self.reached.set()
            await self.may_go.wait()
        await super().process(records, step)


@LOSS
async def test_records_that_replace_a_longer_lost_journal_are_derived_from_at_once(lapse: Lapse) -> None:
    """The journal stays shorter than the journal that the daemons knew."""
    async with on(lapse) as one, on(lapse) as two, running(one, Deriver()) as statuses:
        await append(one, "kept")
        assert await derived_once(one)
        lapse.begin()
        await append(one, *(f"lost-{number}" for number in range(20)))
        await append(two, *(f"lost-{number}" for number in range(20, 40)))
        assert await derived_once(one)
        lapse.end()
        await append_anew(two, "instead")
        assert await derived_once(one)
        assert await texts(one, "event") == ["kept", "instead"]
        await until(lambda: [status.pending for status in statuses] == [0])
        assert [status.lost for status in statuses] == [0]


@LOSS
async def test_a_step_with_lost_records_is_refused(lapse: Lapse) -> None:
    """Other records have the same positions now."""
    waiter = Waiter("lost")
    async with on(lapse) as one, on(lapse) as two, running(one, waiter) as statuses:
        await append(one, "kept")
        assert await derived_once(one)
        await until(lambda: statuses[0].position == 2)
        lapse.begin()
        await append(one, "lost")
        await waiter.reached.wait()
        lapse.end()
        await append_anew(two, *(f"instead-{number}" for number in range(20)))
        waiter.may_go.set()
        assert await derived_once(one)
        assert await texts(one, "event") == ["kept", *(f"instead-{number}" for number in range(20))]


@LOSS
async def test_lost_records_in_memory_are_not_mistaken_for_their_replacements(lapse: Lapse) -> None:
    waiter = Waiter("kept")
    async with on(lapse) as one, on(lapse) as two, running(one, waiter):
        await append(one, "kept")
        await waiter.reached.wait()
        lapse.begin()
        await append(one, "lost-1", "lost-2", "lost-3")
        lapse.end()
        await append_anew(two, "instead-1", "instead-2", "instead-3")
        await append_anew(one, "next")  # its position follows the positions of the lost records
        waiter.may_go.set()
        assert await derived_once(one)
        assert await texts(one, "event") == ["kept", "instead-1", "instead-2", "instead-3", "next"]
