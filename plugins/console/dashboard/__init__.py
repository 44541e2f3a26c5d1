"""The data of the operators' page as JSON, made on request, at most once a second for each selection.

The event loop only asks plugins for their panels, and only on request. A thread does the rest. It also reads the counts
every few seconds, so that the charts have a history when an operator opens the page.
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
from ingestd.http.operators import Shown

from .history import History, Sample
from .parts import Panels, Sources, body_of

__all__ = ["Overview", "Panels", "Sources"]

Selection = tuple[tuple[str, str], ...]
"""The parameters of the page's address, sorted."""

NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})

_AGE = 1.0  # seconds for which an answer is reused
_MAX_ANSWERS = 16


class Overview:
    """`panels` asks the plugins for their panels of a selection. Tests replace `clock`, which returns seconds."""

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
        self._history = History()  # only the thread below uses it
        # A separate thread: all threads of the loop's executor may be waiting for a disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="overview")
        self._made: dict[Selection, tuple[float, bytes]] = {}
        """The answers of the last second, each with the time of its request."""
        self._in_progress: dict[Selection, asyncio.Future[bytes]] = {}
        self._filters: set[str] = set()
        """The names of the panels' filters. Other parameters do not change the answer."""

    def show(self, shown: Shown) -> None:
        """Replace the sinks and consumers, for example after a reload."""
        self._shown = shown

    async def add_sample(self) -> None:
        """Add a sample of the counts to the history. It is called every few seconds."""
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._history.add(self._take_sample()))

    async def render(self, parameters: Mapping[str, str] = NO_PARAMETERS) -> bytes:
        """The present status, at most a second old. `parameters` of the page's address set the panels' filters."""
        if parameters and not self._filters:
            await self._answer(())  # its panels name the filters
        return await self._answer(tuple(sorted(each for each in parameters.items() if each[0] in self._filters)))

    async def _answer(self, selection: Selection) -> bytes:
        """Simultaneous requests for one selection wait for the same answer."""
        if selection not in self._in_progress:
            made_at, made = self._made.get(selection, (-_AGE, b""))
            if made and self._clock() - made_at < _AGE:
                return made
            self._in_progress[selection] = asyncio.ensure_future(self._make(selection))
        return await asyncio.shield(self._in_progress[selection])  # other requests may wait if this one is cancelled

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
        return msgspec.json.encode(body_of(self._sources, self._shown, self._history, self._take_sample(), panels))

    def _take_sample(self) -> Sample:
        return Sample(
            at=self._clock() - self._began,
            time=times.now(),
            counts=self._sources.metrics.counts(),
            delivered={sink.sink_name: sink.delivered for sink in self._shown.sinks},
            refusals=self._sources.metrics.refusals.counts(),
        )
