"""Consumers get no record that a failover can take back. Reading waits for no replica."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, IdempotencyKey
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.backends import append_each
from tests.support.clients import wait_until
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


class Taker(Consumer):
    """A sink: it keeps each record that it gets. It is slow, so there are more records to read whenever it reads."""

    name = "sink"
    max_records = 50

    def __init__(self, taken: list[Record]) -> None:
        self.taken = taken

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self.taken += records
        await asyncio.sleep(0.03)


async def follow(backend: RedisBackend, taken: list[Record]) -> None:
    """Read as a sink with a buffer does: a few records at a time, without a commit, so it often reads the newest ones.

    Runs until cancelled.
    """
    position = 0
    while True:
        try:
            await backend.journal.wait(position)
            some = await backend.journal.read(position, 5)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            taken += some
            position = some[-1].position if some else position


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


class Callers:
    """Callers that send a message again until it is answered. Each attempt is another record, with an `id`."""

    def __init__(self, backends: Sequence[RedisBackend], count: int) -> None:
        self.answered: list[str] = []
        self._ending = False
        self._tasks = [asyncio.create_task(self._send(backends, n)) for n in range(count)]

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def _send(self, backends: Sequence[RedisBackend], number: int) -> None:
        count = 0
        while not self._ending:
            count += 1
            message = f"{number}-{count}"
            while isinstance(await self._attempt(backends[count % len(backends)], message), Unavailable):  # noqa: ASYNC110 - a caller
                await asyncio.sleep(0.02)
            self.answered.append(message)

    async def _attempt(self, backend: RedisBackend, message: str) -> Exception | None:
        body = json.dumps({"id": uuid4().hex, "messageId": message})
        claim = IdempotencyKey(message, "", 86_400_000)
        (error,) = await append_each(
            backend.journal, [Append(backend.store.begin(NOW, event=True), record(body), claim)]
        )
        return error


@LINES
@pytest.mark.parametrize("cuts", [1, pytest.param(12, marks=pytest.mark.long)])
async def test_sinks_beside_the_journal_have_what_it_has_after_cuts(watched: WatchedRedis, cuts: int) -> None:
    """The primary is cut off from replicas and Sentinels, while daemons still write to it and sinks run.

    The failover outlasts the patience of the daemons. So the callers send their messages again, as other records.
    """
    taken: list[Record] = []
    async with opened(watched, grace=LONG, patience=0.3) as one, opened(watched, grace=LONG, patience=0.3) as two:
        async with running(one, Taker(taken), patience=LONG), running(two, Taker(taken), patience=LONG):
            callers = Callers((one, two), 8)
            following = [asyncio.create_task(follow(backend, taken)) for backend in (one, two)]
            for _ in range(cuts):
                await asyncio.sleep(0.5)
                primary = watched.primary
                watched.cut_off(primary)
                await asyncio.to_thread(wait_until, lambda: replicated_by_another(watched, primary.port), LONG)  # noqa: B023
                await asyncio.to_thread(watched.reunite)
            await callers.end()
            last = await one.journal.last()
            await until(lambda: max(each.position for each in taken) == last, LONG)
            for task in following:
                task.cancel()
            assert all(
                isinstance(each, asyncio.CancelledError)
                for each in await asyncio.gather(*following, return_exceptions=True)
            )
        journal = [each.decode() for each in await read_all(one.journal)]
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for each in taken:
        ids[each.decode()["messageId"]].add(each.decode()["id"])
    assert {each.decode()["id"] for each in taken} == {each["id"] for each in journal}
    assert [found for found in ids.values() if len(found) > 1] == []
    assert sorted(ids) == sorted(each["messageId"] for each in journal) == sorted(callers.answered)
