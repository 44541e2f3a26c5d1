"""A Redis that has lost data: all daemons notice, continue together, and divide no transaction between two stores."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append
from ingestd.api.options import Duration
from ingestd.api.store import state_key
from ingestd.api.times import now
from ingestd.config import JournalOptions
from ingestd.consumers.group import Consumers
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.storage.retention import Retention
from ingestd.testing.backends import append_each
from ingestd.testing.sinks import make_records
from tests.support.journals import QUICK, append, read_all, running, until
from tests.support.redis_server import RedisServer, redis_server

KEY = state_key("loss", "shop", "visitor")
SET = state_key("loss-set", "shop", "visitor")

pytestmark = pytest.mark.logs(
    "ingestd.redis ERROR the store (came back|is another one)",
    "ingestd.redis WARNING events cannot be stored: ",
    "ingestd.consumers WARNING .*; it is tried again",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", {"appendfsync": "no"}) as server:
        yield server


@asynccontextmanager
async def daemons(server: RedisServer, count: int = 2) -> AsyncIterator[list[RedisBackend]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            backend = RedisBackend(make_pool(server.url, (), timeout=2), prefix="shop:", timeout=2, patience=5)
            await backend.open(serving=True)
            stack.push_async_callback(backend.close)
            opened.append(backend)
        yield opened


def wipe(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


async def all_know(backends: Sequence[RedisBackend], losses: int = 1) -> None:
    await until(lambda: all(each.store.losses == losses and each.problem() is None for each in backends))


class Collecting(Consumer):
    """Keeps the bodies of all records that it gets."""

    def __init__(self, name: str = "collecting", *, at_the_end: bool = False) -> None:
        self.name = name
        self.start = "now" if at_the_end else "beginning"
        self.bodies: list[bytes] = []

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self.bodies += [record.body for record in records]


async def test_a_transaction_that_began_before_the_loss_is_refused_as_a_whole(server: RedisServer) -> None:
    async with daemons(server) as (one, two):
        await append(one, make_records(3))
        states = [one.store.begin(1, event=number < 2) for number in range(4)]
        for state in states:
            await state.put(KEY, "old")
        step = one.store.begin(1, step=True)
        await step.put(KEY, "old")
        cursor = await one.journal.acquire_cursor("c", "beginning")
        wipe(server)
        await all_know((one, two))
        [record] = make_records(1)
        (error,) = await append_each(one.journal, [Append(states[0], record)])
        assert isinstance(error, Unavailable)
        for attempt in (
            one.store.commit(states[1]),
            one.store.commit(states[2]),
            one.journal.commit([record], states[3]),
            one.store.commit(step),
        ):
            with pytest.raises(Unavailable):
                await attempt
        with pytest.raises(LeaseLost):
            await one.journal.commit([], one.store.begin(1, step=True), cursor._replace(position=1))
        assert await read_all(one.journal) == []
        for fresh in one.store.begin(1), one.store.begin(1, event=True):
            assert (await fresh.get(KEY), await fresh.window(SET)) == (None, [])


async def test_the_holder_of_a_cursor_in_the_lost_store_holds_none_in_the_new_one(server: RedisServer) -> None:
    """Although both cursors were acquired equally often."""
    async with daemons(server) as (one, two):
        old = await one.journal.acquire_cursor("c", "beginning")
        wipe(server)
        await all_know((one, two))
        new = await two.journal.acquire_cursor("c", "beginning")
        assert new.fence > old.fence
        await append(two, make_records(3))
        with pytest.raises(LeaseLost):
            await one.journal.commit([], one.store.begin(1, step=True), old._replace(position=1))
        await two.journal.commit([], two.store.begin(1, step=True), new._replace(position=1))


async def test_all_daemons_report_a_loss_and_one_of_them_clears_it_for_all(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with daemons(server, 3) as backends:
        before = {each.store.store_id for each in backends}
        await append(backends[0], make_records(4))
        assert [await each.journal.last() for each in backends] == [4, 4, 4]  # any of them may find the loss first
        wipe(server)
        await all_know(backends)
        after = {each.store.store_id for each in backends}
        assert len(before) == len(after) == 1
        assert before != after
        texts = {each.store.loss for each in backends}
        assert len(texts) == 1
        assert "came back empty" in str(texts)
        assert "ended at 4 before" in str(texts)
        assert caplog.text.count("came back empty") == 3
        assert await backends[1].store.clear_loss()
        assert not await backends[2].store.clear_loss()
        for each in backends:
            await each.store.look_for_loss()
            assert each.store.loss is None
        async with daemons(server, 1) as (late,):
            assert (late.store.losses, late.store.loss) == (0, None)
        wipe(server)
        await all_know(backends, 2)
        assert caplog.text.count("came back empty") == 6


async def test_a_new_store_is_no_loss_and_a_command_gives_it_no_id(server: RedisServer) -> None:
    command = RedisBackend(make_pool(server.url, (), timeout=2), prefix="shop:", timeout=2, patience=5)
    await command.open(serving=False)
    try:
        assert (command.store.store_id, command.store.loss) == (None, None)
        async with daemons(server, 1) as (daemon,):
            assert daemon.store.store_id is not None
            assert daemon.store.losses == 0
            await append(command, make_records(1))
    finally:
        await command.close()


@pytest.mark.parametrize("at_the_end", [True, False])
async def test_records_appended_after_a_loss_reach_the_consumers_of_all_daemons(
    server: RedisServer, *, at_the_end: bool
) -> None:
    """Also a consumer that only one daemon has, even if this daemon notices the loss last."""
    async with daemons(server) as (one, two):
        first = Collecting("first", at_the_end=at_the_end)
        second = Collecting("second", at_the_end=at_the_end)
        async with running(one, first) as (of_first,), running(two, second) as (of_second,):
            await append(one, make_records(5))
            # Durably, because a step that the loss interrupts is repeated.
            await until(lambda: of_first.processed == of_second.processed == 5)
            first.bodies, second.bodies = [], []
            wipe(server)
            records = make_records(40)
            for record in records:
                while True:
                    try:
                        await append(one, [record])
                    except Unavailable:
                        await asyncio.sleep(0.01)
                    else:
                        break
            wanted = [record.body for record in records]
            await until(lambda: (first.bodies, second.bodies) == (wanted, wanted))


async def test_a_replica_with_less_data_is_no_loss(server: RedisServer) -> None:
    """A replica refuses writes, so another server has the data."""
    async with daemons(server, 1) as (daemon,):
        await append(daemon, make_records(5))
        server.kill()
        kept = server.folder.rename(server.folder.with_name("kept"))
        server.folder.mkdir()
        server.options["replicaof"] = "127.0.0.1 1"
        server.start()
        await until(lambda: daemon.problem() is not None)
        assert daemon.store.losses == 0
        server.kill()
        shutil.rmtree(server.folder)
        kept.rename(server.folder)
        del server.options["replicaof"]
        server.start()
        await until(lambda: daemon.problem() is None)
        await append(daemon, make_records(1))
        assert (daemon.store.losses, await daemon.journal.last()) == (0, 6)


async def test_a_new_journal_after_a_loss_keeps_its_young_records(server: RedisServer) -> None:
    """Positions of old records in the lost journal are positions of young, unread records in the new one."""
    clock = now()

    async with daemons(server, 1) as (daemon,):
        consumers = Consumers(
            daemon.journal, daemon.store, [Collecting()], died=lambda *death: None, backoff=QUICK, grace=0.2
        )
        await consumers.start()
        options = JournalOptions(keep_for=Duration.parse("1h"))
        retention = Retention(daemon.journal, options, consumers, refuse=lambda reason: None, now=lambda: clock)
        await append(daemon, [Record("event", clock - 7_200_000, b"{}")] * 30)
        await until(lambda: consumers.statuses[0].position == 30)
        await retention.step()
        assert (await daemon.journal.extent()).first == 31
        wipe(server)
        await all_know((daemon,))
        await append(daemon, [Record("event", clock, b"{}")] * 10)
        for _ in range(5):
            await retention.step()
        assert (await daemon.journal.extent()).records == 10
        await until(lambda: consumers.statuses[0].position == 10)
        await append(daemon, [Record("event", clock, b"{}")] * 10)
        await until(lambda: consumers.statuses[0].position == 20)
        assert consumers.statuses[0].lost == 0
        await consumers.stop(5)


async def test_data_from_before_an_earlier_loss_are_older_content_of_the_same_store(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with daemons(server) as backends:
        await append(backends[0], make_records(2))
        with server.client() as client:
            # Dumps are bytes, but redis-py has one type for all answers.
            kept: dict[bytes, Any] = {key: client.dump(key) for key in client.scan_iter("shop:*")}
            client.flushall()
            await all_know(backends)
            with client.pipeline() as pipe:
                pipe.flushall()
                for key, content in kept.items():
                    pipe.restore(key, 0, content)
                pipe.execute()
        await all_know(backends, 2)
        assert caplog.text.count("came back empty") == caplog.text.count("came back with older content") == 2
        assert "is another one" not in caplog.text
        assert len({each.store.store_id for each in backends}) == 1
        assert len(await read_all(backends[1].journal)) == 2
