"""Sinks that say how much they have written, and sinks whose batches a crash does not change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest

from ingestd.api import times
from ingestd.api.errors import SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Duration, Size
from ingestd.api.record_batch import Batch, lines_of
from ingestd.api.sink import Sink
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.dead_letters import read_letters
from ingestd.delivery.options import BatchOptions, FilterOptions, RetryOptions
from ingestd.delivery.progress import PROGRESS
from ingestd.testing.crashes import killed_after
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.durable_sinks import TokenSink
from tests.support.journals import append, running, until


def fed(sink: Sink, most: int = 500, keys: tuple[str, ...] | None = None, size: str = "4MiB") -> SinkConsumer:
    options = SinkOptions(
        type="tested",
        start="beginning",
        batch=BatchOptions(max_events=most, max_bytes=Size.parse(size), max_wait=Duration(0.0)),
        retry=RetryOptions(attempts=3),
        filter=FilterOptions(keys=keys),
    )
    return SinkConsumer(sink, options)


class Partial(Sink):
    """A sink whose next writes raise the given errors. It keeps as many records as the error says."""

    def __init__(self, *errors: SinkRetry | SinkReject | SinkFailure) -> None:
        super().__init__("partial", self.Options())
        self.errors = [*errors]
        self.batches: list[list[int]] = []
        self.has: list[int] = []

    async def write(self, batch: Sequence[Record]) -> None:
        numbers = [record.decode()["data"]["number"] for record in batch]
        self.batches.append(numbers)
        if self.errors:
            error = self.errors.pop(0)
            rejected = {numbers[index] for index in error.reasons} if isinstance(error, SinkReject) else set()
            self.has += [number for number in numbers[: error.written] if number not in rejected]
            raise error
        self.has += numbers


@pytest.mark.logs("sink:partial: ")
@pytest.mark.parametrize("error", [SinkRetry("full", written=3), SinkFailure("lost", written=3)])
async def test_records_that_a_failed_write_has_written_do_not_come_again(
    error: SinkRetry | SinkFailure, tmp_path: Path
) -> None:
    sink = Partial(error)
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(8))
        async with running(backend, fed(sink)) as (status,):
            await until(lambda: status.position == 8)
            assert status.failures == 1, "the failure is shown, and a pause follows it"
    assert sink.has == [*range(1, 9)]
    assert sink.batches == [[*range(1, 9)], [*range(4, 9)]]


@pytest.mark.logs("sink:partial: full")
async def test_a_partial_write_is_durable_before_the_next_attempt(tmp_path: Path) -> None:
    """The cursor moves past the written records, although the sink never takes another one."""

    class Stuck(Partial):
        async def write(self, batch: Sequence[Record]) -> None:
            await super().write(batch)
            await asyncio.Event().wait()

    sink = Stuck(SinkRetry("full", written=5))
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(8))
        async with running(backend, fed(sink), patience=0.0) as (status,):
            await until(lambda: status.position == 5)
            progress = await PROGRESS.load(backend.store.begin(times.now()), "partial")
            assert progress is not None
            assert progress.delivered == 5


@pytest.mark.logs("sink:partial: ")
@pytest.mark.parametrize(
    ("written", "second"), [(0, [1, 3, 4, 6]), (1, [3, 4, 6]), (2, [3, 4, 6]), (4, [6]), (6, None)]
)
async def test_a_rejection_can_say_which_other_records_are_written(
    written: int, second: list[int] | None, tmp_path: Path
) -> None:
    sink = Partial(SinkReject({1: "two", 4: "five"}, written=written))
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(6))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 6)
        letters = read_letters(backend.store.begin(times.now()), "partial", 0, 10)
        assert [(each.position, each.reason) async for each in letters] == [(2, "two"), (5, "five")]
    assert sink.has == [1, 3, 4, 6], "each of the others once"
    assert sink.batches[1:] == ([] if second is None else [second])
    assert (consumer.delivered, consumer.given_up) == (4, 2)


@pytest.mark.logs("sink:partial: ")
async def test_a_rejection_and_a_failure_after_a_part_are_both_kept(tmp_path: Path) -> None:
    sink = Partial(SinkReject({1: "two", 6: "seven"}, written=3), SinkRetry("full", written=2))
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(8))
        consumer = fed(sink)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 8)
    assert sink.batches == [[1, 2, 3, 4, 5, 6, 7, 8], [4, 5, 6, 8], [6, 7, 8]]
    assert sink.has == [1, 3, 4, 5, 6, 7, 8], "the rejection of 7 was not yet durable, so 7 came again"
    assert (consumer.delivered, consumer.given_up) == (7, 1)


@pytest.mark.logs("sink:partial: ")
@pytest.mark.parametrize("written", [-1, 4, True, "2"])
async def test_an_impossible_number_of_written_records_is_a_failure(written: int, tmp_path: Path) -> None:
    sink = Partial()
    failure = SinkRetry("full", written=written)

    class Wrong(Partial):
        async def write(self, batch: Sequence[Record]) -> None:
            if not sink.batches:
                sink.batches.append([])
                raise failure
            await sink.write(batch)

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(3))
        async with running(backend, fed(Wrong())) as (status,):
            await until(lambda: status.position == 3)
    assert sink.has == [1, 2, 3]


def tokens(sink: TokenSink) -> dict[str, list[int]]:
    """The records of each token. A token must always come with the same records."""
    known: dict[str, list[int]] = {}
    for token, numbers in sink.writes():
        assert known.setdefault(token, numbers) == numbers
    return known


def test_after_kill_9_the_same_batch_comes_again_with_the_same_token(tmp_path: Path) -> None:
    """Each killed process had other records at hand, so an unplanned batch would end elsewhere."""
    path = tmp_path / "writes"

    def killed_amid_write(total: int, writes: int) -> None:
        async def until_killed(report: Callable[[], None]) -> None:
            class Killed(TokenSink):
                async def write(self, batch: Sequence[Record]) -> None:
                    await super().write(batch)
                    report()
                    if len(self.writes()) >= writes:
                        await asyncio.Event().wait()

            async with sqlite_backend(tmp_path) as backend:
                have = await backend.journal.last()
                await append(backend, [*make_records(total)][have:])
                async with running(backend, fed(Killed(path), most=5), patience=60.0):
                    await asyncio.Event().wait()

        killed_after(writes - len(TokenSink(path).writes()), until_killed)

    async def the_rest() -> None:
        async with sqlite_backend(tmp_path) as backend:
            await append(backend, make_records(40)[23:])
            async with running(backend, fed(TokenSink(path), most=7)) as (status,):
                await until(lambda: status.position == 40)

    killed_amid_write(3, 1)  # the first batch has 3 records
    killed_amid_write(9, 2)  # more records are there now
    killed_amid_write(23, 5)
    asyncio.run(the_rest())
    known = tokens(TokenSink(path))
    assert sorted(chain(*known.values())) == [*range(1, 41)], "stored once by token, each record is there once"
    assert len(TokenSink(path).writes()) > len(known), "some batches came twice"


async def test_a_batch_is_completed_although_the_largest_batch_is_smaller_now(tmp_path: Path) -> None:
    path = tmp_path / "writes"

    class Hanging(TokenSink):
        async def write(self, batch: Sequence[Record]) -> None:
            await super().write(batch)
            await asyncio.Event().wait()

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(20))
        async with running(backend, fed(Hanging(path), most=15), patience=0.0):
            await until(path.exists)
        async with running(backend, fed(TokenSink(path), most=4, size="1KiB")) as (status,):
            await until(lambda: status.position == 20)
    assert [numbers for _, numbers in TokenSink(path).writes()[:2]] == [[*range(1, 16)]] * 2
    assert len({token for token, _ in TokenSink(path).writes()[:2]}) == 1


async def test_another_filter_gives_another_token(tmp_path: Path) -> None:
    path = tmp_path / "writes"

    class Hanging(TokenSink):
        async def write(self, batch: Sequence[Record]) -> None:
            await super().write(batch)
            await asyncio.Event().wait()

    async with sqlite_backend(tmp_path) as backend:
        some, others = make_records(3, key="Page View"), make_records(6, key="Cart Viewed")[3:]
        await append(backend, [*some, *others])
        async with running(backend, fed(Hanging(path)), patience=0.0):
            await until(path.exists)
        async with running(backend, fed(TokenSink(path), keys=("Cart Viewed",))) as (status,):
            await until(lambda: status.position == 6)
    assert [numbers for _, numbers in TokenSink(path).writes()] == [[1, 2, 3, 4, 5, 6], [4, 5, 6]]
    assert len(tokens(TokenSink(path))) == 2


@pytest.mark.logs("sink:token: ")
@pytest.mark.parametrize("failure", [SinkRetry("busy"), SinkFailure("no answer"), ConnectionError("cut")])
async def test_a_failed_stable_batch_comes_again_as_it_was(failure: Exception, tmp_path: Path) -> None:
    """Also after a failure of the sink itself, after which other sinks get smaller batches."""
    sink = TokenSink(tmp_path / "writes")
    sink.failures = [failure, failure]
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(8))
        async with running(backend, fed(sink, most=6)) as (status,):
            await until(lambda: status.position == 8)
    assert [numbers for _, numbers in sink.writes()] == [[1, 2, 3, 4, 5, 6]] * 3 + [[7, 8]]
    assert len(tokens(sink)) == 2


@pytest.mark.logs("sink:token: ")
async def test_a_poison_record_of_a_stable_batch_is_found(tmp_path: Path) -> None:
    class Poisoned(TokenSink):
        async def write(self, batch: Sequence[Record]) -> None:
            if any(record.decode()["data"]["number"] == 3 for record in batch):
                raise KeyError("price")
            await super().write(batch)

    sink = Poisoned(tmp_path / "writes")
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(20))
        consumer = fed(sink, most=8)
        async with running(backend, consumer) as (status,):
            await until(lambda: status.position == 20)
    assert (consumer.delivered, consumer.given_up) == (19, 1)


async def test_a_batch_may_have_any_number_of_records(tmp_path: Path) -> None:
    """A read of the journal has a limit in bytes, so a batch is put together from several reads."""
    sizes: list[int] = []

    class Counting(Sink):
        async def write(self, batch: Sequence[Record]) -> None:
            sizes.append(len(batch))

    async with sqlite_backend(tmp_path) as backend:
        for _ in range(3):
            await append(backend, make_records(8000, extra={"fill": "x" * 600}))
        async with running(backend, fed(Counting("many", None), most=24_000, size="64MiB")) as (status,):
            await until(lambda: status.position == 24_000)
    assert sizes == [24_000]


async def test_batches_are_full_although_reads_of_the_journal_have_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "writes"
    async with sqlite_backend(tmp_path) as backend:
        for _ in range(4):
            await append(backend, make_records(150, extra={"fill": "x" * 20_000}))
        async with running(backend, fed(TokenSink(path), most=200, size="64MiB")) as (status,):
            await until(lambda: status.position == 600)
    assert [len(numbers) for _, numbers in TokenSink(path).writes()] == [200, 200, 200]


def test_a_batch_is_a_sequence_with_a_token_of_its_ids() -> None:
    records = make_records(4)
    batch = Batch(records)
    assert [*batch] == records
    assert (len(batch), batch[1], batch[1:3]) == (4, records[1], records[1:3])
    assert lines_of(batch) == lines_of(records)
    assert batch.token == Batch([*records]).token
    assert len({batch.token, Batch(records[:3]).token, Batch(records[::-1]).token, Batch(make_records(4)).token}) == 4


def test_records_without_an_id_have_a_token_of_their_positions() -> None:
    bodies = b"{", b"[1]", b'{"id":"\xff"}', b'{"id":7}'
    records = [Record("event", times.now(), body, position) for position, body in enumerate(bodies, 1)]
    assert Batch(records).token == Batch(records[:]).token != Batch(records[:3]).token
