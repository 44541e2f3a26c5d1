"""Tests of opening, closing and checking a sink: nothing is lost, and nothing stays open."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from ingestd.api.events import Record

from .sink_traits import SinkTraits, in_new_loop, opened
from .writes import Pause, cancelled_after

__all__ = ["SinkLife"]


class SinkLife(SinkTraits):
    """Opening, closing, checking."""

    @in_new_loop
    async def test_what_was_written_stays_when_it_is_closed_and_opened_again(self, tmp_path: Path) -> None:
        written = []
        for _ in range(3):
            async with self._open(tmp_path) as sink:
                batch = self._records(3)
                await sink.write(batch)
                written += batch
        await self._assert_holds(tmp_path, written)

    @in_new_loop
    async def test_it_can_be_opened_again(self, tmp_path: Path) -> None:
        """The same object: a daemon may lose a sink to another daemon, and open it again later."""
        written = []
        sink = self._make(tmp_path)
        for _ in range(3):
            batch = self._records(3)
            async with opened(sink):
                await sink.write(batch)
            written += batch
        await self._assert_holds(tmp_path, written)

    @in_new_loop
    async def test_opening_that_was_cancelled_can_be_tried_again(self, tmp_path: Path) -> None:
        """A time limit cancels like this. Then the same object is opened again, with or without a close."""
        threads = {*threading.enumerate()}
        written: list[Record] = []
        for turns in (0, 1, 2, 3, 5, 8, 13, 21):
            for closes in (False, True):
                sink = self._make(tmp_path)
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
        await _await_threads(threads)

    @in_new_loop
    async def test_it_closes_also_when_it_never_wrote_or_opened(self, tmp_path: Path) -> None:
        await self._make(tmp_path).close()
        async with self._open(tmp_path):
            pass
        async with self._open(tmp_path) as sink:
            await sink.write(self._records(1))
        await sink.close()  # a second close

    @in_new_loop
    async def test_it_lets_go_of_everything_when_it_is_closed(self, tmp_path: Path) -> None:
        """No task, file or connection stays open, however often the sink is opened."""

        async def use(times: int) -> None:
            for _ in range(times):
                async with self._open(tmp_path) as sink:
                    await sink.write(self._records(2))

        await use(2)  # objects that are made once may stay
        tasks, before = asyncio.all_tasks(), _open_files()
        await use(6)
        deadline = time.monotonic() + 5  # some connections close a few turns of the loop later
        while asyncio.all_tasks() - tasks or _open_files() > before:
            left = [str(task.get_coro()) for task in asyncio.all_tasks() - tasks]
            assert time.monotonic() < deadline, f"tasks {left}; {_open_files() - before} more files are open"
            await asyncio.sleep(0.02)

    @in_new_loop
    async def test_check_passes_where_it_opens(self, tmp_path: Path) -> None:
        async with self._open(tmp_path) as sink:
            await sink.check()
            await sink.write(self._records(1))
            await sink.check()
        fresh = self._make(tmp_path)
        await fresh.check()  # a check without opening, as in `ingestd check`
        await fresh.close()


async def _await_threads(before: set[threading.Thread]) -> None:
    """Wait up to a second for the threads of cancelled openings, which still report to this loop.

    The loop of a daemon goes on, but this one is closed soon. Idle threads of its executor are ended first.
    """
    await asyncio.get_running_loop().shutdown_default_executor()
    for _ in range(50):
        if {*threading.enumerate()} <= before:
            return
        await asyncio.sleep(0.02)


def _open_files() -> int:
    """The number of open files of this process; 0 if the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.is_dir() else 0
