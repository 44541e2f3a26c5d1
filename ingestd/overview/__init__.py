"""What the operators' page shows, as JSON: made when somebody asks, at most once a second, beside the event loop.

The loop does no more for it than ask plugins for their panels, while somebody looks; and for the charts, which
should not begin when somebody comes, a thread reads the counts every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from .. import times
from ..panels import Panel
from .asking import Panels
from .history import STEP, History, Sample
from .parts import Shown, Sources, body_of

__all__ = ["Overview", "Panels", "Shown", "Sources"]

_AGE = 1.0  # seconds for which an answer is good enough for everyone


class Overview:
    """`panels` asks the plugins; `clock` tells seconds, for tests."""

    def __init__(
        self,
        sources: Sources,
        panels: Callable[[], Awaitable[Sequence[Panel]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._shown = Shown()
        self._panels = panels
        self._clock = clock
        self._began = clock()
        self._history = History()  # of the thread's alone
        # Not the loop's own threads: all of those may be waiting for a disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="overview")
        self._made: bytes = b""
        self._made_at = -_AGE
        self._making: asyncio.Future[bytes] | None = None

    def show(self, shown: Shown) -> None:
        """These sinks and consumers from now on."""
        self._shown = shown

    async def follow(self) -> None:
        """Look at the counts every few seconds. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._thread, lambda: self._history.add(self._look()))
            await asyncio.sleep(STEP)

    async def render(self) -> bytes:
        """The present, not more than a second old. Who asks while it is being made waits for that one."""
        if self._making is None:
            if self._clock() - self._made_at < _AGE:
                return self._made
            self._making = asyncio.ensure_future(self._make())
        return await asyncio.shield(self._making)  # others may be waiting for it when one of them goes

    async def _make(self) -> bytes:
        at = self._clock()
        try:
            panels = await self._panels()
            made = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, panels)
            self._made, self._made_at = made, at
            return made
        finally:
            self._making = None

    def _encode(self, panels: Sequence[Panel]) -> bytes:
        return msgspec.json.encode(body_of(self._sources, self._shown, self._history, self._look(), panels))

    def _look(self) -> Sample:
        return Sample(
            at=self._clock() - self._began,
            time=times.now(),
            counts=self._sources.metrics.counts(),
            delivered={sink.sink_name: sink.delivered for sink in self._shown.sinks},
        )
