"""Repeats an attempt until it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from ingestd.api.backoff import Backoff
from ingestd.api.errors import IngestdError, LeaseLost, SinkFailure, SinkRetry, Unavailable, reason_of
from ingestd.api.message_kinds import message_kind

from .status import ConsumerStatus

__all__ = ["Attempts"]

_log = logging.getLogger("ingestd.consumers")

_P = ParamSpec("_P")
_T = TypeVar("_T")

_STORE_PAUSE = 1.0  # the longest pause after a failure of the store, in seconds


@dataclass
class Attempts:
    """Repeats an attempt until it succeeds, with growing pauses and few log lines.

    It does not repeat an attempt that raises `LeaseLost`.
    """

    name: str
    backoff: Backoff
    status: ConsumerStatus | None = None
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits that number of seconds."""
    _failures: int = field(default=0, init=False)
    _kind: str = field(default="", init=False)
    """The kind of the last reason. The reason itself may contain a new id in each failure."""

    async def until_done(self, attempt: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                result = await attempt(*args, **kwargs)
            except (Exception, asyncio.CancelledError) as error:
                if task.cancelling():
                    raise asyncio.CancelledError from error
                if isinstance(error, LeaseLost):
                    raise
                # Otherwise a CancelledError came from inside the attempt, and is a failure like any other.
                self._failed(error)
                await self.rest(self._pause(error))
            else:
                self._succeeded()
                if task.cancelling():  # the attempt has suppressed the CancelledError
                    raise asyncio.CancelledError
                return result

    def _pause(self, error: BaseException) -> float:
        pause = self.backoff.pause(self._failures)
        if isinstance(error, Unavailable):  # asking the store again is cheap, and everything waits for its recovery
            return min(pause, _STORE_PAUSE)
        after = error.after if isinstance(error, SinkFailure | SinkRetry) else None
        return pause if after is None else max(pause, after)

    def _failed(self, error: BaseException) -> None:
        reason = reason_of(error)
        self._failures += 1
        rare = self._failures & (self._failures - 1) == 0  # the 1st, 2nd, 4th, 8th …
        kind = message_kind(reason)
        if rare or kind != self._kind:
            expected = isinstance(error, IngestdError | OSError)
            _log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s: %s; it is tried again (failure %d in a row)",
                self.name,
                reason,
                self._failures,
                exc_info=None if expected else error,
            )
        self._kind = kind
        if self.status is not None:
            self.status.failures += 1
            self.status.last_error = reason

    def _succeeded(self) -> None:
        if self._failures:
            _log.info("%s: works again after %d failures", self.name, self._failures)
            self._failures = 0
            self._kind = ""
            if self.status is not None:
                self.status.last_error = None
