"""Tests of sinks that buffer records, or that store a repeated batch once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from .crashes import killed_after
from .sink_traits import SinkTraits, in_new_loop, opened, skip
from .writes import span_of

__all__ = ["SinkRepeats"]

_AMID = (0.0, 0.001, 0.003, 0.01, 0.03)
"""Seconds after the beginning of a write at which a crash cuts it off."""


class SinkRepeats(SinkTraits):
    """Buffers, and repeated batches."""

    @in_new_loop
    async def test_one_flush_makes_several_writes_durable(self, tmp_path: Path) -> None:
        self._need_buffer(tmp_path)
        batches = [self._records(20) for _ in range(5)]
        records = [record for batch in batches for record in batch]
        async with opened(self.make_sink(tmp_path)) as sink:
            for batch in batches:
                await sink.write(batch)
            await sink.flush(span_of(records))
            await self._assert_holds(tmp_path, records)
            await sink.flush(span_of(records))  # with an empty buffer
        await self._assert_holds(tmp_path, records)

    @in_new_loop
    async def test_a_buffer_is_empty_after_a_close_and_an_opening(self, tmp_path: Path) -> None:
        """Its records come again, so they must not come twice."""
        self._need_buffer(tmp_path)
        dropped, kept = self._records(10), self._records(10)
        sink = self.make_sink(tmp_path)
        async with opened(sink):
            await sink.write(dropped)
        async with opened(sink):
            await sink.write(kept)
            await sink.flush(span_of(kept))
        await self._assert_holds(tmp_path, kept)

    @in_new_loop
    async def test_records_may_be_flushed_without_a_span(self, tmp_path: Path) -> None:
        """As replays are. Some of the records are in the destination already."""
        self._need_buffer(tmp_path)
        known, new = self._records(10), self._records(10)
        async with opened(self.make_sink(tmp_path)) as sink:
            await sink.write(known)
            await sink.flush(span_of(known))
            for _ in range(2):
                await sink.write([*known[5:], *new])
                await sink.flush(None)
        await self._assert_holds(tmp_path, [*known, *new], once=self.exactly_once)

    def test_a_batch_that_comes_again_after_a_crash_is_stored_once(self, tmp_path: Path) -> None:
        """The same batch with the same token, or the same flush with the same span."""
        if not self.exactly_once:
            skip("exactly_once is False")
        batches = [self._records(50) for _ in _AMID]

        async def again() -> None:
            async with self._open(tmp_path) as sink:
                await sink.write(batch)

        for batch, pause in zip(batches, _AMID, strict=True):

            async def until_killed(report: Callable[[], None]) -> None:
                sink = self._make(tmp_path)
                await sink.open()
                report()
                await sink.write(batch)  # noqa: B023 - called before the loop goes on
                await asyncio.Event().wait()

            killed_after(1, until_killed, pause=pause)
            asyncio.run(again())
        written = [record for batch in batches for record in batch]
        asyncio.run(self._assert_holds(tmp_path, written, once=True))

    def _need_buffer(self, folder: Path) -> None:
        if not self.make_sink(folder).buffering:
            skip("the sink is not buffering")
