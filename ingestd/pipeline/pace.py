"""Long work on the event loop, with pauses for others."""

from __future__ import annotations

import asyncio
import time

__all__ = ["Pace"]

_LONGEST = 0.005  # seconds


class Pace:
    """Lets others have the event loop in the middle of long work."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def is_over(self) -> bool:
        return time.perf_counter() - self._since > _LONGEST

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._since = time.perf_counter()
