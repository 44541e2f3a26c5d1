"""Answers that are sent a second late: their senders would send the next costly request at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["HeldBack"]

_SECONDS = 1.0


class HeldBack:
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._over = False

    def add(self, send: Callable[[], None]) -> None:
        """Call `send` a second later, or as soon as `send_all` is called."""
        loop = asyncio.get_running_loop()
        if self._over:
            loop.call_soon(send)
        else:
            self._waiting.append(send)
            loop.call_later(_SECONDS, self._send_next)

    def send_all(self) -> None:
        """Hold no answer back any longer: the daemon is shutting down."""
        self._over = True
        while self._waiting:
            asyncio.get_running_loop().call_soon(self._waiting.popleft())

    def _send_next(self) -> None:
        if self._waiting:  # otherwise `send_all` was faster
            self._waiting.popleft()()
