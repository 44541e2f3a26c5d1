"""The journal on Redis with two daemons: one holder of a cursor at a time, no repeated step or batch, no gap."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha1
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import ref

import msgspec
import pytest
from msgspec.structs import replace

from ingestd.api import times
from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import DuplicateMessage, LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, IdempotencyKey
from ingestd.api.options import Size
from ingestd.api.store import state_key
from ingestd.config import JournalOptions
from ingestd.consumers.erasures import note_erasure
from ingestd.consumers.group import Consumers
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.daemon.forgotten import Forgotten
from ingestd.http.operators import OperatorsPart
from ingestd.plugins.stores.cached_state import CachedState
from ingestd.plugins.stores.recent_records import READ_BYTES
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.scripts import BATCH
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.storage.retention import Retention
from ingestd.support.periodic import TIMING
from ingestd.testing.backends import append_each
from ingestd.testing.sinks import make_records
from tests.support.journals import QUICK, append, read_all, until
from tests.support.redis_pieces import pieces_of_journal
from tests.support.redis_server import RedisServer, redis_server

COUNTER = state_key("counter", "shop", "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    set_lease(monkeypatch, 1.5)
    monkeypatch.setattr(TIMING, "redis_heartbeat", 0.1)
    monkeypatch.setattr(TIMING, "redis_cursor", 0.05)


def set_lease(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(TIMING, "redis_lease", seconds)


class Daemons:
    """The back ends of several daemons on one server."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.prefix = sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"
        self._server = server
        self._stack = AsyncExitStack()
        self._tasks: dict[RedisBackend, set[asyncio.Task[Any]]] = {}

    async def open(self) -> RedisBackend:
        pool = make_pool(self._server.url, (), timeout=2)
        backend = RedisBackend(pool, prefix=self.prefix, timeout=2, patience=5)
        before = asyncio.all_tasks()
        await backend.open(serving=True)
        self._tasks[backend] = asyncio.all_tasks() - before
        self._stack.push_async_callback(backend.close)
        return backend

    async def silence(self, backend: RedisBackend) -> None:
        """End the back end's own tasks, as if its daemon had been killed or stopped."""
        await cancel(self._tasks[backend])

    async def __aenter__(self) -> Daemons:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


async def cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def hold(backend: RedisBackend, name: str = "c") -> Cursor:
    return await backend.journal.acquire_cursor(name, "beginning")


def derive(record: Record) -> Record:
    return Record("derived", record.at, record.body)


async def do_step(backend: RedisBackend, cursor: Cursor, record: Record) -> Cursor:
    """Do a step that derives a record from another, counts it in the state, and moves the cursor."""
    state = backend.store.begin(1, step=True)
    await state.put(COUNTER, str(int(await state.get(COUNTER) or 0) + 1))
    moved = cursor._replace(position=record.position)
    await backend.journal.commit([derive(record)], state, moved)
    return moved


async def derived(backend: RedisBackend) -> list[bytes]:
    return [record.body for record in await read_all(backend.journal) if record.type == "derived"]


async def test_records_of_a_step_between_events_are_read_from_memory(server: RedisServer, tmp_path: Path) -> None:
    """Otherwise each attributed order would make all consumers read from Redis again."""

    def reads() -> int:
        found: Any = server.client().info("commandstats")
        return int(found.get("cmdstat_xrange", {}).get("calls", 0))

    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        cursor = await hold(backend)
        event = Record("event", 1, b"{}")
        await append(backend, [event])
        (read,) = await backend.journal.read(0, 10)
        before = reads()
        states = [backend.store.begin(1, event=True) for _ in range(2)]
        await asyncio.gather(
            append_each(backend.journal, [Append(states[0], event)]),
            backend.journal.commit([derive(read)], backend.store.begin(1, step=True), cursor._replace(position=1)),
            append_each(backend.journal, [Append(states[1], event)]),
        )
        assert [record.type for record in await backend.journal.read(1, 10)] == ["event", "derived", "event"]
        assert reads() == before


async def test_a_step_leaves_nothing_for_the_garbage_collector(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        cursor = await hold(backend)
        gc.collect()
        gc.disable()
        try:
            state = backend.store.begin(1, step=True)
            await state.load(keys=[COUNTER], sets=[COUNTER])
            await state.put(COUNTER, "x" * 100_000)
            await backend.journal.commit([], state, cursor)
            await asyncio.sleep(0)  # the answer's callbacks are over
            assert isinstance(state, CachedState)
            after = ref(state.entries)
            del state
            assert after() is None
        finally:
            gc.enable()


async def test_a_read_is_bounded_in_bytes_also_where_large_records_follow_small_ones(
    server: RedisServer, tmp_path: Path
) -> None:
    chance = random.Random(1)
    sizes = [20] * 300 + [1_000_000] * 8 + chance.choices([20, 2000, 70_000, 1_000_000], [40, 40, 10, 4], k=400)
    async with Daemons(server, tmp_path) as daemons:
        writer, reader = await daemons.open(), await daemons.open()
        for start in range(0, len(sizes), 50):
            bodies = [b'"%b"' % (b"x" * size) for size in sizes[start : start + 50]]
            await append(writer, [Record("event", 1, body) for body in bodies])
        changed = sorted(chance.sample(range(len(sizes)), 40))
        for index in changed:
            [record] = await writer.journal.read(index, 1)
            sizes[index] = 30
            await writer.journal.replace([(record, b'"%b"' % (b"y" * 30))])
        found: list[Record] = []
        while records := await reader.journal.read(len(found), 500):
            assert sum(len(record.body) for record in records) < READ_BYTES + 3 * 1_000_000
            found += records
    assert [record.position for record in found] == [*range(1, len(sizes) + 1)]
    assert [len(record.body) - 2 for record in found] == sizes


async def test_a_second_holder_waits_as_long_as_the_first_is_alive(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        cursor = await hold(first)
        waiting = asyncio.create_task(hold(second))
        other = await hold(second, "other")  # the cursor of another consumer is free
        await asyncio.sleep(2.5)
        assert not waiting.done()
        await append(first, make_records(1))
        [record] = await first.journal.read(0, 1)
        await do_step(first, cursor, record)
        await first.journal.release(cursor)
        taken = await asyncio.wait_for(waiting, 1.0)  # sooner than a lease expires
        assert (taken.position, taken.fence > cursor.fence) == (1, True)
        assert other.position == 0


async def test_closing_releases_all_cursors_at_once(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_lease(monkeypatch, 600.0)
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        for name in ("c", "d"):
            await hold(first, name)
        waiting = asyncio.gather(*(hold(second, name) for name in ("c", "d")))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await first.close()
        await asyncio.wait_for(waiting, 5.0)


async def test_the_default_lease_expires_within_ten_seconds(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        await hold(first)
        await daemons.silence(first)
        begun = time.monotonic()
        await hold(second)
        assert 3.0 < time.monotonic() - begun < 10.0


async def test_a_dead_holder_is_followed_after_a_failover_to_a_server_whose_clock_is_behind(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease and its report end ten minutes later by the new server's clock."""
    async with Daemons(server, tmp_path) as daemons:
        with monkeypatch.context() as patch:
            set_lease(patch, 600.0)
            patch.setattr(TIMING, "redis_report", 600.0)
            first = await daemons.open()
            await hold(first)
            await first.beat.by_link()
            await daemons.silence(first)
        monkeypatch.setattr(TIMING, "redis_report", 1.5)
        second = await daemons.open()
        await asyncio.wait_for(hold(second), 10.0)
        await until(lambda: server.client().zcard(f"{daemons.prefix}daemons") == 1)


async def test_a_former_holder_writes_neither_records_nor_state(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        await append(first, make_records(3))
        records = await first.journal.read(0, 3)
        held = await do_step(first, await hold(first), records[0])
        await daemons.silence(first)
        taken = await hold(second)
        assert taken.position == 1
        with pytest.raises(LeaseLost):
            await do_step(first, held, records[1])
        assert len(await read_all(second.journal)) == 4
        assert await second.store.begin(1).get(COUNTER) == "1"
        assert await second.journal.cursors() == [taken]
        # Later attempts fail too, also after a step of the new holder.
        taken = await do_step(second, taken, records[1])
        for record in records[1:]:
            with pytest.raises(LeaseLost):
                await do_step(first, held, record)
        await first.journal.release(held)  # releasing a lost cursor changes nothing
        await do_step(second, taken, records[2])
        assert await derived(second) == [record.body for record in records]
        assert await second.store.begin(1).get(COUNTER) == "3"


async def test_positions_of_several_daemons_have_no_gap(server: RedisServer, tmp_path: Path) -> None:
    chance = random.Random(3)
    async with Daemons(server, tmp_path) as daemons:
        backends = [await daemons.open() for _ in range(3)]
        appended: dict[int, list[bytes]] = {}

        async def keep_appending(backend: RedisBackend) -> None:
            for _ in range(40):
                records = make_records(chance.randint(1, 4))
                appended[await append(backend, records)] = [record.body for record in records]

        await asyncio.gather(*(keep_appending(backend) for backend in backends * 3))
        journal = await read_all(backends[0].journal)
        assert [record.position for record in journal] == [*range(1, len(journal) + 1)]
        assert sum(map(len, appended.values())) == len(journal)
        for last, bodies in appended.items():  # the records of one append are consecutive
            assert [record.body for record in journal[last - len(bodies) : last]] == bodies
        for backend in backends:
            assert await backend.journal.last() == len(journal)
            assert await read_all(backend.journal) == journal


async def test_appends_of_one_long_turn_are_sent_in_parts_and_in_order(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        errors: list[Exception | None] = []
        before, records = backend.database.link.batches, make_records(100)
        for record in records:
            await backend.journal.append([Append(backend.store.begin(1, event=True), record)], errors.extend)
        assert not errors, "the loop has had no turn, so Redis cannot have answered"
        await until(lambda: len(errors) == len(records))
        assert set(errors) == {None}
        assert backend.database.link.batches - before > 2, "Redis began before the last append"
        assert [record.body for record in await read_all(backend.journal)] == [record.body for record in records]


async def test_a_failing_callback_does_not_affect_the_answers_to_others(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(errors: Sequence[Exception | None]) -> None:
        raise LookupError

    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        errors: list[Exception | None] = []
        first, *others = make_records(20)
        await backend.journal.append([Append(backend.store.begin(1, event=True), first)], fails)
        for record in others:
            await backend.journal.append([Append(backend.store.begin(1, event=True), record)], errors.extend)
        await until(lambda: len(errors) == len(others))
        assert set(errors) == {None}
        assert await backend.journal.last() == 20, "the link still works"
    assert [(line.name, line.getMessage()) for line in caplog.records] == [
        ("ingestd.redis", "a callback of an answer failed")
    ]
    caplog.clear()


async def test_a_waiting_daemon_is_woken_by_the_append_of_another(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        for number in range(3):
            waiting = asyncio.create_task(second.journal.wait(number))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await append(first, make_records(1))
            await asyncio.wait_for(waiting, 5.0)
            assert len(await second.journal.read(0, 10)) == number + 1


async def test_a_waiting_holder_is_told_that_it_has_lost_the_cursor(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        cursor = await hold(first)
        waiting = asyncio.create_task(first.journal.wait(0, cursor))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        server.client().hdel(f"{daemons.prefix}cursors", "c")  # as if the lease had expired
        await hold(second)
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(waiting, 5.0)
        with pytest.raises(LeaseLost):
            await first.journal.wait(0, cursor)


async def test_no_bytes_of_a_blanked_record_are_left_in_the_stream(server: RedisServer, tmp_path: Path) -> None:
    """Redis keeps the bytes of a deleted entry as long as its node of the stream has other entries."""
    chance = random.Random(11)
    client = server.client()
    client.config_set("rdbcompression", "no")  # otherwise a dump would hide the bytes
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        for _ in range(30):
            sizes = [chance.choice([20, 50, 500, 1500, 5000]) for _ in range(chance.randint(1, 20))]
            await append(backend, [Record("event", 1, f"{uuid4().hex * (size // 32 + 1)}".encode()) for size in sizes])
        records = await read_all(backend.journal)
        extent = await backend.journal.extent()
        blanked = dict.fromkeys(chance.sample(records, 40), b"blank")
        assert await backend.journal.replace([*blanked.items()]) == len(blanked)
        (piece,) = pieces_of_journal(client, daemons.prefix)
        dumped = client.dump(piece)
        assert isinstance(dumped, bytes)
        assert [record for record in blanked if record.body[:32] in dumped] == []
        assert sum(record.body[:32] in dumped for record in records) > len(records) / 4  # the dump shows other records
        assert await read_all(backend.journal) == [
            replace(record, body=blanked.get(record, record.body)) for record in records
        ]
        less = sum(len(record.body) - len(b"blank") for record in blanked)
        assert await backend.journal.extent() == extent._replace(bytes=extent.bytes - less)
        while await backend.journal.trim(extent.last, 50):
            pass
        assert (await backend.journal.extent()).bytes == 0
        assert client.keys(f"{daemons.prefix}journal:*:replaced*") == []


async def test_a_daemon_that_learns_of_an_erasure_reads_no_blanked_record_from_its_memory(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of the erasure may come before the next heartbeat, which tells of changed records too."""
    monkeypatch.setattr(TIMING, "redis_heartbeat", 60.0)
    monkeypatch.setattr(TIMING, "erasures", 0.02)
    forgot: list[str] = []

    class Page(OperatorsPart):
        def forget(self) -> None:
            forgot.append("all")

    async with Daemons(server, tmp_path) as daemons:
        daemon, command = await daemons.open(), await daemons.open()
        await append(daemon, [Record("event", 1, b'{"anonymousId":"ada"}')])
        (record,) = await daemon.journal.read(0, 10)
        await command.journal.replace([(record, b'{"anonymousId":null}')])
        consumers = PartitionConsumers(daemon.partitions, [], died=print)
        following = asyncio.create_task(Forgotten(daemon.partitions, consumers, [Page()]).follow())
        for number in count():  # the first mark that it sees may be one of before its start
            state = command.store.begin(times.now())
            await note_erasure(state, str(number))
            await command.store.commit(state)
            await asyncio.sleep(0.02)
            if forgot:
                break
        (record,) = await daemon.journal.read(0, 10)
        await cancel({following})
        assert record.body == b'{"anonymousId":null}'


async def test_only_the_first_of_simultaneous_claims_succeeds(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backends = [await daemons.open(), await daemons.open()]

        async def claim(backend: RedisBackend, number: int) -> str:
            state, key = backend.store.begin(1, event=True), IdempotencyKey("message", str(number), 1000)
            (error,) = await append_each(backend.journal, [Append(state, make_records(1)[0], key)])
            return error.value if isinstance(error, DuplicateMessage) else str(number)

        values = await asyncio.gather(*(claim(backend, number) for number in range(10) for backend in backends))
        assert len({*values}) == 1
        assert len(await read_all(backends[0].journal)) == 1


class ByHand:
    """Sends batches like a daemon's link, as often as a test wants."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self._prefix = prefix
        self._client = server.client()
        self._name = self._client.script_load(BATCH)

    def send(self, batch: bytes, *operations: Sequence[Any]) -> list[tuple[bool, Any]]:
        asked = msgspec.msgpack.encode(operations)
        answer: Any = self._client.evalsha(self._name, 1, self._prefix, batch, asked, "", 1 << 20, 0)
        answers: list[tuple[bool, Any]] = msgspec.msgpack.decode(answer, type=list[tuple[bool, Any]])
        return answers


async def test_a_repeated_batch_changes_nothing_and_gets_the_same_answers(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        hand = ByHand(server, daemons.prefix)
        await append(backend, make_records(2))
        cursor = await hold(backend)
        place = {"name": "c", "position": 2, "fence": cursor.fence, "before": 0, "lease": 1500}
        puts = [("put", "session:x", "new", 1000), ("put", "value:x", "put", None)]
        event = (1, ("event", 1, '{"n":1}'), ("claim:m", "mine", 1000), [("session:x", None)], puts)
        other: Any = (1, ("event", 2, '{"n":2}'), None, [], [("push", "set:x", "member", 5, 10, False, None, None)])
        batch = [
            ("append", 0, [event, other]),
            ("commit", 1, [("derived", 3, '{"n":3}')], 0, place, [], [["value", COUNTER, "1", None]]),
            ("load", 0, ["value:x"]),
        ]
        name = uuid4().bytes
        answers = hand.send(name, *batch)
        assert answers[0][1][0] == [True, True]
        assert answers[1][1][0] == "done"
        assert answers[2] == (True, ["|put"])
        assert hand.send(name, *batch) == answers
        # What others do meanwhile stays, and what is read is what there is by then.
        state = backend.store.begin(2)
        await state.put("value:x", "later")
        await backend.store.commit(state)
        await append(backend, make_records(1))
        assert hand.send(name, *batch) == [*answers[:2], (True, ["|later"])]
        assert len(await read_all(backend.journal)) == 6
        assert await backend.store.begin(2).get("value:x") == "later"
        assert await backend.store.begin(2).window("set:x") == [("member", 5)]
        assert [each.position for each in await backend.journal.cursors()] == [2]
        extent = await backend.journal.extent()
        assert (extent.records, extent.last) == (6, 6)
        # A different batch with the same operations finds the claim taken and the cursor moved.
        others = hand.send(uuid4().bytes, *batch)
        assert others[0][1][0] == [["duplicate", "mine"], True]
        assert others[1][1] == ["not holder"]
        assert len(await read_all(backend.journal)) == 7


@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_step_whose_answer_was_lost_is_not_repeated(
    server: RedisServer, tmp_path: Path, *, is_trimmed: bool
) -> None:
    """Not even if another daemon has removed the processed records meanwhile."""
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        await append(first, make_records(2))
        record = (await first.journal.read(0, 2))[-1]
        cursor = await hold(first)
        moved = {"name": "c", "position": 2, "fence": cursor.fence, "before": 0, "lease": 1500}
        row = ["value", COUNTER, "1", None]
        step: Any = ("commit", 1, [("derived", record.at, record.body.decode())], 0, moved, [], [row])
        ByHand(server, daemons.prefix).send(uuid4().bytes, step)
        if is_trimmed:
            assert await second.journal.trim(2, 100) == 2
        with pytest.raises(LeaseLost):
            await do_step(first, cursor, record)
        assert (await hold(first)).position == 2
        assert await derived(second) == [record.body]
        assert await second.store.begin(1).get(COUNTER) == "1"


@pytest.mark.logs("ERROR the store came back with older content")
async def test_daemons_forget_records_that_a_failover_has_lost(server: RedisServer, tmp_path: Path) -> None:
    """Redis is set back to the state before the last records, like a replica that lagged behind."""
    client = server.client()
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        for each in (first, second):  # otherwise they may notice the loss before the test goes on
            await daemons.silence(each)
        await append(first, make_records(1))
        [record] = await first.journal.read(0, 1)
        cursor = await do_step(first, await hold(first), record)
        # Dumps are bytes, but redis-py has one type for all answers.
        kept: dict[bytes, Any] = {key: client.dump(key) for key in client.scan_iter(f"{daemons.prefix}*")}
        await append(first, make_records(3))
        for key, content in kept.items():
            client.restore(key, 0, content, replace=True)
        [new] = make_records(1)
        await append(second, [new])
        lost = (await first.journal.read(2, 10))[-1]
        with pytest.raises((LeaseLost, Unavailable)):
            await do_step(first, cursor, lost)
        await until(lambda: first.store.losses == 1 and first.problem() is None)
        with pytest.raises(LeaseLost):
            await do_step(first, cursor, lost)
        cursor = await hold(first)
        assert [each.body for each in await first.journal.read(cursor.position, 10)] == [record.body, new.body]


class Deriving(Consumer):
    """Derives a record from each event, and counts the events in the state. `seen` has the received positions."""

    name = "deriving"

    def __init__(self, *, max_records: int = 5, pause: float = 0.0) -> None:
        self.max_records = max_records
        self.seen: list[int] = []
        self._pause = pause

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self.seen += [record.position for record in records]
        for record in records:
            if record.type == "event":
                step.append(derive(record))
                await step.state.put(COUNTER, str(int(await step.state.get(COUNTER) or 0) + 1))
        await asyncio.sleep(self._pause)


class Life:
    """Running consumers of a back end, which can be stopped in order or end like in a killed daemon."""

    def __init__(self, daemons: Daemons, backend: RedisBackend, consumer: Deriving) -> None:
        self.consumer = consumer
        self.backend = backend
        self.consumers = Consumers(
            backend.journal, backend.store, [consumer], died=lambda *death: None, backoff=QUICK, grace=1.0
        )
        self._daemons = daemons
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        before = asyncio.all_tasks()
        await self.consumers.start()
        self._tasks = asyncio.all_tasks() - before

    async def kill(self) -> None:
        await self._daemons.silence(self.backend)
        await cancel(self._tasks)

    @property
    def is_holder(self) -> bool:
        [status] = self.consumers.statuses
        return status.held


@asynccontextmanager
async def living(daemons: Daemons, *consumers: Deriving) -> AsyncIterator[list[Life]]:
    """A daemon for each consumer. The first is the holder of the cursor."""
    lives = [Life(daemons, await daemons.open(), consumer) for consumer in consumers]
    for life in lives:
        await life.start()
        await until(lambda: lives[0].is_holder)
    try:
        yield lives
    finally:
        for life in lives:
            await life.consumers.stop(0)


async def read_derived(backend: RedisBackend, count: int) -> list[bytes]:
    """Wait for `count` derived records. Returns their bodies."""
    position = 0
    found: list[bytes] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            await backend.journal.wait(position)
            for record in await backend.journal.read(position, 1000):
                position = record.position
                if record.type == "derived":
                    found.append(record.body)
    return found


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_a_second_daemon_continues_after_the_first_without_a_repetition(
    server: RedisServer, tmp_path: Path, *, is_killed: bool
) -> None:
    records = make_records(60)
    async with Daemons(server, tmp_path) as daemons, living(daemons, Deriving(), Deriving()) as (one, other):
        await append(one.backend, records[:20])
        await append(other.backend, records[20:40])
        await read_derived(one.backend, 40)
        assert (one.is_holder, other.is_holder, other.consumer.seen) == (True, False, [])
        [status] = other.consumers.statuses  # the waiting daemon knows the position too
        await until(lambda: status.position >= 40)
        await append(one.backend, records[40:50])
        if is_killed:
            await one.kill()
        else:
            await one.consumers.stop(0)
        await append(other.backend, records[50:])
        assert await read_derived(other.backend, 60) == [record.body for record in records]
        assert other.is_holder
        assert await other.backend.store.begin(0).get(COUNTER) == "60"
        assert not {*one.consumer.seen[: -one.consumer.max_records]} & {*other.consumer.seen}


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_record_is_derived_once_however_holders_end(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Some holders are killed, some stop in order, some sleep longer than their lease and continue."""
    set_lease(monkeypatch, 0.3)
    chance = random.Random(seed)
    records: list[Record] = []
    async with Daemons(server, tmp_path) as daemons, AsyncExitStack() as stack:
        watcher = await daemons.open()
        lives: list[Life] = []
        for _ in range(8):
            while len(lives) < 3:
                life = Life(daemons, await daemons.open(), Deriving(max_records=chance.randint(1, 6)))
                await life.start()
                stack.push_async_callback(life.consumers.stop, 0)
                lives.append(life)
            for _ in range(chance.randint(1, 8)):
                some = make_records(chance.randint(1, 5))
                await append(chance.choice(lives).backend, some)
                records += some
                await asyncio.sleep(chance.choice([0, 0, 0.01]))
            holders = [life for life in lives if life.is_holder]
            if holders:
                match chance.choice(["kill", "stop", "sleep"]):
                    case "kill":
                        lives.remove(holders[0])
                        await holders[0].kill()
                    case "stop":
                        lives.remove(holders[0])
                        await holders[0].consumers.stop(0)
                    case "sleep":
                        await daemons.silence(holders[0].backend)
            await asyncio.sleep(chance.choice([0, 0.1, 0.4]))
        found = await read_derived(watcher, len(records))
        assert found == [record.body for record in records]
        assert await watcher.store.begin(0).get(COUNTER) == str(len(records))


async def test_no_daemon_trims_records_that_the_holder_still_needs(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both daemons keep the journal very small."""
    monkeypatch.setattr(TIMING, "retention", 0.01)
    async with (
        Daemons(server, tmp_path) as daemons,
        living(daemons, Deriving(pause=0.01), Deriving(pause=0.01)) as (one, other),
        AsyncExitStack() as stack,
    ):
        for life in (one, other):
            options = JournalOptions(keep_size=Size.parse("2kB"))
            retention = Retention(life.backend.journal, options, life.consumers, refuse=lambda reason: None)
            await retention.start()
            trimming = asyncio.create_task(retention.run())
            stack.push_async_callback(cancel, {trimming})
        count = 150
        for _ in range(count // 3):
            await append(one.backend, make_records(1))
            await append(other.backend, make_records(2))
        await until(lambda: len(one.consumer.seen) > count // 2)
        removed = (await one.backend.journal.extent()).first - 1
        assert 0 < removed <= len(one.consumer.seen) <= 2 * count
        await one.consumers.stop(0)
        [status] = other.consumers.statuses
        await until(lambda: status.position == 2 * count)  # including the derived records
        assert await other.backend.store.begin(0).get(COUNTER) == str(count)
        assert {*one.consumer.seen} | {*other.consumer.seen} == {*range(1, 2 * count + 1)}
        assert [status.lost for life in (one, other) for status in life.consumers.statuses] == [0, 0]


async def test_a_step_over_lost_records_is_refused(tmp_path: Path, server: RedisServer) -> None:
    """Others have appended as many records since, so the length of the journal does not show the loss."""
    async with Daemons(server, tmp_path) as shop:
        backend = await shop.open()
        await append(backend, make_records(3))
        cursor = await backend.journal.acquire_cursor("reader", "beginning")
        read = await backend.journal.read(0, 10)
        with server.client().pipeline() as at_once:
            at_once.delete(piece := f"{shop.prefix}journal:1")
            for position, body in enumerate((read[0].body, read[1].body, b'{"id":"another"}'), 1):
                at_once.xadd(piece, {"t": "event", "a": 1, "b": body}, id=f"{position}-0")
            at_once.execute()
        state = backend.store.begin(0)
        with pytest.raises(LeaseLost):
            await backend.journal.commit([], state, cursor._replace(position=3, record=read[-1]))
        again = await backend.journal.acquire_cursor("reader", "beginning")
        assert again.position == 0
        assert [record.decode()["id"] for record in await backend.journal.read(2, 10)] == ["another"]
        assert await backend.journal.commit([], state, again._replace(position=3)) == 3
