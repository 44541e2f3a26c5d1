"""Waits for the end of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

__all__ = ["ended"]

_FORCED = 0.5  # seconds


async def ended(tasks: Collection[asyncio.Task[Any]], limit: float, forced: asyncio.Event) -> bool:
    """Wait for tasks for at most `limit` seconds. Return whether all have ended.

    Once `forced` is set, it waits half a second more at most.
    """
    if tasks:
        ending = asyncio.ensure_future(asyncio.wait(tasks, timeout=limit))
        hurrying = asyncio.ensure_future(forced.wait())
        await asyncio.wait([ending, hurrying], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([ending], timeout=_FORCED)
        ending.cancel()
        hurrying.cancel()
    return all(task.done() for task in tasks)
