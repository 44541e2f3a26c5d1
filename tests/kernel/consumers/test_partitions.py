"""Consumers and sinks on a store with several partitions: one sink object, a cursor in each partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.api import times
from ingestd.api.backend import Partition
from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.events import Record
from ingestd.api.record_batch import Batch
from ingestd.api.sink import Sink, Span
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.consumers.status import ConsumerTotals
from ingestd.delivery import BufferedSinkConsumer, SinkConsumer, SinkOptions, feeders_of, sink_statuses
from ingestd.delivery.operator_commands import set_paused
from ingestd.testing.sinks import make_records
from tests.support.journals import until
from tests.support.partitioned_backend import PartitionedBackend
from tests.support.sqlite_lock import locked

PARTITIONS = 3


class Watched(Sink):
    """Notes its calls, and fails if two of them overlap. `before` is called in each write."""

    def __init__(self, before: Callable[[Sequence[Record]], Awaitable[None]] | None = None) -> None:
        super().__init__("watched", self.Options())
        self.calls: list[str] = []
        self.tenants: list[str] = []
        self._busy = False
        self._before = before

    async def open(self) -> None:
        await self._call("open")

    async def write(self, batch: Sequence[Record]) -> None:
        await self._call("write", batch)
        self.tenants += [record.decode()["tenant"] for record in batch]

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, name: str, batch: Sequence[Record] = ()) -> None:
        assert not self._busy, f"{name} during another call"
        self._busy = True
        self.calls.append(name)
        await asyncio.sleep(0.001)
        try:
            if batch and self._before is not None:
                await self._before(batch)
        finally:
            self._busy = False


def feed(sink: Sink, **options: Any) -> SinkConsumer:
    given = SinkOptions(type="watched", start="beginning", **options)
    consumer = (BufferedSinkConsumer if sink.buffering else SinkConsumer)(sink, given)
    consumer.linger = 0.0
    return consumer


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[PartitionedBackend]:
    backend = PartitionedBackend(folder / "shop.db", PARTITIONS)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def running(backend: PartitionedBackend, *consumers: Consumer) -> AsyncIterator[PartitionConsumers]:
    all_of_them = PartitionConsumers(backend.partitions, consumers, died=_died)
    await all_of_them.start()
    try:
        yield all_of_them
    finally:
        await all_of_them.stop(10)


def _died(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


async def append(partition: Partition, count: int) -> None:
    records = make_records(count, tenant=f"shop {partition.name}")
    await partition.journal.commit(records, partition.store.begin(times.now()))


def status_of(consumers: PartitionConsumers) -> ConsumerTotals:
    return consumers.statuses[0]


async def test_the_partitions_share_one_sink_whose_calls_never_overlap(tmp_path: Path) -> None:
    sink = Watched()
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 1200)
        consumer = feed(sink)
        async with running(backend, consumer) as consumers:
            (status,) = sink_statuses(consumers, [consumer])
            await until(lambda: status.pending)
            await until(lambda: status.delivered == 3600)
            assert (status.pending, status.dead_letters, status.held) == (0, 0, True)
            assert status.oldest_pending_seconds == 0
            await append(backend.partitions[2], 1)
            await until(lambda: status.delivered == 3601)
    assert sorted(sink.tenants) == ["shop 0"] * 1200 + ["shop 1"] * 1200 + ["shop 2"] * 1201
    assert sink.calls == ["open", *["write"] * 10, "close"]


async def test_a_shutdown_begins_no_write_that_it_would_cut_off(tmp_path: Path) -> None:
    """While one partition writes, the others wait for their turns."""
    begun: list[Record] = []
    may_end = asyncio.Event()

    async def write(batch: Sequence[Record]) -> None:
        begun.extend(batch)
        await may_end.wait()
        may_end.clear()

    sink = Watched(write)
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 10)
        consumers = PartitionConsumers(backend.partitions, [feed(sink)], died=_died)
        await consumers.start()
        await until(lambda: all(group.statuses[0].in_hand for group in consumers.groups) and begun)
        asyncio.get_running_loop().call_later(0.3, may_end.set)
        assert sum((await consumers.stop(0)).values()) == 20
    assert len(begun) == len(sink.tenants) == 10


async def test_a_pause_after_a_long_rest_comes_before_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.support.periodic._LOOKS", 0.4)  # so that three partitions rest as long as many
    sink = Watched()
    async with opened(tmp_path) as backend, running(backend, feed(sink)) as consumers:
        first = consumers.groups[0].statuses[0]
        await append(backend.partitions[0], 1)
        await until(lambda: first.processed == 1)
        await asyncio.sleep(1.5)
        assert await set_paused(backend.partitions[0].store, "watched", paused=True)
        await append(backend.partitions[0], 1)
        await until(lambda: first.paused)
        assert first.processed == 1
        assert sink.tenants == ["shop 0"]


@pytest.mark.logs("partition 1", "database is locked", "the event store", "store is")
async def test_a_partition_that_cannot_commit_holds_up_no_other(tmp_path: Path) -> None:
    sink = Watched()
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 10)
        with locked(tmp_path / "shop-1.db"):
            consumers = PartitionConsumers(backend.partitions, [feed(sink)], died=_died)
            await consumers.start()
            for partition in (backend.partitions[0], backend.partitions[2]):
                await append(partition, 10)
            first, middle, last = (group.statuses[0] for group in consumers.groups)
            await until(lambda: (first.processed, last.processed) == (20, 20))
            assert middle.processed == 0
        await until(lambda: middle.processed == 10)
        await consumers.stop(5)


@pytest.mark.logs("sink:watched ")
async def test_a_failure_that_all_partitions_share_has_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    async def fail(batch: Sequence[Record]) -> None:
        if failing:
            raise SinkRetry("the depot is closed")

    caplog.set_level(logging.INFO, "ingestd.consumers")
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 10)
        async with running(backend, feed(Watched(fail))) as consumers:
            statuses = [group.statuses[0] for group in consumers.groups]
            await until(lambda: all(status.failures >= 3 for status in statuses))
            assert status_of(consumers).last_error == "the depot is closed"
            assert status_of(consumers).failures == sum(status.failures for status in statuses)
            failing = False
            await until(lambda: status_of(consumers).processed == 30)
    told = [message for message in caplog.messages if "the depot is closed" in message]
    assert len(told) <= 4, told  # the 1st, 2nd, 4th and 8th failure in a row, and not once for each partition
    assert len([message for message in caplog.messages if "works again" in message]) == 1
    assert status_of(consumers).last_error is None


class Counter(Consumer):
    """Counts the records of a partition."""

    name = "counter"

    def __init__(self, counts: dict[str, int], partition: str = "") -> None:
        self._counts = counts
        self._partition = partition

    def for_partition(self, name: str) -> Counter:
        return Counter(self._counts, name)

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self._counts[self._partition] = self._counts.get(self._partition, 0) + len(records)


class Undivided(Consumer):
    name = "undivided"

    async def process(self, records: Sequence[Record], step: Step) -> None:
        pass


async def test_the_consumer_of_a_plugin_runs_in_each_partition(tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    async with opened(tmp_path) as backend:
        for number, partition in enumerate(backend.partitions):
            await append(partition, 10 + number)
        async with running(backend, Counter(counts)) as consumers:
            await until(lambda: status_of(consumers).processed == 33)
        assert counts == {"0": 10, "1": 11, "2": 12}
        with pytest.raises(ConfigError, match="the consumer undivided cannot run on a store with several partitions"):
            PartitionConsumers(backend.partitions, [Undivided()], died=_died)


async def test_a_changed_sink_continues_in_all_partitions_with_its_counts(tmp_path: Path) -> None:
    before, after = Watched(), Watched()
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 10)
        old, new = feed(before), feed(after)
        async with running(backend, old) as consumers:
            await until(lambda: status_of(consumers).processed == 30)
            coming = await consumers.prepare_runners([new], ["sink:watched"])
            leaving = feeders_of(consumers, old)
            await consumers.exchange(["sink:watched"], coming, 5)
            assert before.calls[-1] == "close"
            for present, gone in zip(feeders_of(consumers, new), leaving, strict=True):
                present.count_on(gone)
            for partition in backend.partitions:
                await append(partition, 5)
            (status,) = sink_statuses(consumers, [new])
            await until(lambda: status.delivered == 45)
            assert status_of(consumers).processed == 45
    assert (len(before.tenants), len(after.tenants)) == (30, 15)


class Tokens(Watched):
    stable_batches = True
    tokens: list[str]

    async def write(self, batch: Sequence[Record]) -> None:
        assert isinstance(batch, Batch)
        await super().write(batch)
        self.tokens.append(batch.token)


async def test_batches_of_different_partitions_have_different_tokens(tmp_path: Path) -> None:
    sink = Tokens()
    sink.tokens = []
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 10)  # with the same ids in each
        async with running(backend, feed(sink)) as consumers:
            await until(lambda: status_of(consumers).processed == 30)
    assert len({*sink.tokens}) == PARTITIONS


SPANS: list[tuple[Span | None, list[str]]] = []
"""The flushes of all instances: the span and the tenants of the buffered records."""


class Buffer(Sink):
    buffering = True
    flush_after = 0.05

    async def open(self) -> None:
        self.tenants: list[str] = []

    async def write(self, batch: Sequence[Record]) -> None:
        self.tenants += [record.decode()["tenant"] for record in batch]

    async def flush(self, span: Span | None) -> None:
        SPANS.append((span, self.tenants))
        self.tenants = []


async def test_a_buffering_sink_has_a_buffer_for_each_partition(tmp_path: Path) -> None:
    SPANS.clear()
    sink = Buffer("watched", Buffer.Options())
    async with opened(tmp_path) as backend:
        for partition in backend.partitions:
            await append(partition, 10)
        async with running(backend, feed(sink)) as consumers:
            await until(lambda: status_of(consumers).processed == 30)
    found = {span.partition: (span.first, span.last, tenants) for span, tenants in SPANS if span is not None}
    assert found == {f"{number}": (1, 10, [f"shop {number}"] * 10) for number in range(PARTITIONS)}
