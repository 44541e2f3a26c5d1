"""Pauses for other tasks during long work on the event loop."""

from __future__ import annotations

import asyncio
import time

__all__ = ["Pace"]

_LONGEST = 0.005  # seconds


class Pace:
    """Says when long work has taken five milliseconds of the event loop, and gives other tasks a turn."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def is_over(self) -> bool:
        return time.perf_counter() - self._since > _LONGEST

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._since = time.perf_counter()
