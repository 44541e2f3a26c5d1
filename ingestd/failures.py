"""What the log is told of requests that failed."""

from __future__ import annotations

import logging
import time

from .events import Request

__all__ = ["Failures"]

log = logging.getLogger("ingestd.pipeline")


class Failures:
    """Each with its traceback, one a second: a broken plugin under load must not fill the disk with them."""

    def __init__(self) -> None:
        self._told_at = float("-inf")
        self._untold = 0

    def tell(self, request: Request, error: Exception) -> None:
        now = time.monotonic()
        self._untold += 1
        if now - self._told_at >= 1:
            more = f"; {self._untold - 1} more have since the last one told" if self._untold > 1 else ""
            log.error("a request to %s failed%s", request.endpoint.operation(batch=request.batch), more, exc_info=error)
            self._told_at, self._untold = now, 0
