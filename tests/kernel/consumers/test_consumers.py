"""The promises to a consumer: order, a durable cursor, atomic steps, and no delay by other consumers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from ingestd.api.consumer import Consumer, NextAction, Step
from ingestd.api.errors import ConfigError, LeaseLost, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal, Start
from ingestd.api.store import State, state_key
from ingestd.consumers.group import Consumers, ConsumerStatus
from ingestd.consumers.runner import Runner
from ingestd.consumers.status import ConsumerTotals
from ingestd.observability.metrics import Metrics
from ingestd.support.backoff import Backoff
from ingestd.support.periodic import TIMING
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.examples import examples
from tests.support.journals import QUICK, append, read_all, running, until
from tests.support.passing_journal import PassingJournal

COUNTER = state_key("counter", "shop", "")

Process = Callable[[Sequence[Record], Step], Awaitable[None]]


class Reader(Consumer):
    """Records the batches that it gets, and then calls `then`."""

    def __init__(
        self,
        name: str = "reader",
        *,
        start: Start = "beginning",
        max_records: int = 500,
        linger: float = 0.0,
        then: Process | None = None,
    ) -> None:
        self.name = name
        self.start = start
        self.max_records = max_records
        self.linger = linger
        self.batches: list[list[int]] = []
        self.calls: list[str] = []
        self._then = then

    @property
    def seen(self) -> list[int]:
        return [position for batch in self.batches for position in batch]

    async def open(self) -> None:
        self.calls.append("open")

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self.calls.append("process")
        self.batches.append([record.position for record in records])
        if self._then is not None:
            await self._then(records, step)

    async def close(self) -> None:
        self.calls.append("close")


def at(status: ConsumerStatus, position: int) -> bool:
    return status.position == position


def has_in_hand(status: ConsumerStatus, processed: int) -> bool:
    return status.in_hand == 1 and status.processed == processed


async def hang(records: Sequence[Record], step: Step) -> None:
    await asyncio.Event().wait()


async def test_a_backlog_comes_in_order_in_steps_of_at_most_max_records(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(100))
        reader = Reader(max_records=30)
        async with running(backend, reader) as (status,):
            await until(lambda: status.position == 100)
            await append(backend, make_records(5))
        assert reader.seen == [*range(1, 106)]
        assert max(map(len, reader.batches)) == 30
        assert (reader.calls[0], reader.calls[-1]) == ("open", "close")
        assert (status.position, status.pending, status.processed, status.failures) == (105, 0, 105, 0)


async def test_what_a_consumer_has_prepared_is_the_next_step_as_it_was(tmp_path: Path) -> None:
    prepared: list[Sequence[Record]] = []
    steps: list[Sequence[Record]] = []

    class Preparing(Reader):
        def wants_more(self, records: Sequence[Record]) -> bool:
            return len(records) < self.max_records

        async def prepare(self, records: Sequence[Record]) -> None:
            prepared.append(records)
            await append(backend, make_records(5))  # which a part that is not full would take in

        async def process(self, records: Sequence[Record], step: Step) -> None:
            steps.append(records)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(70))
        async with running(backend, Preparing(max_records=30)) as (status,):
            await until(lambda: status.position >= 70 and status.pending == 0)
    assert prepared
    assert {id(records) for records in prepared} <= {id(records) for records in steps}


async def test_a_restarted_consumer_continues_at_its_cursor(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(10))
        async with running(backend, Reader()):
            pass
        await append(backend, make_records(10))
    async with sqlite_backend(tmp_path) as backend:
        reader = Reader(start="now")  # `start` applies to a consumer without a cursor only
        async with running(backend, reader):
            pass
        assert reader.seen == [*range(11, 21)]


async def test_a_new_consumer_gets_every_record_appended_after_its_start(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        async with running(backend, Reader("fresh", start="now"), patience=0):
            pass  # killed before its first step
        await append(backend, make_records(2))
        fresh, other = Reader("fresh", start="now"), Reader("other", start="now")
        async with running(backend, fresh, other):
            await append(backend, make_records(1))
        assert fresh.seen == [4, 5, 6]
        assert other.seen == [6]


class Deriving(Consumer):
    """Derives a record from each event, counts the events in the state, and sometimes fails in the middle of a step."""

    name = "deriving"

    def __init__(self, max_records: int, failing: Callable[[], bool]) -> None:
        self.max_records = max_records
        self._failing = failing

    async def process(self, records: Sequence[Record], step: Step) -> None:
        for record in records:
            if record.type == "event":
                step.append(Record("derived", step.state.now, record.body))
                count = int(await step.state.get(COUNTER) or 0) + 1
                await step.state.put(COUNTER, str(count))
            if self._failing():
                raise ConnectionError("now and then")


@pytest.mark.logs(r"deriving: ConnectionError: now and then; it is tried again")
@given(seed=st.integers(0, 1 << 32), max_records=st.integers(1, 12))
@examples(12)
def test_each_derived_record_is_stored_exactly_once(seed: int, max_records: int) -> None:
    """Steps fail, shutdowns interrupt steps, and daemons are started again."""
    chance = random.Random(seed)

    async def scenario(folder: Path) -> None:
        records = make_records(30)
        for start in (0, 10, 20):
            async with sqlite_backend(folder) as backend:
                deriving = Deriving(max_records, lambda: chance.random() < 0.1)
                async with running(backend, deriving, patience=0):
                    await append(backend, records[start : start + 10])
                    for _ in range(chance.randrange(40)):
                        await asyncio.sleep(0)
        async with sqlite_backend(folder) as backend:
            async with running(backend, Deriving(max_records, lambda: False)):
                pass
            derived = [record.body for record in await read_all(backend.journal) if record.type == "derived"]
            assert derived == [record.body for record in records]
            assert await backend.store.begin(0).get(COUNTER) == "30"

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


@pytest.mark.logs(r"failing: .*broken")
async def test_a_hanging_or_failing_consumer_harms_no_other(tmp_path: Path) -> None:
    async def fail(records: Sequence[Record], step: Step) -> None:
        raise OSError("broken")

    async with sqlite_backend(tmp_path) as backend:
        well = Reader("well")
        hanging, failing = Reader("hanging", then=hang), Reader("failing", then=fail)
        async with running(backend, hanging, failing, well, patience=0.1) as statuses:
            for _ in range(5):
                last = await append(backend, make_records(10))
                await until(partial(at, statuses[2], last))
            await until(lambda: statuses[0].pending == 50)
        assert [status.position for status in statuses] == [0, 0, 50]
        assert statuses[1].last_error == "OSError: broken"
        assert [consumer.calls[-1] for consumer in (hanging, failing, well)] == ["close"] * 3


@pytest.mark.logs(r"reader: not yet")
async def test_a_failed_step_comes_again_with_the_same_records(tmp_path: Path) -> None:
    attempts = 0

    async def fail_twice(records: Sequence[Record], step: Step) -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= 2:
            raise SinkRetry("not yet")

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(4))
        reader = Reader(then=fail_twice)
        async with running(backend, reader) as (status,):
            await until(lambda: status.position == 4 and status.last_error is None)
        assert reader.batches == [[1, 2, 3, 4]] * 3
        assert (status.processed, status.failures, status.last_error) == (4, 2, None)


@pytest.mark.logs(r"reader: busy")
async def test_a_failed_step_is_repeated_after_the_pause_that_its_error_asks_for(tmp_path: Path) -> None:
    times: list[float] = []

    async def busy_once(records: Sequence[Record], step: Step) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise SinkRetry("busy", after=0.3)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1))
        async with running(backend, Reader(then=busy_once)):
            pass
    assert times[1] - times[0] >= 0.3


@given(
    failures=st.integers(1, 5000),
    initial=st.floats(0.001, 10),
    maximum=st.floats(0.001, 100),
    chance=st.floats(0, 1),
)
def test_pauses_grow_to_a_limit_with_full_jitter(failures: int, initial: float, maximum: float, chance: float) -> None:
    longest = Backoff(initial, maximum, lambda: 1.0)
    pause = longest.pause(failures)
    assert pause <= maximum
    assert longest.pause(1) == min(initial, maximum)
    assert longest.pause(failures + 1) in {pause * 2, maximum}
    assert Backoff(initial, maximum, lambda: chance).pause(failures) == chance * pause


@pytest.mark.logs(r"reader: ")
async def test_each_new_reason_is_logged_but_not_every_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingestd")
    reasons = iter([*(f"first, see {uuid.uuid4()}" for _ in range(20)), *["second"] * 20])

    async def fail(records: Sequence[Record], step: Step) -> None:
        for reason in reasons:
            raise OSError(reason)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1))
        async with running(backend, Reader(then=fail)):
            await until(lambda: "works again" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if record.name == "ingestd.consumers"]
    assert re.fullmatch(r"reader: OSError: first, see \S+; it is tried again \(failure 1 in a row\)", lines[0])
    assert sum("first" in line for line in lines) == 5
    assert sum("second" in line for line in lines) == 2
    assert lines[-1] == "reader: works again after 40 failures"


@pytest.mark.logs(r"reader: .*; it is tried again")
async def test_only_unexpected_exceptions_are_logged_with_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[BaseException] = [
        SinkRetry("a"),
        ConnectionError("b"),
        ZeroDivisionError("c"),
        asyncio.CancelledError(),
    ]

    async def fail(records: Sequence[Record], step: Step) -> None:
        if errors:
            raise errors.pop(0)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1))
        async with running(backend, Reader(then=fail)):
            pass
    shown = [(record.levelname, record.exc_info is not None) for record in caplog.records if record.levelno > 20]
    assert shown == [("WARNING", False), ("WARNING", False), ("ERROR", True), ("ERROR", True)]


async def test_the_age_of_the_oldest_pending_record_of_a_slow_consumer_is_shown(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)

    async def slow(records: Sequence[Record], step: Step) -> None:
        await gate.acquire()

    async with sqlite_backend(tmp_path) as backend:
        records = make_records(3)
        metrics = Metrics()
        clock = [records[0].at + 60_000]
        shown = 'ingestd_consumer_oldest_pending_seconds{consumer="reader"}'
        async with running(backend, Reader(max_records=1, then=slow), now=lambda: clock[0]) as (status,):
            metrics.show_consumers([ConsumerTotals([status])])
            await append(backend, records)
            for done, record in enumerate(records):
                await until(partial(has_in_hand, status, done))
                clock[0] = record.at + 60_000
                assert f"{shown} 60.0" in generate_latest(metrics.registry).decode().splitlines()
                gate.release()
            await until(lambda: status.pending == 0)
            assert f"{shown} 0.0" in generate_latest(metrics.registry).decode().splitlines()
        assert status.failures == 0


@pytest.mark.logs(r"reader: ConnectionRefusedError")
async def test_opening_is_repeated_until_it_succeeds_and_pending_records_are_shown(tmp_path: Path) -> None:
    class Late(Reader):
        refuse = True

        async def open(self) -> None:
            if self.refuse:
                raise ConnectionRefusedError
            await super().open()

    async with sqlite_backend(tmp_path) as backend:
        late = Late()
        records = make_records(3)
        async with running(backend, late, now=lambda: records[0].at + 5000) as (status,):
            await append(backend, records)
            await until(lambda: status.oldest_pending_seconds == 5.0 and status.failures > 2)
            assert status.pending == 3
            assert status.last_error is not None
            late.refuse = False
        assert late.calls == ["open", "process", "close"]
        assert (status.oldest_pending_seconds, status.pending) == (0.0, 0)
        assert not status.last_error


async def test_a_step_lingers_for_more_but_not_when_it_is_full(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        patient, full = Reader("patient", linger=0.3), Reader("full", linger=3600, max_records=3)
        async with running(backend, patient, full):
            for _ in range(3):
                await append(backend, make_records(1))
        assert patient.batches == [[1, 2, 3]]
        assert full.batches == [[1, 2, 3]]


async def test_with_many_partitions_a_lone_record_comes_at_once_and_a_stream_of_records_in_few_steps(
    tmp_path: Path,
) -> None:
    async with sqlite_backend(tmp_path) as backend:
        reader = Reader()
        async with running(backend, reader, partitions=1024) as (status,):
            await until(lambda: status.held)
            await append(backend, make_records(1))
            await until(lambda: reader.seen == [1])
            for _ in range(20):
                await append(backend, make_records(1))
        assert reader.batches == [[1], [*range(2, 22)]]


async def test_with_many_partitions_a_full_step_waits_for_nothing(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        reader = Reader(max_records=3)
        await append(backend, make_records(9))
        async with running(backend, reader, partitions=1_000_000):
            await until(lambda: len(reader.seen) == 9)
        assert reader.batches == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


async def test_a_shutdown_ends_lingering(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        waiting, idle = Reader("waiting", linger=3600.0), Reader("idle", start="now", linger=3600.0)
        await append(backend, make_records(1))
        async with running(backend, waiting, idle) as (status, _):
            await until(lambda: status.held)
            await append(backend, make_records(1))
        assert (waiting.seen, idle.seen) == ([1, 2], [2])


class Commanded(Reader):
    """A sink with commands of operators. `actions` are the next ones; after these come records."""

    polls_commands = True

    def __init__(self, *, linger: float = 0.0, then: Process | None = None) -> None:
        super().__init__(linger=linger, then=then)
        self.actions: list[NextAction] = []
        self.commands = 0

    async def next_action(self, state: State) -> NextAction:
        return self.actions.pop(0) if self.actions else "records"

    async def command(self, step: Step, journal: Journal) -> None:
        self.commands += 1


async def test_a_command_does_not_wait_for_records_that_linger(tmp_path: Path) -> None:
    """A replay has many parts. New records that come meanwhile are delivered between them, few at a time."""
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1))
        sink = Commanded(linger=3600.0)
        sink.actions = ["command"] * 10
        async with running(backend, sink, partitions=1024) as (status,):
            await until(lambda: sink.commands == 10)
            await until(lambda: status.processed == 1)


@pytest.mark.logs("ingestd.consumers WARNING reader: the first write fails; it is tried again")
async def test_records_that_wait_while_a_sink_is_paused_are_read_again_if_a_person_was_forgotten(
    tmp_path: Path,
) -> None:
    async def fail_once(records: Sequence[Record], step: Step) -> None:
        got.append(records[0].body)
        if len(got) == 1:
            sink.actions = ["nothing"] * 2
            raise SinkRetry("the first write fails")

    got: list[bytes] = []
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1))
        (stored,) = await read_all(backend.journal)
        sink = Commanded(then=fail_once)
        consumers = Consumers(backend.journal, backend.store, [sink], died=lambda name, error: None, backoff=QUICK)
        await consumers.start()
        await until(lambda: consumers.statuses[0].paused)
        blank = b'{"erased":true}'
        await backend.journal.replace([(stored, blank)])
        consumers.person_forgotten()
        await until(lambda: len(got) == 2)
        await consumers.stop(1)
    assert got == [stored.body, blank]


async def test_at_shutdown_consumers_also_read_the_records_that_others_derive(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        reader = Reader("reader", max_records=7)
        async with running(backend, reader, Deriving(3, lambda: False)):
            await append(backend, make_records(50))
        assert reader.seen == [*range(1, 101)]


async def test_an_unfinished_step_at_shutdown_is_undone_and_its_records_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingestd")

    async def write_and_hang(records: Sequence[Record], step: Step) -> None:
        step.append(records[0])
        await step.state.put(COUNTER, "1")
        await asyncio.Event().wait()

    async with sqlite_backend(tmp_path) as backend:
        consumers = Consumers(
            backend.journal, backend.store, [Reader("slow", then=write_and_hang), Reader("well")], died=print, grace=0.2
        )
        await consumers.start()
        await append(backend, make_records(12))
        assert await consumers.stop(0.1) == {"slow": 12}
        assert "slow: 12 records left for the next start" in caplog.messages
        assert await backend.store.begin(0).get(COUNTER) is None
        assert len(await read_all(backend.journal)) == 12
        reader = Reader("slow")
        async with running(backend, reader):
            pass
        assert reader.seen == [*range(1, 13)]


@pytest.mark.logs(r"deaf: does not end; it is left behind", r"(sour|endless): could not be closed")
async def test_a_shutdown_waits_for_each_consumer_for_a_limited_time(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def be_deaf(records: Sequence[Record], step: Step) -> None:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    class Sour(Reader):
        async def close(self) -> None:
            raise RuntimeError("never")

    class Endless(Reader):
        async def close(self) -> None:
            await asyncio.Event().wait()

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1))
        well = Reader("well")
        async with running(backend, Reader("deaf", then=be_deaf), Sour("sour"), Endless("endless"), well, patience=0.1):
            await until(lambda: well.seen == [1])
        assert well.calls[-1] == "close"
        ended.set()
        await asyncio.sleep(0.05)


async def test_the_end_of_a_consumer_by_a_bug_is_reported(tmp_path: Path) -> None:
    class Bug(BaseException):
        """An exception that consumers must not raise."""

    async def die(records: Sequence[Record], step: Step) -> None:
        raise Bug

    died: list[tuple[str, BaseException]] = []
    async with sqlite_backend(tmp_path) as backend:
        consumers = Consumers(
            backend.journal, backend.store, [Reader(then=die)], died=lambda *death: died.append(death), backoff=QUICK
        )
        await consumers.start()
        await append(backend, make_records(1))
        await until(lambda: died)
        assert died[0][0] == "reader"
        assert isinstance(died[0][1], Bug)
        assert await consumers.stop(0.05) == {"reader": 1}


class Unreliable(PassingJournal):
    """A journal that fails at every third call."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._calls = 0

    def _fail_every_third_time(self) -> None:
        self._calls += 1
        if self._calls % 3 == 1:
            raise Unavailable("the disk is away")

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        self._fail_every_third_time()
        return await super().commit(records, state, cursor)

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        self._fail_every_third_time()
        return await super().read(after, limit)

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        self._fail_every_third_time()
        await super().wait(after, cursor)


@pytest.mark.logs(r"(deriving|journal): the disk is away; it is tried again")
async def test_failures_of_the_journal_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        records = make_records(20)
        await append(backend, records)
        async with running(backend, Deriving(7, lambda: False), journal=Unreliable(backend.journal)):
            pass
        derived = [record.body for record in await read_all(backend.journal) if record.type == "derived"]
        assert derived == [record.body for record in records]
        assert await backend.store.begin(0).get(COUNTER) == "20"


class SplitOnce(PassingJournal):
    """A journal whose first step ends the lease. Its cursor can be acquired again once the daemon stops."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.is_refused = False
        self.acquirable = asyncio.Event()
        self.acquirable.set()

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        await self.acquirable.wait()
        return await super().acquire_cursor(name, start)

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        if cursor is not None and not self.is_refused:
            self.is_refused = True
            self.acquirable.clear()
            raise LeaseLost("its last step is not in the journal yet")
        return await super().commit(records, state, cursor)


class Delivering(Consumer):
    """Writes records in parts of five, as sinks do: the next part is written while the former one is committed."""

    name = "delivering"
    start = "beginning"
    max_records = 5

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.is_writing = False
        self.may_write = asyncio.Event()
        self._prepared: Sequence[Record] = ()

    async def prepare(self, records: Sequence[Record]) -> None:
        await self._write(records)
        self._prepared = records

    async def process(self, records: Sequence[Record], step: Step) -> None:
        if records is not self._prepared:
            await self._write(records)

    async def _write(self, records: Sequence[Record]) -> None:
        self.is_writing = True
        await self.may_write.wait()
        self.delivered += [record.position for record in records]


async def test_a_shutdown_that_leaves_records_completes_what_is_being_written(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(20))
        first, second = Delivering(), Delivering()
        consumers = Consumers(backend.journal, backend.store, [first], died=lambda *_: None)
        await consumers.start()
        await until(lambda: first.is_writing)
        asyncio.get_running_loop().call_later(0.2, first.may_write.set)
        assert await consumers.stop(0.01) == {"delivering": 15}
        second.may_write.set()
        async with running(backend, second):
            pass
        assert first.delivered + second.delivered == [*range(1, 21)]


async def test_a_cursor_passes_to_another_daemon_only_when_all_that_was_written_is_committed(tmp_path: Path) -> None:
    class Passing(PassingJournal):
        """Another daemon wants the cursor while the second part is written ahead, and gets it at the next chance."""

        passed = 0

        async def wait(self, after: int, cursor: Cursor | None = None) -> None:
            if cursor is not None and not self.passed and len(delivering.delivered) > 5:
                self.passed += 1
                await self.release(cursor)
                raise LeaseLost("another daemon runs it from now on")
            await super().wait(after, cursor)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(20))
        delivering, journal = Delivering(), Passing(backend.journal)
        delivering.may_write.set()
        async with running(backend, delivering, journal=journal):
            await until(lambda: journal.passed)
        assert delivering.delivered == [*range(1, 21)]


async def test_a_cursor_passes_to_another_daemon_before_the_end_of_a_backlog(tmp_path: Path) -> None:
    class Slow(Delivering):
        async def _write(self, records: Sequence[Record]) -> None:
            await asyncio.sleep(0.02)
            await super()._write(records)

    class Passing(PassingJournal):
        passed_at: list[int]

        async def wait(self, after: int, cursor: Cursor | None = None) -> None:
            if cursor is not None and after:
                self.passed_at.append(after)
            await super().wait(after, cursor)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(400))
        slow, journal = Slow(), Passing(backend.journal)
        journal.passed_at = []
        slow.may_write.set()
        async with running(backend, slow, journal=journal):
            await until(lambda: journal.passed_at)
        assert 0 < journal.passed_at[0] < 400
        assert slow.delivered == [*range(1, 401)]


class Wanted(PassingJournal):
    """Another daemon wants the cursor once `wanted` is set, and gives it back at once."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.wanted = asyncio.Event()
        self.passed = 0

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        if cursor is not None and self.wanted.is_set():
            self.wanted.clear()
            self.passed += 1
            raise LeaseLost("another daemon runs it from now on")
        await super().wait(after, cursor)


async def test_a_cursor_that_passes_at_the_end_of_lingering_leaves_no_step_behind(tmp_path: Path) -> None:
    class Releasing(PassingJournal):
        """The release of the cursor begins while the consumer lingers, and takes longer than that."""

        releases = 0
        is_released = False

        async def wait(self, after: int, cursor: Cursor | None = None) -> None:
            if cursor is not None and self.is_released:
                self.is_released = False
                raise LeaseLost("another daemon runs it from now on")
            if cursor is not None and after > 3 and not self.releases:
                self.releases += 1
                self.is_released = True
                await asyncio.sleep(3600)
            await super().wait(after, cursor)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        reader, journal = Reader(linger=0.05), Releasing(backend.journal)
        async with running(backend, reader, journal=journal) as (status,):
            await until(lambda: at(status, 3))
        assert journal.releases == 1
        assert reader.calls == ["open", "close", "open", "process", "close"]


LONG = Backoff(initial=3600, maximum=3600)


@pytest.mark.logs(r"reader: the sink is away; it is tried again")
@pytest.mark.parametrize("fails", [False, True], ids=["paused", "failing"])
async def test_a_cursor_passes_while_the_consumer_is_paused_or_fails(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Reader):
        polls_commands = True

        async def next_action(self, state: State) -> NextAction:
            return "records" if fails else "nothing"

    async def away(records: Sequence[Record], step: Step) -> None:
        if not journal.passed:
            raise SinkRetry("the sink is away")

    monkeypatch.setattr(TIMING, "next_action", 0.01)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        journal, stuck = Wanted(backend.journal), Stuck(then=away)
        consumers = Consumers(journal, backend.store, [stuck], died=lambda *_: None, backoff=LONG)
        await consumers.start()
        (status,) = consumers.statuses
        await until(lambda: status.last_error if fails else status.paused)
        journal.wanted.set()
        await until(lambda: "close" in stuck.calls)
        await until((lambda: at(status, 3)) if fails else (lambda: status.paused))
        assert (journal.passed, status.held, status.last_error) == (1, True, None)
        await consumers.stop(0)


@pytest.mark.logs("reader: the store is away; it is tried again")
async def test_a_consumer_without_its_cursor_reads_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are its holder's, on another daemon."""

    class Away(Wanted):
        failures = 0

        async def acquire_cursor(self, name: str, start: Start) -> Cursor:
            if self.failures < 5:
                self.failures += 1
                raise Unavailable("the store is away")
            return await super().acquire_cursor(name, start)

    class Polling(Reader):
        polls_commands = True

        async def next_action(self, state: State) -> NextAction:
            assert journal.failures == 5
            return "records"

    monkeypatch.setattr(TIMING, "next_action", 0.0)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        reader, journal = Polling(), Away(backend.journal)
        journal.wanted.set()
        async with running(backend, reader, journal=journal) as (status,):
            await until(lambda: at(status, 3))
        assert (journal.failures, journal.passed) == (5, 1)


@pytest.mark.logs("reader: the store is away; it is tried again")
async def test_a_cursor_does_not_pass_before_what_was_written_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(Wanted):
        """Another daemon wants the cursor while a commit fails. `calls` has the results of commits, and the pass."""

        calls: list[str]

        async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
            if cursor is not None and len(self.calls) < 3:
                self.calls.append("failed")
                self.wanted.set()
                raise Unavailable("the store is away")
            self.calls.append("committed")
            return await super().commit(records, state, cursor)

        async def wait(self, after: int, cursor: Cursor | None = None) -> None:
            try:
                await super().wait(after, cursor)
            except LeaseLost:
                self.calls.append("passed")
                raise

    monkeypatch.setattr(TIMING, "next_action", 0.0)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        reader, journal = Reader(), Away(backend.journal)
        reader.polls_commands, journal.calls = True, []
        async with running(backend, reader, journal=journal):
            await until(lambda: journal.passed)
        assert journal.calls[:4] == ["failed", "failed", "failed", "committed"]


@pytest.mark.logs("delivering: the sink is away; it is tried again")
async def test_a_shutdown_does_not_wait_for_a_step_whose_preparation_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Delivering):
        async def prepare(self, records: Sequence[Record]) -> None:
            raise SinkRetry("the sink is away")

    monkeypatch.setattr("ingestd.consumers.group._STEP", 3600)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(20))
        failing = Failing()
        failing.may_write.set()
        consumers = Consumers(backend.journal, backend.store, [failing], died=lambda *_: None, backoff=LONG)
        await consumers.start()
        await until(lambda: consumers.statuses[0].last_error)
        async with asyncio.timeout(10):
            assert await consumers.stop(0) == {"delivering": 15}


async def test_a_shutdown_waits_for_a_consumer_that_acquires_its_cursor_again(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        reader, journal = Reader(), SplitOnce(backend.journal)
        await append(backend, make_records(3))
        async with running(backend, reader, journal=journal) as (status,):
            await until(lambda: journal.is_refused and not status.held)
            asyncio.get_running_loop().call_later(0.1, journal.acquirable.set)
        assert (status.position, status.processed, status.pending) == (3, 3, 0)


async def test_two_consumers_of_one_name_are_refused(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        with pytest.raises(ConfigError, match="two consumers named reader"):
            Consumers(backend.journal, backend.store, [Reader(), Reader()], died=print)


async def test_a_consumer_is_exchanged_after_its_step_while_others_continue(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(records: Sequence[Record], step: Step) -> None:
        begun.set()
        await go_on.wait()

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(10))
        other, old, new = Reader("other"), Reader(max_records=4, then=slow), Reader()
        consumers = Consumers(backend.journal, backend.store, [other, old], died=lambda name, error: None)
        await consumers.start()
        await begun.wait()
        await until(lambda: consumers.statuses[0].position == 10)
        coming = await coming_runners(consumers, new)
        exchanging = asyncio.ensure_future(consumers.exchange(["reader"], coming, 30))
        await append(backend, make_records(2))  # the exchange begins during this append
        await until(lambda: consumers.statuses[0].position == 12)
        assert not exchanging.done()
        assert new.calls == []
        go_on.set()
        await exchanging
        assert old.calls == ["open", "process", "close"]
        await until(lambda: {status.position for status in consumers.statuses} == {12})
        assert (old.seen, new.seen) == ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12])
        assert other.calls == ["open", "process", "process"]
        assert {status.name: status.processed for status in consumers.statuses} == {"other": 12, "reader": 12}
        await consumers.stop(10)


async def coming_runners(consumers: Consumers, reader: Reader) -> list[Runner]:
    """The runners of a reader that takes the place of the present one."""
    runners = consumers.make_runners([reader], leaving=["reader"])
    await consumers.ensure_cursors(runners)
    return runners


class Preparing(Reader):
    """Records the positions that it was asked to prepare."""

    def __init__(self) -> None:
        super().__init__(max_records=2)
        self.prepared: list[int] = []

    async def prepare(self, records: Sequence[Record]) -> None:
        self.prepared += [record.position for record in records]


@pytest.mark.parametrize("turns", [*range(0, 60, 3)])
async def test_prepared_records_are_processed_before_an_exchange(turns: int, tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(100))
        old, new = Preparing(), Reader()
        consumers = Consumers(backend.journal, backend.store, [old], died=lambda name, error: None)
        await consumers.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await consumers.exchange(["reader"], await coming_runners(consumers, new), 30)
        assert {*old.prepared} <= {*old.seen}
        await until(lambda: consumers.statuses[0].position == 100)
        assert old.seen + new.seen == [*range(1, 101)]
        await consumers.stop(10)


async def test_a_hanging_consumer_is_exchanged_after_a_time_limit_and_its_records_come_again(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(5))
        old, new = Reader(then=hang), Reader()
        consumers = Consumers(backend.journal, backend.store, [old], died=lambda name, error: None)
        await consumers.start()
        await until(lambda: old.seen == [1, 2, 3, 4, 5])
        await consumers.exchange(["reader"], await coming_runners(consumers, new), 0.01)
        await until(lambda: new.seen == [1, 2, 3, 4, 5])
        await consumers.stop(10)


async def test_a_new_consumer_with_the_name_of_another_is_refused(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        consumers = Consumers(backend.journal, backend.store, [Reader()], died=lambda name, error: None)
        await consumers.start()
        with pytest.raises(ConfigError, match="two consumers named reader"):
            consumers.make_runners([Reader()])
        await consumers.stop(10)


@pytest.mark.logs("reader: does not end; it is left behind")
async def test_a_forced_shutdown_waits_for_no_consumer(tmp_path: Path) -> None:
    async def deaf(records: Sequence[Record], step: Step) -> None:
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()

    go_on, forced = asyncio.Event(), asyncio.Event()
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(5))
        reader = Reader(then=deaf)
        consumers = Consumers(
            backend.journal, backend.store, [reader], died=lambda name, error: None, grace=3600, forced=forced
        )  # fmt: skip
        await consumers.start()
        await until(lambda: reader.seen == [1, 2, 3, 4, 5])
        stopping = asyncio.ensure_future(consumers.stop(3600))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        forced.set()
        assert await stopping == {"reader": 5}
        go_on.set()
        await asyncio.sleep(0.05)
