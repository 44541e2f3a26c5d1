"""The journal on Redis with two daemons on it: one holder at a time, no step and no batch twice, no gap."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import ref

import msgspec
import pytest
from msgspec.structs import replace

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import DuplicateMessage, LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, IdempotencyKey
from ingestd.api.options import Size
from ingestd.api.store import state_key
from ingestd.config import JournalOptions
from ingestd.consumers.group import Consumers
from ingestd.plugins.stores.recent_records import READ_BYTES
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.storage.retention import Retention
from ingestd.testing.sinks import make_records
from tests.support.journals import QUICK, append, read_all, until
from tests.support.redis_server import RedisServer, redis_server

COUNTER = state_key("counter", "shop", "")
SCRIPT = files("ingestd.plugins.stores.redis").joinpath("batch.lua").read_bytes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    set_lease(monkeypatch, 1.5)
    monkeypatch.setattr("ingestd.plugins.stores.redis.journal._KEEP", 0.1)
    monkeypatch.setattr("ingestd.plugins.stores.redis.journal._RETRY", 0.05)


def set_lease(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("ingestd.plugins.stores.redis.journal.LEASE", seconds)


class Daemons:
    """Back ends on one server, as several daemons have them."""

    def __init__(self, server: RedisServer, place: Path) -> None:
        self.prefix = sha1(str(place).encode(), usedforsecurity=False).hexdigest() + ":"
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
        """From now on it does by itself nothing any more, as if its daemon had been killed or stopped."""
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
    """A step that derives one record of another, counts it in the state, and moves the place there."""
    state = backend.store.begin(1, step=True)
    await state.put(COUNTER, str(int(await state.get(COUNTER) or 0) + 1))
    moved = cursor._replace(position=record.position)
    await backend.journal.append([derive(record)], state, moved)
    return moved


async def derived(backend: RedisBackend) -> list[bytes]:
    return [record.body for record in await read_all(backend.journal) if record.type == "derived"]


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
            await backend.journal.append([], state, cursor)
            await asyncio.sleep(0)  # the answer's callbacks are over
            after = ref(state)
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
        other = await hold(second, "other")  # of another consumer it can be
        await asyncio.sleep(2.5)
        assert not waiting.done()
        await append(first, make_records(1))
        [record] = await first.journal.read(0, 1)
        await do_step(first, cursor, record)
        await first.journal.release(cursor)
        taken = await asyncio.wait_for(waiting, 1.0)  # sooner than a lease takes to run out
        assert (taken.position, taken.fence > cursor.fence) == (1, True)
        assert other.position == 0


async def test_closing_lets_the_other_go_on_at_once(
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


async def test_the_true_lease_passes_on_within_ten_seconds(
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
        # Nor does it help to try again, or what the other does.
        taken = await do_step(second, taken, records[1])
        for record in records[1:]:
            with pytest.raises(LeaseLost):
                await do_step(first, held, record)
        await first.journal.release(held)  # it is no longer its to let go of
        await do_step(second, taken, records[2])
        assert await derived(second) == [record.body for record in records]
        assert await second.store.begin(1).get(COUNTER) == "3"


async def test_positions_have_no_gap_whoever_appends(server: RedisServer, tmp_path: Path) -> None:
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
        for last, bodies in appended.items():  # those of one append stand together
            assert [record.body for record in journal[last - len(bodies) : last]] == bodies
        for backend in backends:
            assert await backend.journal.last() == len(journal)
            assert await read_all(backend.journal) == journal


async def test_what_is_begun_in_one_long_turn_leaves_in_parts_and_in_order(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        errors: list[Exception | None] = []
        before, records = backend.database.link.batches, make_records(100)
        for record in records:
            await backend.journal.begin(record, backend.store.begin(1), errors.append)
        assert not errors, "the loop has had no turn, so Redis cannot have answered"
        await until(lambda: len(errors) == len(records))
        assert set(errors) == {None}
        assert backend.database.link.batches - before > 2, "Redis could begin before the last was there"
        assert [record.body for record in await read_all(backend.journal)] == [record.body for record in records]


async def test_one_whose_answer_cannot_be_taken_keeps_no_other_from_its_own(
    server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(error: Exception | None) -> None:
        raise LookupError

    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        errors: list[Exception | None] = []
        first, *others = make_records(20)
        await backend.journal.begin(first, backend.store.begin(1), fails)
        for record in others:
            await backend.journal.begin(record, backend.store.begin(1), errors.append)
        await until(lambda: len(errors) == len(others))
        assert set(errors) == {None}
        assert await backend.journal.last() == 20, "the link goes on"
    assert [(line.name, line.getMessage()) for line in caplog.records] == [
        ("ingestd.redis", "a callback of an answer failed")
    ]
    caplog.clear()


async def test_a_daemon_that_waits_hears_of_what_another_appends(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        for number in range(3):
            waiting = asyncio.create_task(second.journal.wait(number))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await append(first, make_records(1))
            await asyncio.wait_for(waiting, 5.0)
            assert len(await second.journal.read(0, 10)) == number + 1


async def test_a_holder_that_waits_hears_that_it_is_no_more(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        cursor = await hold(first)
        waiting = asyncio.create_task(first.journal.wait(0, cursor))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        server.client().hdel(f"{daemons.prefix}cursors", "c")  # as if its lease had run out
        await hold(second)
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(waiting, 5.0)
        with pytest.raises(LeaseLost):
            await first.journal.wait(0, cursor)


async def test_what_is_blanked_is_not_left_in_the_stream(server: RedisServer, tmp_path: Path) -> None:
    """Redis keeps the bytes of a deleted entry as long as there is another one in its node of the stream."""
    chance = random.Random(11)
    client = server.client()
    client.config_set("rdbcompression", "no")  # else a dump would not show what is in it
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        for _ in range(30):
            sizes = [chance.choice([20, 50, 500, 1500, 5000]) for _ in range(chance.randint(1, 20))]
            await append(backend, [Record("event", 1, f"{uuid4().hex * (size // 32 + 1)}".encode()) for size in sizes])
        records = await read_all(backend.journal)
        extent = await backend.journal.extent()
        blanked = dict.fromkeys(chance.sample(records, 40), b"blank")
        assert await backend.journal.replace([*blanked.items()]) == len(blanked)
        dumped = client.dump(f"{daemons.prefix}journal")
        assert isinstance(dumped, bytes)
        assert [record for record in blanked if record.body[:32] in dumped] == []
        assert sum(record.body[:32] in dumped for record in records) > len(records) / 4  # else nothing is shown by that
        assert await read_all(backend.journal) == [
            replace(record, body=blanked.get(record, record.body)) for record in records
        ]
        less = sum(len(record.body) - len(b"blank") for record in blanked)
        assert await backend.journal.extent() == extent._replace(bytes=extent.bytes - less)
        while await backend.journal.trim(extent.last, 50):
            pass
        assert (await backend.journal.extent()).bytes == 0
        assert client.keys(f"{daemons.prefix}replaced*") == []


async def test_a_claim_is_the_first_ones(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backends = [await daemons.open(), await daemons.open()]

        async def claim(backend: RedisBackend, number: int) -> str:
            state = backend.store.begin(1)
            try:
                await backend.journal.append(make_records(1), state, claim=IdempotencyKey("message", str(number), 1000))
            except DuplicateMessage as claimed:
                return claimed.value
            return str(number)

        values = await asyncio.gather(*(claim(backend, number) for number in range(10) for backend in backends))
        assert len({*values}) == 1
        assert len(await read_all(backends[0].journal)) == 1


class ByHand:
    """Sends batches as a daemon's link does, as often as one likes."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self._prefix = prefix
        self._client = server.client()
        self._name = self._client.script_load(SCRIPT)

    def send(self, batch: bytes, *operations: Sequence[Any]) -> list[tuple[bool, Any]]:
        answer: Any = self._client.evalsha(self._name, 1, self._prefix, batch, msgspec.msgpack.encode(operations))
        answers: list[tuple[bool, Any]] = msgspec.msgpack.decode(answer, type=list[tuple[bool, Any]])
        return answers


async def test_a_batch_that_is_sent_again_does_nothing_again(server: RedisServer, tmp_path: Path) -> None:
    async with Daemons(server, tmp_path) as daemons:
        backend = await daemons.open()
        hand = ByHand(server, daemons.prefix)
        await append(backend, make_records(2))
        cursor = await hold(backend)
        place = {"name": "c", "position": 2, "fence": cursor.fence, "before": 0, "lease": 1500}
        batch = [
            ("renew", 1, "session:x", "new", 1000),
            ("put", 1, "value:x", "put", None),
            ("append", 1, [("event", 1, '{"n":1}'), ("event", 2, '{"n":2}')], 0, ("claim:m", "mine", 1000), None, []),
            ("append", 1, [("derived", 3, '{"n":3}')], 0, None, place, [["value", COUNTER, "1", None]]),
            ("push", 1, "set:x", "member", 5, 10, False, None, None),
            ("get", 1, "value:x"),
        ]
        name = uuid4().bytes
        answers = hand.send(name, *batch)
        assert answers[0] == (True, ["new", True])
        assert [answer[1][0] for answer in answers[2:4]] == ["done", "done"]
        assert hand.send(name, *batch) == answers
        # What others do meanwhile stays, and what is read is what there is by then.
        await backend.store.begin(2).put("value:x", "later")
        await append(backend, make_records(1))
        assert hand.send(name, *batch) == [*answers[:5], (True, "later")]
        assert len(await read_all(backend.journal)) == 6
        assert await backend.store.begin(2).get("value:x") == "later"
        assert [each.position for each in await backend.journal.cursors()] == [2]
        extent = await backend.journal.extent()
        assert (extent.records, extent.last) == (6, 6)
        # Another batch with the same in it is another one: it finds the claim taken and the place moved on.
        others = hand.send(uuid4().bytes, *batch)
        assert others[0] == (True, ["new", False])
        assert [answer[1] for answer in others[2:4]] == [["claimed", "mine"], ["not holder"]]
        assert len(await read_all(backend.journal)) == 6


@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_step_whose_answer_was_lost_is_not_done_again(
    server: RedisServer, tmp_path: Path, *, is_trimmed: bool
) -> None:
    """Also not where another daemon has removed meanwhile what the step, as Redis knows, is done with."""
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        await append(first, make_records(2))
        record = (await first.journal.read(0, 2))[-1]
        cursor = await hold(first)
        place = {"name": "c", "position": 2, "fence": cursor.fence, "before": 0, "lease": 1500}
        row = ["value", COUNTER, "1", None]
        step = ("append", 1, [("derived", record.at, record.body.decode())], 0, None, place, [row])
        ByHand(server, daemons.prefix).send(uuid4().bytes, step)
        if is_trimmed:
            assert await second.journal.trim(2, 100) == 2
        with pytest.raises(LeaseLost):
            await do_step(first, cursor, record)
        assert (await hold(first)).position == 2
        assert await derived(second) == [record.body]
        assert await second.store.begin(1).get(COUNTER) == "1"


@pytest.mark.logs("ERROR the store came back with older content")
async def test_what_a_failover_has_lost_is_not_remembered(server: RedisServer, tmp_path: Path) -> None:
    """Redis is set back to what it was before the last records, as a replica that lagged behind would have it."""
    client = server.client()
    async with Daemons(server, tmp_path) as daemons:
        first, second = await daemons.open(), await daemons.open()
        await daemons.silence(first)  # else it may have noticed by itself
        await append(first, make_records(1))
        [record] = await first.journal.read(0, 1)
        cursor = await do_step(first, await hold(first), record)
        # Dumps are bytes, which redis-py's types do not tell apart from other answers.
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
    """Derives one record of each event and counts them in the state. `seen` are the positions it was given."""

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
    """Consumers at work on a back end, which are stopped in good order or end as in a killed daemon."""

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
    """A daemon for each, of which the first is the holder."""
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
    """The bodies of all records that were derived, as soon as there are so many."""
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
async def test_one_processes_and_after_it_the_other_exactly_once(
    server: RedisServer, tmp_path: Path, *, is_killed: bool
) -> None:
    records = make_records(60)
    async with Daemons(server, tmp_path) as daemons, living(daemons, Deriving(), Deriving()) as (one, other):
        await append(one.backend, records[:20])
        await append(other.backend, records[20:40])
        await read_derived(one.backend, 40)
        assert (one.is_holder, other.is_holder, other.consumer.seen) == (True, False, [])
        [status] = other.consumers.statuses  # it knows all the same how far that is
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
async def test_whatever_becomes_of_holders_each_record_is_derived_once(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Some are killed, some stop in good order, some sleep through their lease and go on as if nothing had been."""
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


async def test_trimming_passes_no_consumer_by_whoever_trims_and_whoever_holds(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both daemons keep the journal tiny, and neither removes what the holder has not done with."""
    monkeypatch.setattr("ingestd.storage.retention._LOOK", 0.01)
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
        await until(lambda: status.position == 2 * count)  # the derived ones too
        assert await other.backend.store.begin(0).get(COUNTER) == str(count)
        assert {*one.consumer.seen} | {*other.consumer.seen} == {*range(1, 2 * count + 1)}
        assert [status.lost for life in (one, other) for status in life.consumers.statuses] == [0, 0]


async def test_a_step_over_records_that_a_failover_has_lost_is_not_done(tmp_path: Path, server: RedisServer) -> None:
    """Others have appended as many since, so the journal is no shorter than it was."""
    async with Daemons(server, tmp_path) as shop:
        backend = await shop.open()
        await append(backend, make_records(3))
        place = await backend.journal.acquire_cursor("reader", "beginning")
        read = await backend.journal.read(0, 10)
        client, stream = server.client(), f"{shop.prefix}journal"
        client.delete(stream)
        for position in (1, 2):
            client.xadd(stream, {"t": "event", "a": 1, "b": read[position - 1].body}, id=f"{position}-0")
        client.xadd(stream, {"t": "event", "a": 1, "b": '{"id":"another"}'}, id="3-0")
        state = backend.store.begin(0)
        with pytest.raises(LeaseLost):
            await backend.journal.append([], state, place._replace(position=3, record=read[-1]))
        again = await backend.journal.acquire_cursor("reader", "beginning")
        assert again.position == 0
        assert [record.decode()["id"] for record in await backend.journal.read(2, 10)] == ["another"]
        assert await backend.journal.append([], state, again._replace(position=3)) == 3
