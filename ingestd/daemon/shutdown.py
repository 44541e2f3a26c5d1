"""The end of a daemon: it is told to stop, and told again to hurry."""

from __future__ import annotations

import asyncio

__all__ = ["Stop"]


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
