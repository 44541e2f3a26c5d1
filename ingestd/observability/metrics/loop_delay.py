"""How late the event loop is: what keeps it from others keeps it from this too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["INTERVAL", "watch_loop_delay"]

INTERVAL = 0.1  # seconds; a longer hold-up is always seen, a shorter one as often as its share of this


async def watch_loop_delay(observe: Callable[[float], None]) -> None:
    """Tell, ten times a second, by how many seconds a sleep ended late. Never returns."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, loop.time() - due))
