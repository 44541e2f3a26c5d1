"""What the operators' page shows, as JSON: made when somebody asks, at most once a second for each selection.

The loop does no more for it than ask plugins for their panels, while somebody looks; and for the charts, which
should not begin when somebody comes, a thread reads the counts every few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import msgspec

from ingestd.api import times
from ingestd.api.panels import Panel

from .asking import Panels
from .history import STEP, History, Sample
from .parts import Shown, Sources, body_of

__all__ = ["Overview", "Panels", "Shown", "Sources"]

Selection = tuple[tuple[str, str], ...]
"""Parameters of the page's address, in order."""

NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})

_AGE = 1.0  # seconds for which an answer is good enough for everyone
_MAX_ANSWERS = 16


class Overview:
    """`panels` asks the plugins for a selection; `clock` tells seconds, for tests."""

    def __init__(
        self,
        sources: Sources,
        panels: Callable[[Mapping[str, str]], Awaitable[Sequence[Panel]]],
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
        self._made: dict[Selection, tuple[float, bytes]] = {}
        """The answers of the last second, with when they were begun."""
        self._in_progress: dict[Selection, asyncio.Future[bytes]] = {}
        self._filters: set[str] = set()
        """Names of the filters that panels have: other parameters make no other answer."""

    def show(self, shown: Shown) -> None:
        """These sinks and consumers from now on."""
        self._shown = shown

    async def follow(self) -> None:
        """Look at the counts every few seconds. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            await loop.run_in_executor(self._thread, lambda: self._history.add(self._look()))
            await asyncio.sleep(STEP)

    async def render(self, parameters: Mapping[str, str] = NO_PARAMETERS) -> bytes:
        """The present, not more than a second old. `parameters` are those of the page's address, for its filters."""
        if parameters and not self._filters:
            await self._answer(())  # its panels tell which filters there are
        return await self._answer(tuple(sorted(each for each in parameters.items() if each[0] in self._filters)))

    async def _answer(self, selection: Selection) -> bytes:
        """Who asks while it is being made waits for that one."""
        if selection not in self._in_progress:
            made_at, made = self._made.get(selection, (-_AGE, b""))
            if made and self._clock() - made_at < _AGE:
                return made
            self._in_progress[selection] = asyncio.ensure_future(self._make(selection))
        return await asyncio.shield(self._in_progress[selection])  # others may be waiting for it when one of them goes

    async def _make(self, selection: Selection) -> bytes:
        at = self._clock()
        try:
            panels = await self._panels(dict(selection))
            self._filters.update(each.name for panel in panels for each in panel.filters)
            made = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, panels)
            fresh = {each: answer for each, answer in self._made.items() if at - answer[0] < _AGE}
            self._made = dict([*fresh.items()][-_MAX_ANSWERS:]) | {selection: (at, made)}
            return made
        finally:
            del self._in_progress[selection]

    def _encode(self, panels: Sequence[Panel]) -> bytes:
        return msgspec.json.encode(body_of(self._sources, self._shown, self._history, self._look(), panels))

    def _look(self) -> Sample:
        return Sample(
            at=self._clock() - self._began,
            time=times.now(),
            counts=self._sources.metrics.counts(),
            delivered={sink.sink_name: sink.delivered for sink in self._shown.sinks},
            refusals=self._sources.metrics.refusals.counts(),
        )
