"""The end of a daemon: it is told to stop, and told again to hurry."""

from __future__ import annotations

import asyncio

__all__ = ["Shutdown"]


class Shutdown:
    """`forced` is set by the second request."""

    def __init__(self) -> None:
        self.forced = asyncio.Event()
        self._requested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def requested(self) -> bool:
        return self._requested.done()

    def request(self) -> None:
        """Stop, as SIGTERM says; the second time, hurry."""
        if self._requested.done():
            self.forced.set()
        else:
            self._requested.set_result(None)

    def fail(self, error: Exception) -> None:
        """Stop because of that error, which `wait` raises."""
        if not self._requested.done():
            self._requested.set_exception(error)

    async def wait(self) -> None:
        """Returns when the daemon is to stop."""
        await asyncio.shield(self._requested)
