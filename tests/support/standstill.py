"""A process that stands still, as after Ctrl-Z and until `fg`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

__all__ = ["stand_still"]


async def stand_still(
    work: Awaitable[object], seconds: float, turns: int = 6, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Stop the whole process once the work, which waits for a server, has had its turns of the loop.

    The process stands still until `meanwhile` has returned, and for some seconds more.
    """
    begun = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not begun.done()
    meanwhile()
    time.sleep(seconds)  # noqa: ASYNC251 - nothing else is to run
    await begun
