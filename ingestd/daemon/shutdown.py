"""The requests to stop a daemon: the first one begins the shutdown, the second one shortens its waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Shutdown"]


class Shutdown:
    """The second request sets `forced`. `begins` is called once, when the shutdown begins."""

    def __init__(self, begins: Callable[[], object]) -> None:
        self._begins = begins
        self.start: asyncio.Task[None] | None = None
        """The start of the daemon, which a shutdown cancels. None once it has ended."""
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
            self._begin()

    def fail(self, error: Exception) -> None:
        """Begin the shutdown because of an error, which `wait` raises."""
        if not self._requested.done():
            self._requested.set_exception(error)
            self._begin()

    def _begin(self) -> None:
        self._begins()
        if self.start is not None:
            self.start.cancel()

    async def wait(self) -> None:
        """Return when the shutdown begins."""
        await asyncio.shield(self._requested)
