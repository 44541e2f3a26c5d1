"""The contract suite for sinks. Subclass it in a test module::

    class TestMySink(SinkContract):
        def make_sink(self, folder):
            return MySink("mine", MySink.Options(path=folder / "out"))

        async def read_back(self, folder):
            return [json.loads(line) for line in (folder / "out").read_text().splitlines()]

These two methods are enough for a sink that keeps records unchanged. If the sink changes them, override `expected`. If
it keeps only some of them, override `make_record` to make such records. `interrupt` and `make_rejected` switch on tests
that are skipped without them. With `refuse_new` a real server refuses records. A test that cannot apply is removed by
name: `test_any_text_comes_through = None`.

The suite needs pytest and nothing else: every test runs a new event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ingestd.api.events import Record
from ingestd.api.sink import Digest

from .crashes import killed_after
from .outages import RefusesNew, deliver_through, of_visitor
from .records import TEXTS, make_records, make_records_of_every_type, placed
from .sink_life import SinkLife
from .sink_repeats import SinkRepeats
from .sink_traits import in_new_loop, skip
from .writes import Pause, cancelled_after, interrupted, pauses, rejected_of, until_taken

__all__ = ["SinkContract", "make_records"]

_MEGABYTE = "ż" * (1 << 19)
_MOST = 10_000
"""A large `batch.max_events`."""
_AMID = (0.0, 0.0003, 0.001, 0.002, 0.004, 0.008, 0.016)
"""Seconds after the end of a write at which a crash cuts off one of the next writes."""


class SinkContract(SinkLife, SinkRepeats):
    """The behaviour that delivery and operators need: written records are there, whole, in order, at least once."""

    # Arrival of records

    @in_new_loop
    async def test_a_batch_of_one_and_a_batch_of_many_come_in_order(self, tmp_path: Path) -> None:
        written: list[Record] = []
        async with self._open(tmp_path) as sink:
            for count in (1, 500, 1):
                batch = self._records(count)
                written += batch
                await sink.write(batch)
                # Returning means durable: it must be there now, not only after close().
                await self._assert_holds(tmp_path, written)
        await self._assert_holds(tmp_path, written)

    @in_new_loop
    async def test_a_large_batch_comes_through(self, tmp_path: Path) -> None:
        batch = self._records(_MOST)
        await self._assert_comes_through(tmp_path, batch)

    @in_new_loop
    async def test_any_text_comes_through(self, tmp_path: Path) -> None:
        batch = [placed(self.make_record(number, text)) for number, text in enumerate(TEXTS, 1)]
        await self._assert_comes_through(tmp_path, batch)

    @in_new_loop
    async def test_a_record_of_a_megabyte_comes_through(self, tmp_path: Path) -> None:
        batch = [*self._records(1), placed(self.make_record(2, _MEGABYTE)), *self._records(1)]
        await self._assert_comes_through(tmp_path, batch)

    @in_new_loop
    async def test_records_of_every_type_come_through(self, tmp_path: Path) -> None:
        """The types of ingestd, and a record of another plugin with only an id and a type."""
        batch = [*self._records(1), *map(placed, make_records_of_every_type()), *self._records(1)]
        await self._assert_comes_through(tmp_path, batch)

    @in_new_loop
    async def test_the_ids_of_a_time_can_be_compared(self, tmp_path: Path) -> None:
        """A sink with `can_verify` tells what `ingestd sinks verify` asks, also before a first write, and by itself."""
        if not self.make_sink(tmp_path).can_verify:
            skip("the sink has no can_verify")
        batch = [*self._records(20), *map(placed, make_records_of_every_type())]
        await self._assert_comes_through(tmp_path, batch)
        seconds = [each.received_at() // 1000 for each in batch]
        begin, end, step = (min(seconds) - 5) * 1000, (max(seconds) + 5) * 1000, 2000
        ids: dict[int, list[str]] = {}
        for each in batch:
            ids.setdefault(each.received_at() // step, []).append(str(each.envelope().id))
        sink = self.make_sink(tmp_path)
        try:
            expected = {part: Digest.of(some) for part, some in ids.items()}
            assert await sink.digests(begin, end, step) == expected
            assert await sink.digests(begin - 86_400_000, begin, step) == {}
            assert sorted(await sink.ids(begin, end)) == sorted(itertools.chain(*ids.values()))
            assert [*await sink.ids(end, end + 3_600_000)] == []
        finally:
            await sink.close()

    # Repeated writes

    @in_new_loop
    async def test_a_batch_may_come_again(self, tmp_path: Path) -> None:
        """Whole or divided in another way, to the same sink or after a restart."""
        batch, next_batch = self._records(5), self._records(5)
        async with self._open(tmp_path) as sink:
            await sink.write(batch)
            await sink.write(batch)
            await sink.write(batch[:2])
            await sink.write(batch[2:])
        async with self._open(tmp_path) as sink:
            await sink.write(batch)
            await sink.write(batch[-1:])
            await sink.write([*batch[-1:], *next_batch])
        await self._assert_holds(tmp_path, [*batch, *next_batch])

    @in_new_loop
    async def test_a_write_that_is_cancelled_and_made_again_loses_nothing(self, tmp_path: Path) -> None:
        """A time limit does this to a slow write, at any point of it."""
        written: list[Record] = []
        async with self._open(tmp_path) as sink:
            for pause in pauses():
                batch = self._records(20)
                written += batch
                done = await cancelled_after(pause, sink.write(batch))
                await sink.write(batch)
                if done and pause.seconds:
                    break
        await self._assert_holds(tmp_path, written)

    @in_new_loop
    async def test_a_stop_amid_a_write_loses_nothing(self, tmp_path: Path) -> None:
        """The write is cancelled, the sink is closed, and the next sink gets the batch."""
        written: list[Record] = []
        for pause in (Pause(1), Pause(3), Pause(8), Pause(seconds=0.002), Pause(seconds=0.02)):
            batch = self._records(20)
            written += batch
            async with self._open(tmp_path) as sink:
                await cancelled_after(pause, sink.write(batch))
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
        await self._assert_holds(tmp_path, written)

    def test_a_crash_before_the_place_is_stored_loses_nothing(self, tmp_path: Path) -> None:
        """A write returns, the daemon is killed before it knows that, and the next daemon writes the batch again."""
        batches = [self._records(20) for _ in range(4)]

        async def until_killed(report: Callable[[], None]) -> None:
            sink = self._make(tmp_path)
            await sink.open()
            for batch in batches[:3]:
                await sink.write(batch)
                report()
            await asyncio.Event().wait()

        async def scenario() -> None:
            await self._assert_holds(tmp_path, [*itertools.chain(*batches[:3])])
            async with self._open(tmp_path) as sink:
                for batch in batches[2:]:
                    await sink.write(batch)
            await self._assert_holds(tmp_path, [*itertools.chain(*batches)])

        killed_after(3, until_killed)
        asyncio.run(scenario())

    def test_a_crash_amid_a_write_loses_nothing(self, tmp_path: Path) -> None:
        """At the beginning, at the end and between, if the write does not take much longer than `_AMID`."""
        written: list[Record] = []

        async def until_killed(report: Callable[[], None]) -> None:
            sink = self._make(tmp_path)
            await sink.open()
            for batch in itertools.cycle(batches):
                await sink.write(batch)
                report()

        async def next_daemon() -> None:
            async with self._open(tmp_path) as sink:
                await sink.write(batches[done % len(batches)])
            await self._assert_holds(tmp_path, written)

        for pause in _AMID:
            batches = [self._records(20) for _ in range(40)]
            done = killed_after(2, until_killed, pause=pause)
            written += itertools.chain(*batches[: done + 1])
            asyncio.run(next_daemon())

    @in_new_loop
    async def test_what_is_written_while_the_connection_breaks_arrives_later(self, tmp_path: Path) -> None:
        if type(self).interrupt is SinkContract.interrupt:
            skip("the test class has no interrupt()")

        written = self._records(20)
        async with self._open(tmp_path) as sink:
            await sink.write(written)
            await self.interrupt(tmp_path)
            for turns in (None, 0, 1, 3, 8, 20):
                batch = self._records(20)
                written += batch
                if turns is not None:
                    await interrupted(sink.write(batch), Pause(turns), self.interrupt(tmp_path))
                await until_taken(sink, batch)
        await self._assert_holds(tmp_path, written)

    @in_new_loop
    async def test_of_many_records_exactly_those_it_cannot_take_are_rejected(self, tmp_path: Path) -> None:
        """The others are there once: those that it has stored are among the `written` of the `SinkReject`."""
        if self.make_rejected() is None:
            skip("make_rejected() returns no record")

        written: list[Record] = []
        async with self._open(tmp_path) as sink:
            for indices in ({0}, {0, 4}, {2}, {1, 2}, {4}):
                batch = self._records(5)
                for index in indices:
                    batch[index] = self._rejected()
                assert await rejected_of(sink, batch) == indices
                written += [record for index, record in enumerate(batch) if index not in indices]
            await self._assert_holds(tmp_path, written)
            assert await rejected_of(sink, [self._rejected()]) == {0}
        await self._assert_holds(tmp_path, written, once=True)

    # Temporary refusal

    @in_new_loop
    async def test_nothing_is_given_up_while_only_what_is_new_is_refused(self, tmp_path: Path) -> None:
        """A full target may still take known records. Afterwards the daemon delivers all records, in order."""
        records = [of_visitor(self.make_record(number, ""), number) for number in range(1, 15)]
        sink = RefusesNew(self._make(tmp_path))

        @asynccontextmanager
        async def refusal() -> AsyncIterator[None]:
            if type(self).refuse_new is SinkContract.refuse_new:
                with sink.refusing():
                    yield
            else:
                async with self.refuse_new(tmp_path):
                    yield

        await deliver_through(sink, records[:5], records[5:], refusal)
        await self._assert_holds(tmp_path, records)
