"""The access log: refused and failed requests, and a sample of the others, at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextvars import Context

from ingestd.api.events import Endpoint
from ingestd.config import LogsOptions

__all__ = ["AccessLog"]

log = logging.getLogger("ingestd.access")

_MOST_A_SECOND = 20

_METHODS = frozenset(["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"])


class AccessLog:
    """Logs answers, without the path, headers, body or unknown method of a request: any of these may contain a key.

    At most 20 lines a second are written for each class of status: 2xx, 4xx and 5xx. One line at the end of the second
    counts the other answers.
    """

    def __init__(self, options: LogsOptions) -> None:
        self.apply_options(options)
        self._lines: Counter[int] = Counter()
        self._left_out: Counter[int] = Counter()
        self._second: asyncio.TimerHandle | None = None

    def apply_options(self, options: LogsOptions) -> None:
        self._errors = options.access_errors
        self._sample = options.access_sample
        self.samples = options.access_sample > 0
        """Whether successful requests may be logged."""

    def answered(
        self,
        method: str,
        endpoint: Endpoint | None,
        status: int,
        *,
        code: str,
        seconds: float,
        size: int,
        peer: str,
        request_id: str,
        batch: bool = False,
    ) -> None:
        """Log an answer, if the options or the sample select it.

        `size` is the length of the request's body in bytes. `code` is the problem's code.
        """
        if not (self._errors if status >= 400 else self.samples and random.random() < self._sample):  # noqa: S311 - no secret
            return
        if self._second is None:
            # An empty context, or the log would assign the summary line to this request.
            self._second = asyncio.get_running_loop().call_later(1, self.end_second, context=Context())
        kind = status // 100
        self._lines[kind] += 1
        if self._lines[kind] > _MOST_A_SECOND:
            self._left_out[status] += 1
            return
        method = method if method in _METHODS else "-"
        where = endpoint.operation(batch=batch) if endpoint is not None else None
        log.log(
            _level(status),
            "%s %s %d%s in %.1f ms, %d bytes from %s",
            method, where or "-", status, f" {code}" if code else "", seconds * 1000, size, peer or "-",
            extra={
                "ingestd_fields": {
                    "request_id": request_id,
                    "method": method,
                    "endpoint": where,
                    "status": status,
                    "code": code or None,
                    "seconds": round(seconds, 6),
                    "bytes": size,
                    "peer": peer or None,
                }
            },
        )  # fmt: skip

    def end_second(self) -> None:
        """Log how many answers were left out, and start a new second. A timer calls this, and the daemon's shutdown."""
        if self._second is not None:
            self._second.cancel()
            self._second = None
        left_out = sorted(self._left_out.items())
        self._lines.clear()
        self._left_out.clear()
        if left_out:
            log.log(
                _level(left_out[-1][0]),
                "%d more answers within a second (%s)",
                sum(count for _, count in left_out),
                ", ".join(f"{count} of status {status}" for status, count in left_out),
                extra={"ingestd_fields": {"left_out": {str(status): count for status, count in left_out}}},
            )


def _level(status: int) -> int:
    return logging.WARNING if status >= 500 else logging.INFO
