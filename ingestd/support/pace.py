"""How long work on the event loop gives way: it lets other work run after each `budget` of seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

__all__ = ["Pace"]


class Pace:
    """The pace of one piece of long work, which begins now. `pause` lets other work run, by default for one turn."""

    __slots__ = ("_budget", "_pause", "_since")

    def __init__(self, budget: float, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self._budget = budget
        self._pause = pause or partial(asyncio.sleep, 0)
        self._since = perf_counter()

    def is_over(self) -> bool:
        """Whether the work has taken so long that other work must get a turn now."""
        return perf_counter() - self._since > self._budget

    async def give_way(self) -> None:
        """Pause if the work has taken so long."""
        if self.is_over():
            await self.pause()

    async def pause(self) -> None:
        await self._pause()
        self._since = perf_counter()
