"""With many pending records, the next batch is written while the cursor moves past the previous one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ingestd.api.backend import Backend
from ingestd.api.errors import LeaseLost, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor
from ingestd.api.sink import Sink
from ingestd.api.store import State
from ingestd.consumers.group import Consumers
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.options import RetryOptions
from ingestd.delivery.progress import PROGRESS
from ingestd.plugins.stores.sqlite.backend import SqliteBackend
from ingestd.plugins.stores.sqlite.journal import SqliteJournal
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.journals import append, running, until


class Gated(SqliteJournal):
    """Cursors move only while `gate` is open. `fails` fails their appends, and `refuses` reports a lost cursor."""

    def __init__(self, backend: Backend) -> None:
        assert isinstance(backend, SqliteBackend)
        super().__init__(backend.database)
        self.gate = asyncio.Event()
        self.fails = self.refuses = False

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        if cursor is not None and cursor.position:
            await self.gate.wait()
            if self.fails:
                raise Unavailable("the disk is away")
            if self.refuses:
                raise LeaseLost("it is another's")
        return await super().commit(records, state, cursor)


class Noting(Sink):
    """Keeps its batches. `refuses` decides whether a batch fails."""

    def __init__(self) -> None:
        super().__init__("noting", self.Options())
        self.taken: list[int] = []
        self.writing = 0
        self.refuses: Callable[[Sequence[Record]], bool] = lambda batch: False

    async def write(self, batch: Sequence[Record]) -> None:
        self.writing += 1
        assert self.writing == 1, "two simultaneous writes"
        try:
            await asyncio.sleep(0)
            if self.refuses(batch):
                raise SinkRetry("busy")
            self.taken += [record.position for record in batch]
        finally:
            self.writing -= 1


class Hanging(Noting):
    """Hangs with the batch that begins at the position `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.hangs = asyncio.Event()
        self._at = at

    async def write(self, batch: Sequence[Record]) -> None:
        if batch[0].position == self._at:
            self.hangs.set()
            await asyncio.Event().wait()
        await super().write(batch)


def feed(sink: Sink) -> SinkConsumer:
    """A consumer with so many attempts that it never probes the sink with a delivered record."""
    retry = RetryOptions(attempts=1000)
    consumer = SinkConsumer(sink, SinkOptions(type="noting", start="beginning", retry=retry))
    consumer.max_records, consumer.linger = 10, 0.0
    return consumer


async def delivered(backend: Backend) -> int:
    progress = await PROGRESS.load(backend.store.begin(0), "noting")
    return 0 if progress is None else progress.delivered


async def test_only_one_batch_is_written_ahead_of_the_cursor(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(50))
        journal, sink = Gated(backend), Noting()
        async with running(backend, feed(sink), journal=journal) as (status,):
            await until(lambda: len(sink.taken) == 20)
            await asyncio.sleep(0.05)
            assert (status.position, status.processed, len(sink.taken)) == (0, 0, 20)
            journal.gate.set()
        assert sink.taken == [*range(1, 51)]
        assert (status.position, status.processed, await delivered(backend)) == (50, 50, 50)


class Waiting(Noting):
    """Its first write ends once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[bytes]] = []
        self.may_end = asyncio.Event()

    async def write(self, batch: Sequence[Record]) -> None:
        self.writes.append([record.body for record in batch])
        await self.may_end.wait()


async def test_no_write_that_begins_after_an_erasure_has_what_was_read_ahead_of_it(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(40))
        sink = Waiting()
        consumers = Consumers(backend.journal, backend.store, [feed(sink)], died=lambda name, error: None)
        await consumers.start()
        await until(lambda: len(sink.writes) == 1)
        await asyncio.sleep(0.05)  # two parts are read ahead
        blank = b'{"erased":true}'
        await backend.journal.replace([(record, blank) for record in await backend.journal.read(10, 30)])
        consumers.person_forgotten()
        sink.may_end.set()
        await until(lambda: consumers.statuses[0].pending == 0)
        await consumers.stop(1)
        assert [body for bodies in sink.writes[1:] for body in bodies] == [blank] * 30


@pytest.mark.logs("sink:noting: the disk is away; it is tried again")
async def test_a_failing_store_causes_no_repeated_write(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(50))
        journal, sink = Gated(backend), Noting()
        journal.gate.set()
        journal.fails = True
        async with running(backend, feed(sink), journal=journal) as (status,):
            await until(lambda: status.failures > 5)
            assert (status.position, len(sink.taken)) == (0, 20)
            journal.fails = False
        assert sink.taken == [*range(1, 51)]
        assert await delivered(backend) == 50


@pytest.mark.logs("sink:noting: busy; it is tried again")
async def test_a_batch_failing_ahead_of_the_cursor_does_not_delay_the_previous_step(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(50))
        sink = Noting()
        sink.refuses = lambda batch: batch[0].position == 21
        async with running(backend, feed(sink)) as (status,):
            await until(lambda: status.failures > 5)
            assert (status.position, status.processed, status.last_error) == (20, 20, "busy")
            assert await delivered(backend) == 20
            sink.refuses = lambda batch: False
        assert sink.taken == [*range(1, 51)]
        assert await delivered(backend) == 50


async def test_a_stop_ends_a_consumer_that_loses_its_cursor_at_the_same_time(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(50))
        journal, sink = Gated(backend), Hanging(at=11)
        journal.refuses = True
        async with running(backend, feed(sink), journal=journal, patience=0.1):
            await asyncio.wait_for(sink.hangs.wait(), 10)
            asyncio.get_running_loop().call_later(0.3, journal.gate.set)
        assert sink.taken == [*range(1, 11)]


@pytest.mark.logs("sink:noting: 30 records left for the next start")
async def test_a_stop_during_a_write_ahead_keeps_the_cursor_of_the_previous_batch(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(50))
        sink, hanging = Noting(), Hanging(at=21)
        async with running(backend, feed(hanging), patience=0.1) as (status,):
            await asyncio.wait_for(hanging.hangs.wait(), 10)
            await until(lambda: status.position == 20)
        async with running(backend, feed(sink)):
            pass
        assert hanging.taken == [*range(1, 21)]
        assert sink.taken == [*range(21, 51)]
        assert await delivered(backend) == 50
