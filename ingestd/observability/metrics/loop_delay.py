"""The delay of the event loop, measured by a sleep that ends late when the loop is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["INTERVAL", "watch_loop_delay"]

INTERVAL = 0.1  # seconds; a longer delay is always seen, a shorter one with a probability of delay / INTERVAL


async def watch_loop_delay(observe: Callable[[float], None]) -> None:
    """Call `observe` ten times a second with the seconds by which a sleep ended late. Never returns."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, loop.time() - due))
