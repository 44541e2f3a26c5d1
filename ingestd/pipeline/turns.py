"""A limit on the work in progress. Work beyond it waits for its turn, in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Turns"]


class Turns:
    """`most` returns the limit. Work larger than the limit has its turn when nothing else is in progress."""

    def __init__(self, most: Callable[[], int]) -> None:
        self.in_hand = 0
        self._most = most
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    def begin_at_once(self, size: int) -> bool:
        """Begin a turn if it is possible now. Returns whether it has begun; if not, await `begin`."""
        if self._queue or (self.in_hand and not self._fits(size)):
            return False
        self.in_hand += size
        return True

    async def begin(self, size: int) -> None:
        """Wait for a turn, which the caller must `end`."""
        if self.begin_at_once(size):
            return
        future = asyncio.get_running_loop().create_future()
        self._queue.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # its turn had just come
                self.end(size)
            raise

    def end(self, size: int) -> None:
        self.in_hand -= size
        while self._queue and (self._queue[0][1].done() or self._fits(self._queue[0][0])):
            size, future = self._queue.popleft()
            if not future.done():  # otherwise its task was cancelled
                self.in_hand += size
                future.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self.in_hand or self.in_hand + size <= self._most()
