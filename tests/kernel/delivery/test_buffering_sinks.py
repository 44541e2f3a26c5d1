"""Buffering sinks: the cursor waits for the flush, and a flush after a crash replaces the interrupted one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ingestd.api import times
from ingestd.api.backend import Backend
from ingestd.api.errors import LeaseLost, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal
from ingestd.api.options import Duration
from ingestd.api.sink import Sink
from ingestd.api.store import State
from ingestd.delivery import BufferedSinkConsumer, SinkOptions
from ingestd.delivery.batch_plan import BATCH_PLAN, BatchPlan
from ingestd.delivery.dead_letters import read_letters
from ingestd.delivery.operator_commands import Replay, Retry, give_command, set_paused
from ingestd.delivery.options import BatchOptions, FilterOptions, RetryOptions
from ingestd.delivery.progress import PROGRESS, Progress
from ingestd.testing.crashes import killed_after
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.durable_sinks import FolderSink, lake
from tests.support.journals import append, running, until
from tests.support.passing_journal import PassingJournal


def fed(sink: Sink, most: int = 5, **filters: Any) -> BufferedSinkConsumer:
    options = SinkOptions(
        type="lake",
        start="beginning",
        timeout=Duration(5.0),
        batch=BatchOptions(max_events=most, max_wait=Duration(0.0)),
        retry=RetryOptions(attempts=2),
        filter=FilterOptions(**filters),
    )
    return BufferedSinkConsumer(sink, options)


async def progress_of(backend: Backend) -> Progress:
    progress = await PROGRESS.load(backend.store.begin(times.now()), "lake")
    assert progress is not None
    return progress


async def test_the_cursor_waits_for_the_flush_and_reading_goes_on(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake", most=20)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(18))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: len(sink.buffer) == 18)
            assert (status.position, status.pending, consumer.delivered) == (0, 18, 0)
            assert status.oldest_pending_seconds > 0
            await append(backend, make_records(22)[18:])
            await until(lambda: status.position == 22)
            assert (status.pending, status.processed, consumer.delivered) == (0, 22, 22)
            assert lake(tmp_path / "lake") == [*range(1, 23)]
        progress = await progress_of(backend)
        assert (progress.began, progress.delivered) == (0, 22)
    assert [span and span[:2] for span in sink.spans] == [(1, 22)]


async def test_an_old_buffer_is_flushed_although_nothing_comes(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake", flush_after=0.05)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: status.position == 3)
            assert status.oldest_at is None


async def test_a_shutdown_flushes_what_is_there(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(12))
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: len(sink.buffer) == 12)
        assert (status.position, status.pending) == (12, 0)
    assert lake(tmp_path / "lake") == [*range(1, 13)]
    assert len(sink.spans) == 1


async def test_a_pause_flushes_and_then_nothing_is_read(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: len(sink.buffer) == 3)
            await set_paused(backend.store, "lake", paused=True)
            await until(lambda: status.paused)
            assert status.position == 3
            await append(backend, make_records(5)[3:])
            await asyncio.sleep(0.6)
            assert sink.buffer == []
            await set_paused(backend.store, "lake", paused=False)
            await until(lambda: len(sink.buffer) == 2)
    assert lake(tmp_path / "lake") == [1, 2, 3, 4, 5]


@pytest.mark.logs("sink:lake: away")
async def test_a_pause_takes_effect_although_the_flush_fails(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    sink.failures = [SinkRetry("away")] * 1000
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: len(sink.buffer) == 3)
            await set_paused(backend.store, "lake", paused=True)
            await until(lambda: status.paused)
            sink.failures = []
            await set_paused(backend.store, "lake", paused=False)
            await until(lambda: not status.paused)
    assert lake(tmp_path / "lake") == [1, 2, 3]


@pytest.mark.logs("sink:lake: a record has become")
async def test_filtered_and_rejected_records_in_a_buffer_are_counted_with_it(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    sink.rejected = (3,)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(2, key="Cart Viewed"))
        await append(backend, make_records(5)[2:])
        await append(backend, make_records(9, key="Cart Viewed")[5:])
        consumer = fed(sink, most=4, keys=("Page View",))
        async with running(backend, consumer) as (status,):
            await until(lambda: len(sink.buffer) == 2 and status.pending == 9)
            assert (consumer.filtered, consumer.given_up) == (0, 0)
        progress = await progress_of(backend)
        assert (progress.delivered, progress.filtered, progress.given_up, progress.began) == (2, 6, 1, 0)
        letters = read_letters(backend.store.begin(times.now()), "lake", 0, 10)
        assert [(each.position, each.reason) async for each in letters] == [(3, "no")]
    assert status.position == 9


async def test_records_that_the_filter_leaves_out_need_no_flush(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(9))
        async with running(backend, fed(sink, keys=("Cart Viewed",))) as (status,):
            await until(lambda: status.position == 9)
    assert sink.spans == []


@pytest.mark.logs("sink:lake: ")
async def test_a_flush_that_fails_or_is_cancelled_is_made_again_with_the_same_span(tmp_path: Path) -> None:
    class Slow(FolderSink):
        hangs = True

        async def wrote_file(self) -> None:
            if self.hangs:
                self.hangs = False
                await asyncio.Event().wait()  # until the time limit

    sink = Slow(tmp_path / "lake", most=4)
    sink.failures = [SinkRetry("away"), ConnectionError("cut")]
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, [*make_records(2), *make_records(4, key="Cart Viewed")[2:]])
        consumer = fed(sink)
        consumer._timeout = consumer._sink_buffer._timeout = 0.1
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 4)
            assert status.failures == 3
    assert len(set(sink.spans)) == 1
    assert len(sink.spans) == 2
    assert lake(tmp_path / "lake") == [1, 2, 3, 4]


@pytest.mark.logs("sink:lake: ")
async def test_a_record_that_makes_every_flush_fail_becomes_a_dead_letter(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake", most=20)
    sink.poison = (7,)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(30))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position >= 20)
        progress = await progress_of(backend)
        assert (progress.delivered, progress.given_up) == (29, 1)
        letters = read_letters(backend.store.begin(times.now()), "lake", 0, 10)
        assert [(each.position, each.reason) async for each in letters] == [(7, "ValueError: poison")]
    assert {*lake(tmp_path / "lake")} == {*range(1, 31)} - {7}


@pytest.mark.logs("sink:lake: ")
async def test_a_record_that_makes_every_flush_fail_is_found_among_the_records_of_the_flush(tmp_path: Path) -> None:
    """No further record comes that could show that the sink takes others."""
    sink = FolderSink(tmp_path / "lake", most=5)
    sink.poison = (2,)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(5))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 5)
        assert (consumer.delivered, consumer.given_up) == (4, 1)
    assert {*lake(tmp_path / "lake")} == {1, 3, 4, 5}


@pytest.mark.logs("sink:lake: ")
async def test_a_record_that_makes_every_flush_of_a_replay_fail_becomes_a_dead_letter(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake", most=5)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(12))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position >= 10)
            sink.poison = (3,)
            await give_command(backend.store, "lake", Replay(first=1, last=9))
            number = 12
            while consumer.progress is None or consumer.progress.command != 1:
                number += 1  # new records, which the sink takes, show that the replayed one is at fault
                await append(backend, make_records(number)[-1:])
                await asyncio.sleep(0.05)
        progress = await progress_of(backend)
        assert (progress.delivered, progress.replayed, progress.given_up_again) == (number, 8, 1)


async def test_a_pause_and_a_replay_wait_for_the_records_of_an_interrupted_flush(tmp_path: Path) -> None:
    class Hanging(FolderSink):
        async def wrote_file(self) -> None:
            if len(self.spans) == 2:
                await asyncio.Event().wait()

    class Slow(FolderSink):
        async def write(self, batch: Sequence[Record]) -> None:
            if not self.spans:
                await asyncio.sleep(0.5)  # longer than the time between two looks for commands
            await super().write(batch)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(16))
        hanging = Hanging(tmp_path / "lake", most=6)
        async with running(backend, fed(hanging, most=2), patience=0.0):
            await until(lambda: len(hanging.spans) == 2)
        sink = Slow(tmp_path / "lake", most=6)
        consumer = fed(sink, most=2)
        async with running(backend, consumer) as (status,):
            await until(lambda: sink.buffer)
            await give_command(backend.store, "lake", Replay(first=1, last=6))
            await set_paused(backend.store, "lake", paused=True)
            await until(lambda: status.paused)
            assert sink.spans == []
            await set_paused(backend.store, "lake", paused=False)
            await until(lambda: consumer.progress is not None and consumer.progress.command == 1)
    assert sink.spans[:2] == [hanging.spans[1], None]
    assert {*lake(tmp_path / "lake")} == {*range(1, 17)}


def kill_amid_flush(folder: Path, have: int, files: int, most: int) -> None:
    """Append records until there are so many, and kill the process after it has written some files of a flush."""

    async def until_killed(report: Callable[[], None]) -> None:
        class Killed(FolderSink):
            async def wrote_file(self) -> None:
                report()
                nonlocal files
                files -= 1
                if not files:
                    await asyncio.Event().wait()

        async with sqlite_backend(folder) as backend:
            there = await backend.journal.last()
            await append(backend, mixed(there, have))
            async with running(backend, fed(Killed(folder / "lake", most=most)), patience=60.0):
                await asyncio.Event().wait()

    killed_after(files, until_killed)


def mixed(after: int, last: int) -> list[Record]:
    """Records with these numbers, each third with another key. So a flush has several files."""
    keys = ("Page View", "Page View", "Cart Viewed")
    return [make_records(number, key=keys[number % 3])[-1] for number in range(after + 1, last + 1)]


@pytest.mark.parametrize("files", [1, 2])
def test_kill_9_amid_a_flush_leaves_each_record_once(files: int, tmp_path: Path) -> None:
    """The next process has a smaller buffer, and other records at hand. Its first flush covers the same records."""
    kill_amid_flush(tmp_path, have=21, files=files, most=20)
    before = {path.name for path in (tmp_path / "lake").iterdir()}
    kill_amid_flush(tmp_path, have=40, files=3, most=3)

    async def the_rest() -> None:
        sink = FolderSink(tmp_path / "lake", most=10)
        async with sqlite_backend(tmp_path) as backend:
            await append(backend, mixed(40, 47))
            async with running(backend, fed(sink, most=4)):
                pass
            progress = await progress_of(backend)
            assert progress.delivered == 47

    asyncio.run(the_rest())
    assert len(before) == files
    assert lake(tmp_path / "lake") == [*range(1, 48)]


def test_kill_9_before_a_flush_brings_the_buffered_records_again(tmp_path: Path) -> None:
    async def until_killed(report: Callable[[], None]) -> None:
        class Told(FolderSink):
            async def write(self, batch: Sequence[Record]) -> None:
                await super().write(batch)
                if len(self.buffer) == 8:
                    report()

        async with sqlite_backend(tmp_path) as backend:
            await append(backend, make_records(8))
            async with running(backend, fed(Told(tmp_path / "lake")), patience=60.0):
                await asyncio.Event().wait()

    async def the_rest() -> None:
        async with sqlite_backend(tmp_path) as backend:
            async with running(backend, fed(FolderSink(tmp_path / "lake"))):
                pass
            assert (await progress_of(backend)).delivered == 8

    killed_after(1, until_killed)
    assert lake(tmp_path / "lake") == []
    asyncio.run(the_rest())
    assert lake(tmp_path / "lake") == [*range(1, 9)]


async def test_records_come_again_when_a_sink_with_a_buffer_is_closed_and_opened(tmp_path: Path) -> None:
    """As after another daemon had the sink, or a reload has replaced it."""
    sink = FolderSink(tmp_path / "lake")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(8))
        for _ in range(2):
            async with running(backend, fed(sink), patience=0.0):
                await until(lambda: len(sink.buffer) == 8)
            assert sink.buffer == []
        async with running(backend, fed(sink)) as (status,):
            pass
        assert status.position == 8
    assert lake(tmp_path / "lake") == [*range(1, 9)]


class LosingJournal(PassingJournal):
    """Some commits that move the cursor raise, before or after they are made."""

    def __init__(self, journal: Journal, error: Exception, *, after: bool) -> None:
        super().__init__(journal)
        self.losses = 0
        self._error = error
        self._after = after

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        is_lost = cursor is not None and cursor.record is not None and self.losses < 3
        if is_lost and not self._after:
            self.losses += 1
            raise self._error
        position = await super().commit(records, state, cursor)
        if is_lost:
            self.losses += 1
            raise self._error
        return position


@pytest.mark.logs("sink:lake: ")
@pytest.mark.parametrize(
    ("error", "after"), [(LeaseLost("moved"), False), (LeaseLost("moved"), True), (Unavailable("away"), False)]
)
async def test_a_flush_whose_commit_is_lost_leaves_each_record_once(
    error: Exception, after: bool, tmp_path: Path
) -> None:
    """Another daemon may have taken the sink, or the commit may have been made although its answer was lost."""
    sink = FolderSink(tmp_path / "lake", most=4)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(18))
        journal = LosingJournal(backend.journal, error, after=after)
        consumer = fed(sink, most=2)
        async with running(backend, consumer, journal=journal) as (status,):
            await until(lambda: journal.losses == 3)
        assert (status.processed, status.pending, consumer.delivered) == (18, 0, 18)
        assert (await progress_of(backend)).delivered == 18
    assert lake(tmp_path / "lake") == [*range(1, 19)]


async def test_a_plan_that_a_shorter_journal_cannot_meet_is_dropped(tmp_path: Path) -> None:
    """A journal that lost its end has fewer records than the flush before the crash."""
    sink = FolderSink(tmp_path / "lake", flush_after=0.05)
    async with sqlite_backend(tmp_path) as backend:
        state = backend.store.begin(times.now())
        await BATCH_PLAN.save(state, BatchPlan(1, 500, 7), "lake")
        await append(backend, make_records(3))
        await backend.store.commit(state)
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: status.position == 3)
    assert [span and span[:2] for span in sink.spans] == [(1, 3)]


@pytest.mark.logs("sink:lake: a record has become")
async def test_replays_and_retries_are_flushed_without_a_span(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    sink.rejected = (2,)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(12))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: len(sink.buffer) == 11)
            sink.rejected = ()
            await give_command(backend.store, "lake", Replay(first=1, last=12))
            await until(lambda: len(sink.spans) >= 2 and status.position == 12)
            await give_command(backend.store, "lake", Retry(last=1))
            await until(lambda: consumer.progress is not None and consumer.progress.command == 2)
            await append(backend, make_records(13)[12:])
            await until(lambda: len(sink.buffer) == 1)
        progress = await progress_of(backend)
        assert (progress.delivered, progress.given_up, progress.replayed, progress.retried) == (12, 1, 12, 1)
    assert [span and span[:2] for span in sink.spans] == [(1, 12), None, None, (13, 13)]


@pytest.mark.logs("sink:lake: ")
async def test_a_failed_replay_is_made_again_and_mixes_with_nothing(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake", most=8)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(16))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position >= 10)
            sink.failures = [SinkRetry("away"), ConnectionError("cut")]
            await give_command(backend.store, "lake", Replay(first=1, last=10))
            await append(backend, make_records(20)[16:])
            await until(lambda: consumer.progress is not None and consumer.progress.command == 1)
        progress = await progress_of(backend)
        assert (progress.delivered, progress.replayed) == (20, 10)
    assert {*lake(tmp_path / "lake")} == {*range(1, 21)}
    assert status.pending == 0


async def test_removed_records_are_counted_once_while_others_are_buffered(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "lake")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(4))
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: len(sink.buffer) == 4)
            last = await backend.journal.last()
            await backend.journal.trim(last, 100)
            status.trimmed(last)
            assert (status.pending, status.lost) == (4, 0), "buffered records are not lost"
            await append(backend, make_records(6)[4:])
            await until(lambda: len(sink.buffer) == 6)
        assert (status.processed, status.lost, status.pending) == (6, 0, 0)
    assert lake(tmp_path / "lake") == [*range(1, 7)]
