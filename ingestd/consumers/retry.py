"""Repeats an attempt until it succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from ingestd.api.errors import LeaseLost, SinkFailure, SinkRetry, Unavailable, reason_of
from ingestd.support.backoff import Backoff

from .failure_log import FailureLog
from .status import ConsumerStatus

__all__ = ["Attempts"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_STORE_PAUSE = 1.0  # the longest pause after a failure of the store, in seconds


@dataclass(eq=False)
class Attempts:
    """Repeats an attempt until it succeeds, with growing pauses and few log lines.

    It does not repeat an attempt that raises `LeaseLost`.
    """

    log: FailureLog
    backoff: Backoff
    status: ConsumerStatus | None = None
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits that number of seconds."""
    place: Callable[[], str] = str
    """Describes the partition in which the attempts are made, for operators."""
    _failures: int = field(default=0, init=False)

    async def until_done(self, attempt: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        task = asyncio.current_task()
        assert task is not None
        try:
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
        except BaseException:
            self.log.ended(self)
            raise

    def _pause(self, error: BaseException) -> float:
        pause = self.backoff.pause(self._failures)
        if isinstance(error, Unavailable):  # asking the store again is cheap, and everything waits for its recovery
            return min(pause, _STORE_PAUSE)
        after = error.after if isinstance(error, SinkFailure | SinkRetry) else None
        return pause if after is None else max(pause, after)

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self.log.failed(self, self.place(), error, self._failures)
        if self.status is not None:
            self.status.failures += 1
            self.status.last_error = reason_of(error)

    def _succeeded(self) -> None:
        if self._failures:
            self.log.succeeded(self)
            self._failures = 0
            if self.status is not None:
                self.status.last_error = None
