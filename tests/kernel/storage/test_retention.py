"""Retention of the journal: it removes records by its limits, but no record that a consumer still needs."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.backend import Backend
from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, JournalStats, size_of
from ingestd.api.options import Duration, Size
from ingestd.config import JournalOptions
from ingestd.consumers.group import Consumers, ConsumerStatus
from ingestd.observability.metrics import Metrics
from ingestd.storage.retention import Retention
from ingestd.storage.retentions import Retentions
from tests.support.backends import sqlite_backend
from tests.support.journals import QUICK, append, until

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
DAY = 86_400_000
LOSS = r"records were removed from the journal before it read them"


def records(count: int, at: int = NOW, size: int = 100) -> list[Record]:
    """Records that count as `size` bytes each."""
    empty = size_of(Record("event", at, b""))
    return [Record("event", at, b"x" * (size - empty))] * count


class Gated(Consumer):
    """Does a step each time a test opens its gate. `delivered` has the positions of the processed records."""

    def __init__(self, name: str = "gated", max_records: int = 3) -> None:
        self.name = name
        self.max_records = max_records
        self.gate = asyncio.Semaphore(0)
        self.delivered: list[int] = []

    async def process(self, records: Sequence[Record], step: Step) -> None:
        await self.gate.acquire()
        self.delivered += [record.position for record in records]

    def open_gate(self) -> None:
        for _ in range(10_000):
            self.gate.release()


def at(status: ConsumerStatus, position: int) -> bool:
    return status.position == position


class Kept:
    """A journal with running consumers and its retention. A test calls the steps of the retention."""

    def __init__(self, backend: Backend, options: JournalOptions, consumers: Sequence[Consumer]) -> None:
        self.journal = backend.journal
        self.backend = backend
        self.clock = NOW
        self.refusals: list[str | None] = []
        self.consumers = Consumers(backend.journal, backend.store, consumers, died=self._died, backoff=QUICK, grace=0.2)
        self.statuses = self.consumers.statuses
        self.retention = Retention(
            backend.journal, options, self.consumers, refuse=self.refusals.append, now=lambda: self.clock
        )

    def _died(self, name: str, error: BaseException) -> None:
        raise error

    async def settle(self) -> int:
        """Do steps until nothing more is removed. Returns the number of removed records."""
        total = quiet = 0
        while quiet < 2:  # the first step finds that the journal is full, the next acts on it
            removed = await self.retention.step()
            total += removed
            quiet = 0 if removed else quiet + 1
        return total

    async def first(self) -> int:
        return (await self.journal.extent()).first


@asynccontextmanager
async def kept(backend: Backend, options: JournalOptions, *consumers: Consumer) -> AsyncIterator[Kept]:
    journal = Kept(backend, options, consumers)
    await journal.consumers.start()
    await journal.retention.start()
    try:
        yield journal
    finally:
        await journal.consumers.stop(0)


async def test_records_older_than_keep_for_are_removed(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(700, NOW - DAY - 1) + records(10, NOW - DAY) + records(10))
        async with kept(backend, JournalOptions(keep_for=Duration.parse("1d"))) as journal:
            assert await journal.settle() == 700
            assert await journal.first() == 701
            journal.clock += 1
            assert await journal.settle() == 10
            journal.clock += DAY
            assert await journal.settle() == 10
            assert await journal.settle() == 0
            assert journal.retention.removed == {"age": 720, "size": 0, "full": 0}


async def test_records_with_a_future_time_delay_no_removal_and_go_with_the_next_old_record(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        wrong = records(3, NOW + 1000 * DAY)
        await append(backend, wrong + records(2, NOW - 2 * DAY) + wrong + records(2, NOW))
        async with kept(backend, JournalOptions(keep_for=Duration.parse("1d"))) as journal:
            assert await journal.settle() == 5
            journal.clock += DAY + 1
            assert await journal.settle() == 5


async def test_beyond_keep_size_the_oldest_records_are_removed(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(2000))
        async with kept(backend, JournalOptions(keep_size=Size(1950.0))) as journal:
            assert await journal.settle() == 1981
            assert await journal.first() == 1982
            await append(backend, records(1))
            assert await journal.settle() == 1


async def test_no_record_that_a_consumer_needs_is_removed(tmp_path: Path) -> None:
    """A consumer also needs the records in hand, which it has not finished."""
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(20, NOW - 2 * DAY))
        quick, slow = Gated("quick", 20), Gated("slow")
        options = JournalOptions(keep_for=Duration.parse("1d"), keep_size=Size(1.0))
        async with kept(backend, options, quick, slow) as journal:
            quick.gate.release()
            await until(lambda: journal.statuses[0].position == 20)
            assert await journal.settle() == 0
            slow.gate.release()
            await until(lambda: journal.statuses[1].position == 3)
            assert await journal.settle() == 3
            slow.open_gate()
            await until(lambda: not journal.statuses[1].pending)
            assert await journal.settle() == 17
            assert [status.lost for status in journal.statuses] == [0, 0]
        assert slow.delivered == quick.delivered == [*range(1, 21)]


@pytest.mark.logs(f"gated: 7 {LOSS}")
async def test_without_wait_for_consumers_unread_records_are_removed_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(20))
        gated = Gated()
        options = JournalOptions(keep_size=Size(1000.0), wait_for_consumers=False)
        async with kept(backend, options, gated) as journal:
            (status,) = journal.statuses
            await until(lambda: status.in_hand)
            assert await journal.settle() == 10
            # The three records in hand are still processed.
            assert (status.lost, status.pending, status.processed) == (7, 13, 0)
            gated.open_gate()
            await until(lambda: not status.pending)
            assert (status.lost, status.processed, status.position) == (7, 13, 20)
            await append(backend, records(5))
            await until(lambda: status.position == 25)
            assert status.lost == 7
        assert gated.delivered == [1, 2, 3, *range(11, 26)]
    assert len([line for line in caplog.messages if "removed" in line]) == 1


@pytest.mark.logs("the journal is full .* and waits for gated; events are refused")
async def test_a_full_journal_refuses_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ingestd.retention")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(19))
        gated = Gated(max_records=1)
        async with kept(backend, JournalOptions(max_size=Size(2000.0)), gated) as journal:
            await journal.settle()
            assert journal.refusals == []
            await append(backend, records(1))
            for _ in range(3):
                await journal.settle()
            assert journal.refusals == ["The journal is full. Send the request again later."]
            problem = journal.retention.problem
            assert problem == "the journal is full ([journal] max_size = 2kB) and waits for gated"
            gated.gate.release()
            await until(lambda: gated.delivered == [1] and journal.statuses[0].position == 1)
            await append(backend, records(1, size=50))  # such as a record of a consumer
            assert await journal.settle() == 1
            assert len(journal.refusals) == 1, "without enough room it does not alternate between full and not full"
            gated.gate.release()
            await until(lambda: journal.statuses[0].position == 2)
            assert await journal.settle() == 1
            assert journal.refusals[1:] == [None]
            assert journal.retention.problem is None
            assert journal.statuses[0].lost == 0
    lines = [(line.levelname, line.getMessage()) for line in caplog.records if line.name == "ingestd.retention"]
    assert [level for level, _ in lines] == ["WARNING", "INFO"]


async def test_max_size_removes_processed_records_despite_keep_for_and_keep_size(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        options = JournalOptions(max_size=Size(1000.0), keep_for=Duration.parse("90d"), keep_size=Size(5000.0))
        gated = Gated()
        gated.open_gate()
        async with kept(backend, options, gated) as journal:
            for _ in range(5):
                last = await append(backend, records(8))
                await until(partial(at, journal.statuses[0], last))
                await journal.settle()
                assert (await journal.journal.extent()).bytes <= 1000
            assert journal.refusals == []
            assert journal.retention.removed["full"] == 31
        assert gated.delivered == [*range(1, 41)]


@pytest.mark.logs(rf"stuck: \d+ {LOSS}")
async def test_dropping_counts_the_losses_of_each_consumer(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        stuck, well = Gated("stuck"), Gated("well")
        well.open_gate()
        metrics = Metrics()

        def lost(name: str) -> float | None:
            return metrics.registry.get_sample_value("ingestd_journal_lost_total", {"consumer": name})

        async with kept(backend, JournalOptions(max_size=Size(1000.0), on_full="drop"), stuck, well) as journal:
            metrics.show_journal(Retentions([journal.retention]))
            assert metrics.registry.get_sample_value("ingestd_journal_max_bytes") == 1000
            status = journal.statuses[0]
            for _ in range(10):
                last = await append(backend, records(3))
                await until(partial(at, journal.statuses[1], last))
                await journal.settle()
                assert (await journal.journal.extent()).bytes < 1000
                await until(lambda: status.last == last)  # noqa: B023 - awaited within the iteration
                assert status.processed + status.pending + status.lost == status.last
            assert journal.refusals == []
            assert (lost("stuck"), lost("well")) == (status.lost, 0)
            before = status.lost
            stuck.open_gate()
            while status.pending:
                assert status.lost == before, "a counter never decreases"
                await asyncio.sleep(0)
            assert len(stuck.delivered) + before == 30
            assert stuck.delivered == [1, 2, 3, *range(4 + before, 31)]
        assert well.delivered == [*range(1, 31)]


async def test_records_removed_by_others_are_skipped_and_counted(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        gated = Gated()
        async with kept(backend, JournalOptions(), gated) as journal:
            (status,) = journal.statuses
            await append(backend, records(13))
            await until(lambda: status.in_hand)
            await append(backend, [])  # the consumer has read ahead one or two batches by now
            await backend.journal.trim(13, 100)
            while (before := status.position) < 13:
                gated.gate.release()
                await until(lambda: status.position == 13 or (status.in_hand and status.position > before))
            assert gated.delivered in ([*range(1, 7)], [*range(1, 10)])
            lost = 13 - len(gated.delivered)
            await append(backend, records(4))
            await until(lambda: status.in_hand)
            await backend.journal.trim(16, 100)
            gated.open_gate()
            await until(lambda: status.position == 17)
            assert gated.delivered[-4:] == [14, 15, 16, 17]
            assert (len(gated.delivered), status.lost, status.pending) == (17 - lost, lost, 0)
        async with kept(backend, JournalOptions(), Gated()) as again:
            assert (again.statuses[0].position, again.statuses[0].lost) == (17, 0)


async def test_cursors_of_former_consumers_keep_no_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ingestd.retention")
    async with sqlite_backend(tmp_path) as backend:
        await backend.journal.commit([], backend.store.begin(NOW), Cursor("sink:old", 0))
        await append(backend, records(10))
        gated = Gated(max_records=10)
        gated.open_gate()
        async with kept(backend, JournalOptions(keep_size=Size(1.0)), gated) as journal:
            await until(lambda: journal.statuses[0].position == 10)
            assert await journal.settle() == 10
    (line,) = [line for line in caplog.records if line.name == "ingestd.retention"]
    assert line.levelname == "INFO"
    assert line.getMessage().endswith(": sink:old")


async def test_a_journal_of_a_version_without_totals_is_counted_once(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(300))
        await backend.journal.trim(100, 100)
    with closing(sqlite3.connect(tmp_path / "ingestd.db")) as before, before:
        for trigger in "journal_delete", "journal_update", "state_delete", "state_update":
            before.execute(f"DROP TRIGGER {trigger}")
        for later in "totals", "member", "renewal", "field":
            before.execute(f"DROP TABLE {later}")
        before.execute("PRAGMA user_version = 1")
    before.close()
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(1))
        assert await backend.journal.extent() == JournalStats(101, 301, 201, 20_100, NOW)


async def test_metrics_show_the_journal(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records(10, NOW - 5000))
        async with kept(backend, JournalOptions(keep_size=Size(700.0))) as journal:
            metrics = Metrics()
            metrics.show_journal(Retentions([journal.retention]))
            value = metrics.registry.get_sample_value
            assert value("ingestd_journal_records") == 10
            await journal.settle()
            assert value("ingestd_journal_records") == 7
            assert value("ingestd_journal_bytes") == 700
            assert value("ingestd_journal_max_bytes") == math.inf
            assert value("ingestd_journal_oldest_seconds") == 5
            assert value("ingestd_journal_removed_total", {"reason": "size"}) == 3
            assert value("ingestd_journal_removed_total", {"reason": "age"}) == 0


OPTIONS = st.builds(
    JournalOptions,
    keep_for=st.none() | st.just(Duration.parse("10s")),
    keep_size=st.none() | st.integers(100, 2000).map(lambda size: Size(float(size))),
    max_size=st.none() | st.integers(300, 3000).map(lambda size: Size(float(size))),
    on_full=st.sampled_from(["refuse", "drop"]),
    wait_for_consumers=st.booleans(),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12), st.integers(33, 300)),
    st.tuples(st.just("consume"), st.integers(0, 1), st.integers(1, 4)),
    st.tuples(st.just("consume"), st.just(2), st.integers(1, 3)),  # both consumers
    st.tuples(st.just("wait"), st.integers(0, 12_000), st.just(0)),
    st.tuples(st.just("set the clock wrong"), st.integers(-20_000, 20_000), st.just(0)),
    st.tuples(st.just("retain"), st.just(0), st.just(0)),
)


@pytest.mark.logs(LOSS, "the journal is full")
@example(  # the last record has a future time, and becomes old later
    options=JournalOptions(keep_for=Duration.parse("10s")),
    operations=[
        ("wait", 10_001, 0), ("set the clock wrong", 1, 0), ("append", 1, 33), ("retain", 0, 0), ("wait", 10_002, 0)
    ],
)  # fmt: skip
@example(  # in a full journal, old records after those beyond the bound of size are removed too
    options=JournalOptions(
        max_size=Size(300.0), on_full="drop", keep_for=Duration.parse("10s"), wait_for_consumers=False
    ),
    operations=[("set the clock wrong", -10_001, 0), ("append", 6, 33)],
)
@given(options=OPTIONS, operations=st.lists(OPERATIONS, max_size=25))
def test_retention_obeys_all_its_rules_for_any_options_and_operations(
    options: JournalOptions, operations: list[tuple[str, int, int]]
) -> None:
    async def scenario(folder: Path) -> None:
        async with sqlite_backend(folder) as backend:
            gated = [Gated("one", 2), Gated("two", 5)]
            async with kept(backend, options, *gated) as journal:
                await _go_through(journal, gated, options, operations)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


async def _go_through(
    journal: Kept, gated: list[Gated], options: JournalOptions, operations: list[tuple[str, int, int]]
) -> None:
    model: list[Record] = []  # all records ever appended; those before `first` are removed
    first = 1
    wrong = 0  # the error of the clock that gives records their times
    for operation, one, two in [("append", 12, 100), *operations, ("retain", 0, 0)]:
        if operation == "append":
            new = records(one, journal.clock + wrong, two)
            model += new
            await append(journal.backend, new)
        elif operation == "consume":
            for _ in range(two):
                await _in_hand(journal, model)
                for status, consumer in [*zip(journal.statuses, gated, strict=True)][one % 2 : one + 1]:
                    await _let_do_a_step(status, consumer)
        elif operation == "wait":
            journal.clock += one
        elif operation == "set the clock wrong":
            wrong = one
        else:
            await _in_hand(journal, model)
            await journal.settle()
            extent = await journal.journal.extent()
            held = model[extent.first - 1 :]
            assert (extent.last, extent.records) == (len(model), len(held))
            assert extent.bytes == sum(map(size_of, held))
            _judge_removal(model, first, extent.first, options, journal.clock)
            _judge_what_stays(journal, model, extent, options)
            first = extent.first
        await _in_hand(journal, model)
        for status, consumer in zip(journal.statuses, gated, strict=True):
            assert len(consumer.delivered) == status.processed
            assert status.processed + status.pending + status.lost == len(model)
    for consumer in gated:
        consumer.open_gate()
    await until(lambda: not any(status.pending for status in journal.statuses))
    for status, consumer in zip(journal.statuses, gated, strict=True):
        assert consumer.delivered == sorted(set(consumer.delivered))
        assert len(consumer.delivered) + status.lost == len(model)


async def _in_hand(journal: Kept, model: list[Record]) -> None:
    """Wait until all consumers have their next records in hand."""
    for status in journal.statuses:
        status.last = max(status.last, len(model))
    await until(lambda: all(status.in_hand or not status.pending for status in journal.statuses))


async def _let_do_a_step(status: ConsumerStatus, consumer: Gated) -> None:
    if status.in_hand:
        done = status.processed
        consumer.gate.release()
        await until(lambda: status.processed > done)


def _judge_removal(model: list[Record], start: int, end: int, options: JournalOptions, now: int) -> None:
    """Each removed record was old, or beyond a bound of size."""
    limits = [int(options.keep_size)] if options.keep_size is not None else []
    limits += [int(options.max_size * 0.95)] if options.max_size is not None else []
    for position in range(start, end):
        size = sum(map(size_of, model[position - 1 :]))
        # A record counts as old if any later record is old, whatever its own time is.
        old = options.keep_for is not None and any(record.at < now - 10_000 for record in model[position - 1 : end - 1])
        assert old or any(size > limit for limit in limits)


def _judge_what_stays(journal: Kept, model: list[Record], extent: JournalStats, options: JournalOptions) -> None:
    """The bounds hold except for records that consumers need. These stay if they must."""
    needed = min(status.position for status in journal.statuses)
    drops = options.max_size is not None and options.on_full == "drop"
    if options.wait_for_consumers and not drops:
        assert not any(status.lost for status in journal.statuses)
    if extent.first <= (needed if options.wait_for_consumers else len(model)):
        assert options.keep_size is None or extent.bytes <= options.keep_size
        assert options.keep_for is None or model[extent.first - 1].at >= journal.clock - 10_000
    if options.max_size is not None:
        assert extent.bytes < options.max_size or (journal.retention.problem is not None and not drops)
        assert extent.first > needed or extent.bytes <= options.max_size * 0.95 + 1
