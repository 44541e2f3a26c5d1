"""What a start or a stop waits for: it is named while it lasts, and a plugin has a limit, even if it holds the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator

from ingestd.api.errors import Unavailable
from ingestd.support.periodic import TIMING

from .notifier import Notifier

__all__ = ["Waits"]

log = logging.getLogger("ingestd.server")

_LOOK = 0.25  # seconds
_TOLD_AGAIN = 10.0  # seconds
_TO_END = 2.0  # seconds for the event loop to end a wait after its limit, or after a signal during the start


class Waits:
    """The waits of one daemon. A thread looks after each, since no task runs while a plugin holds the event loop."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self.stopped_at: float | None = None
        """When a signal has asked for the end of the start, by `time.monotonic`. Then a wait has two more seconds."""

    @contextlib.asynccontextmanager
    async def wait(self, status: str, *, limit: float | None = None, code: int = os.EX_TEMPFAIL) -> AsyncIterator[None]:
        """Wraps a step that may take long. `status` tells of it, in the log and to systemd.

        Raises `Unavailable` at the limit. If the event loop does not run by then, the process ends with `code`: all
        that it has promised is on disk.
        """
        over = threading.Event()
        threading.Thread(target=self._watch, args=(status, limit, code, over), name="waits", daemon=True).start()
        try:
            async with asyncio.timeout(limit) as timeout:
                yield
        except TimeoutError as error:
            if timeout.expired():
                raise Unavailable(f"{status}, for {limit:g} s, which is the limit") from error
            raise
        finally:
            over.set()

    def _watch(self, status: str, limit: float | None, code: int, over: threading.Event) -> None:
        begun, next_told = time.monotonic(), TIMING.wait_told
        self._notifier.extend(status)
        while not over.wait(_LOOK):
            now = time.monotonic()
            if self.stopped_at is not None and now > self.stopped_at + _TO_END:
                log.warning("stopped, though it still %s", status)
                os._exit(0)
            if limit is not None and now > begun + limit + _TO_END:
                log.error("%s, for %g s, which is the limit, and it does not end", status, limit)
                os._exit(code)
            if now > begun + next_told:
                log.info("%s, for %.0f s now", status, now - begun)
                self._notifier.extend(status)
                next_told += _TOLD_AGAIN
