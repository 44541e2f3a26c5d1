"""Calls to a sink: their time limit, and a sink that the consumers of several partitions share.

The calls of a shared sink never overlap, and all consumers get fair turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ingestd.api.errors import SinkFailure, SinkRetry
from ingestd.api.sink import Sink

__all__ = ["SharedSink", "within"]


async def within(
    seconds: float, work: Awaitable[None], what: str, too_long: type[SinkFailure | SinkRetry] = SinkFailure
) -> None:
    """Await work of a sink for at most that time.

    Raises `too_long` if it takes longer, and `SinkFailure` if it cancels itself.
    """
    limit = asyncio.timeout(seconds)
    task = asyncio.current_task()
    assert task is not None
    try:
        async with limit:
            await work
    except TimeoutError as error:
        if not limit.expired():  # the sink itself raised the TimeoutError
            raise
        raise too_long(f"{what} took longer than {seconds:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise SinkFailure(f"{what} was cancelled from within the sink") from error


class SharedSink:
    """Opens a sink with its first user, and closes it with the last one.

    `turn` is held during each call to the sink, and never while a user waits for its store: a slow partition must not
    hold up the others. Users get the turn in the order in which they asked for it. The time limit of a call begins with
    its turn.
    """

    def __init__(self, sink: Sink, longest: float) -> None:
        """`longest` is the most seconds that opening or checking the sink may take."""
        self.turn = asyncio.Lock()
        self._sink = sink
        self._longest = longest
        self._users: set[object] = set()
        self._is_open = False
        self._is_closed = False
        """Whether nothing was opened since the last `close` of the sink."""

    async def open(self, user: object) -> None:
        """Open the sink, unless another user has done so. It may be called again after a failure."""
        self._users.add(user)
        if self._is_open:  # it need not wait for a turn
            return
        async with self.turn:
            if not self._is_open:
                self._is_closed = False
                await within(self._longest, self._sink.open(), "opening it")
                self._is_open = True

    async def close(self, user: object) -> None:
        """Close the sink if it has no other user. The user must have no call in progress, unless it is stuck."""
        self._users.discard(user)
        if self._users or self._is_closed:
            return
        self._is_open, self._is_closed = False, True
        if self.turn.locked():  # by a call that resists its cancellation, since nobody else uses the sink
            await self._sink.close()
        else:
            async with self.turn:
                await self._sink.close()

    async def check(self) -> None:
        async with self.turn:
            await within(self._longest, self._sink.check(), "a check")
