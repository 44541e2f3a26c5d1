"""The end of a daemon: it is told to stop, told again to hurry, and waits for what is still at work."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

__all__ = ["Stop", "ended"]

_HURRIED = 0.5  # seconds


class Stop:
    """`hurried` is set once it has been ordered a second time."""

    def __init__(self) -> None:
        self.hurried = asyncio.Event()
        self._ordered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ordered(self) -> bool:
        return self._ordered.done()

    def order(self) -> None:
        """Stop, as SIGTERM says; the second time, hurry."""
        if self._ordered.done():
            self.hurried.set()
        else:
            self._ordered.set_result(None)

    def fail(self, error: Exception) -> None:
        """Stop because of that error, which `wait` raises."""
        if not self._ordered.done():
            self._ordered.set_exception(error)

    async def wait(self) -> None:
        """Returns when the daemon is to stop."""
        await asyncio.shield(self._ordered)


async def ended(tasks: Collection[asyncio.Task[Any]], patience: float, hurried: asyncio.Event) -> bool:
    """Wait for tasks, at most `patience` seconds, and half a second in a hurry; returns whether all have ended."""
    if tasks:
        ending = asyncio.ensure_future(asyncio.wait(tasks, timeout=patience))
        hurrying = asyncio.ensure_future(hurried.wait())
        await asyncio.wait([ending, hurrying], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([ending], timeout=_HURRIED)
        ending.cancel()
        hurrying.cancel()
    return all(task.done() for task in tasks)
