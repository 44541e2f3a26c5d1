"""The contract suite any sink must pass. Subclass it in a test module of your own::

    class TestMySink(SinkContract):
        def make_sink(self, folder):
            return MySink("mine", MySink.Options(path=folder / "out"))

        async def read_back(self, folder):
            return [json.loads(line) for line in (folder / "out").read_text().splitlines()]

These two are enough for a sink that keeps records as they are. One that makes something else of them says so
with `expected`, one that keeps only some of them has the suite write those with `make_record`, and `interrupt` and
`make_rejected` switch tests on that are skipped without. A test that cannot apply is dropped by its name:
`test_any_text_comes_through = None`.

It needs pytest and nothing else: every test runs on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from ..events import Record
from ..sink import Sink
from .crashes import killed_after
from .records import TEXTS, make_records, make_records_of_every_type, placed
from .writes import Pause, cancelled_after, interrupted, pauses, rejected_of, until_taken

__all__ = ["SinkContract", "make_records"]

_MEGABYTE = "ż" * (1 << 19)
_MOST = 10_000
"""The largest `batch.max_events` there can be."""


class SinkContract(ABC):
    """What delivery and operators rely on: what was written is there, whole, in order, at least once."""

    keeps_order: ClassVar[bool] = True
    """False where `read_back` cannot tell in which order records were written."""

    @abstractmethod
    def make_sink(self, folder: Path) -> Sink:
        """A sink, not yet open. All sinks of one folder (a fresh one for each test) lead to one place."""

    @abstractmethod
    async def read_back(self, folder: Path) -> Sequence[Any]:
        """What that place holds, in the order it was written: for each record what `expected` says.

        What is there twice is given twice, if only because the record came again.
        """

    def expected(self, record: Record) -> Any:
        """What comes of a record, as `read_back` gives it: the decoded JSON object; None for nothing at all."""
        return record.decode()

    def make_record(self, number: int, text: str) -> Record:
        """A record that the sink keeps, with an id of its own and any `text`, of up to a megabyte, somewhere in it."""
        names = {text: text} if len(text) < 100 else {}  # members may not have names of any length
        return make_records(1, data={"number": number, "text": text, **names})[0]

    async def interrupt(self, folder: Path) -> None:
        """Break what an open sink goes by: its connection, the server behind it.

        Writes may fail for some seconds after it, until all is well again. It is called between two
        writes and amid one. Tests that need it are skipped without.
        """
        raise NotImplementedError

    def make_rejected(self) -> Record | None:
        """A record that the sink must reject for good. Tests that need one are skipped without."""
        return None

    # What arrives

    def test_a_batch_of_one_and_a_batch_of_many_come_in_order(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            written: list[Record] = []
            async with self._open(tmp_path) as sink:
                for count in (1, 500, 1):
                    batch = self._records(count)
                    written += batch
                    await sink.write(batch)
                    # Returning means durable: it must be there now, not only after close().
                    await self._assert_holds(tmp_path, written)
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_the_largest_batch_that_can_be_configured_comes_through(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            batch = self._records(_MOST)
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
            await self._assert_holds(tmp_path, batch)

        asyncio.run(scenario())

    def test_any_text_comes_through(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            batch = [placed(self.make_record(number, text)) for number, text in enumerate(TEXTS, 1)]
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
            await self._assert_holds(tmp_path, batch)

        asyncio.run(scenario())

    def test_a_record_of_a_megabyte_comes_through(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            batch = [*self._records(1), placed(self.make_record(2, _MEGABYTE)), *self._records(1)]
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
            await self._assert_holds(tmp_path, batch)

        asyncio.run(scenario())

    def test_records_of_every_type_come_through(self, tmp_path: Path) -> None:
        """Those of ingestd, and one of another plugin, which needs nothing but an id and a type."""

        async def scenario() -> None:
            batch = [*self._records(1), *map(placed, make_records_of_every_type()), *self._records(1)]
            async with self._open(tmp_path) as sink:
                await sink.write(batch)
            await self._assert_holds(tmp_path, batch)

        asyncio.run(scenario())

    # What comes again

    def test_a_batch_may_come_again(self, tmp_path: Path) -> None:
        """Whole or cut otherwise, to the same sink or after a restart."""

        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_a_write_that_is_cancelled_and_made_again_loses_nothing(self, tmp_path: Path) -> None:
        """That is what a time limit does to a write that takes too long, wherever it is just then."""

        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_a_stop_amid_a_write_loses_nothing(self, tmp_path: Path) -> None:
        """The write is cancelled, the sink closed, and the batch comes to the next one."""

        async def scenario() -> None:
            written: list[Record] = []
            for pause in (Pause(1), Pause(3), Pause(8), Pause(seconds=0.002), Pause(seconds=0.02)):
                batch = self._records(20)
                written += batch
                async with self._open(tmp_path) as sink:
                    await cancelled_after(pause, sink.write(batch))
                async with self._open(tmp_path) as sink:
                    await sink.write(batch)
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_a_crash_before_the_place_is_stored_loses_nothing(self, tmp_path: Path) -> None:
        """A write has returned, the daemon is killed before it knows so, and the next one writes the batch again."""
        batches = [self._records(20) for _ in range(4)]

        async def until_killed(report: Callable[[], None]) -> None:
            sink = self.make_sink(tmp_path)
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
        written: list[Record] = []

        async def until_killed(report: Callable[[], None]) -> None:
            sink = self.make_sink(tmp_path)
            await sink.open()
            for batch in batches:
                await sink.write(batch)
                report()

        async def next_daemon() -> None:
            async with self._open(tmp_path) as sink:
                await sink.write(batches[min(done, len(batches) - 1)])
            await self._assert_holds(tmp_path, written)

        for writes in (1, 4, 9):
            batches = [self._records(20) for _ in range(200)]
            done = killed_after(writes, until_killed)
            written += itertools.chain(*batches[: done + 1])
            asyncio.run(next_daemon())

    def test_what_is_written_while_the_connection_breaks_arrives_later(self, tmp_path: Path) -> None:
        if type(self).interrupt is SinkContract.interrupt:
            _skip("interrupt() is not there")

        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_of_many_records_exactly_those_it_cannot_take_are_rejected(self, tmp_path: Path) -> None:
        if self.make_rejected() is None:
            _skip("make_rejected() gives none")

        async def scenario() -> None:
            written: list[Record] = []
            async with self._open(tmp_path) as sink:
                for places in ({0}, {0, 4}, {2}, {1, 2}, {4}):
                    batch = self._records(5)
                    for place in places:
                        batch[place] = self._rejected()
                    assert await rejected_of(sink, batch) == places
                    written += [record for place, record in enumerate(batch) if place not in places]
                await self._assert_holds(tmp_path, written)
                assert await rejected_of(sink, [self._rejected()]) == {0}
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    # Opening, closing, checking

    def test_what_was_written_stays_when_it_is_closed_and_opened_again(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            written = []
            for _ in range(3):
                async with self._open(tmp_path) as sink:
                    batch = self._records(3)
                    await sink.write(batch)
                    written += batch
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_it_can_be_opened_again(self, tmp_path: Path) -> None:
        """The same object: its daemon may lose a sink to another one, and go on with it again."""

        async def scenario() -> None:
            written = []
            sink = self.make_sink(tmp_path)
            for _ in range(3):
                batch = self._records(3)
                await sink.open()
                await sink.write(batch)
                await sink.close()
                written += batch
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_opening_that_was_cancelled_can_be_tried_again(self, tmp_path: Path) -> None:
        """That is what a time limit does to it; it comes again on the same object, also after a close."""

        async def scenario() -> None:
            written: list[Record] = []
            for turns in (0, 1, 2, 3, 5, 8, 13, 21):
                for closes in (False, True):
                    sink = self.make_sink(tmp_path)
                    try:
                        await cancelled_after(Pause(turns), sink.open())
                        if closes:
                            await sink.close()
                        await sink.open()
                        batch = self._records(2)
                        await sink.write(batch)
                        written += batch
                    finally:
                        await sink.close()
            await self._assert_holds(tmp_path, written)

        asyncio.run(scenario())

    def test_it_closes_also_when_it_never_wrote_or_opened(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            await self.make_sink(tmp_path).close()
            async with self._open(tmp_path):
                pass
            async with self._open(tmp_path) as sink:
                await sink.write(self._records(1))
            await sink.close()  # once more

        asyncio.run(scenario())

    def test_it_lets_go_of_everything_when_it_is_closed(self, tmp_path: Path) -> None:
        """No task of its own and no file or connection is left open, however often it is opened."""

        async def use(times: int) -> None:
            for _ in range(times):
                async with self._open(tmp_path) as sink:
                    await sink.write(self._records(2))

        async def scenario() -> None:
            await use(2)  # what is made once may stay
            tasks, before = asyncio.all_tasks(), _open_files()
            await use(6)
            deadline = time.monotonic() + 5  # a connection is closed some turns of the loop later
            while asyncio.all_tasks() - tasks or _open_files() > before:
                left = [str(task.get_coro()) for task in asyncio.all_tasks() - tasks]
                assert time.monotonic() < deadline, f"tasks {left}; {_open_files() - before} files more are open"
                await asyncio.sleep(0.02)

        asyncio.run(scenario())

    def test_check_passes_where_it_opens(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with self._open(tmp_path) as sink:
                await sink.check()
                await sink.write(self._records(1))
                await sink.check()
            fresh = self.make_sink(tmp_path)
            await fresh.check()  # as `ingestd check` does it
            await fresh.close()

        asyncio.run(scenario())

    @asynccontextmanager
    async def _open(self, folder: Path) -> AsyncIterator[Sink]:
        sink = self.make_sink(folder)
        try:
            await sink.open()
            yield sink
        finally:
            await sink.close()

    def _records(self, count: int) -> list[Record]:
        return [placed(self.make_record(number, "")) for number in range(1, count + 1)]

    def _rejected(self) -> Record:
        record = self.make_rejected()
        assert record is not None
        return placed(record)

    async def _assert_holds(self, folder: Path, written: Sequence[Record]) -> None:
        """What is expected of each record is there, and for the first time in its order; it may be there again."""
        held = [*dict.fromkeys(map(_text, await self.read_back(folder)))]
        expected = [value for record in written if (value := self.expected(record)) is not None]
        wanted = [*dict.fromkeys(map(_text, expected))]
        missing, strange = [*_without(wanted, held)], [*_without(held, wanted)]
        near = f"; there is, and was never written, {_short(strange[0])}" if strange else ""
        assert not missing, f"{len(missing)} of {len(wanted)} are not there, the first {_short(missing[0])}{near}"
        assert not strange, f"{len(strange)} are there that were never written, the first {_short(strange[0])}"
        assert not self.keeps_order or held == wanted, "they are not there in the order they were written"


def _text(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    """The same for what is equal: 1.0 is 1, and a tuple a list."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without(values: Sequence[str], others: Sequence[str]) -> list[str]:
    known = {*others}
    return [value for value in values if value not in known]


def _short(value: str) -> str:
    return value if len(value) <= 600 else f"{value[:600]}… ({len(value)} characters)"


def _open_files() -> int:
    """How many this process has open, where that can be told."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0


def _skip(reason: str) -> None:
    import pytest  # make_records is of use without it

    pytest.skip(f"{reason}: see ingestd.testing.sinks")
