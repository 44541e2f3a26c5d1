"""The answer and the log line for an error."""

from __future__ import annotations

import logging
import time
from contextvars import Context

from ingestd.api.errors import Failed, Refused
from ingestd.api.events import Request
from ingestd.observability.logs import current_request

__all__ = ["Failures"]

log = logging.getLogger("ingestd.pipeline")


class Failures:
    """Logs unexpected errors with their traceback, at most one a second: a broken plugin must not fill the disk."""

    def __init__(self) -> None:
        self._told_at = float("-inf")
        self._untold = 0

    def refusal(self, request: Request, error: Exception) -> Refused:
        """The refusal that the caller gets. Of an unexpected error it says only that there was one."""
        if isinstance(error, Refused):
            return error
        Context().run(self._log, request, error)
        return Failed("The event could not be processed. It was not stored.")

    def _log(self, request: Request, error: Exception) -> None:
        """Runs in a separate context: events of many requests end in one callback of their commit."""
        current_request.set(request)
        now = time.monotonic()
        self._untold += 1
        if now - self._told_at >= 1:
            more = f"; {self._untold - 1} more have failed since the last such line" if self._untold > 1 else ""
            log.error("a request to %s failed%s", request.endpoint.operation(batch=request.batch), more, exc_info=error)
            self._told_at, self._untold = now, 0
