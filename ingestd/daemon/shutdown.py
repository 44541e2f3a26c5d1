"""The requests to stop a daemon: the first one begins the shutdown, the second one shortens its waits."""

from __future__ import annotations

import asyncio

__all__ = ["Shutdown"]


class Shutdown:
    """The second request sets `forced`."""

    def __init__(self) -> None:
        self.forced = asyncio.Event()
        self._requested: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def requested(self) -> bool:
        return self._requested.done()

    def request(self) -> None:
        """Begin the shutdown, as for SIGTERM. The second call sets `forced`."""
        if self._requested.done():
            self.forced.set()
        else:
            self._requested.set_result(None)

    def fail(self, error: Exception) -> None:
        """Begin the shutdown because of an error, which `wait` raises."""
        if not self._requested.done():
            self._requested.set_exception(error)

    async def wait(self) -> None:
        """Return when the shutdown begins."""
        await asyncio.shield(self._requested)
