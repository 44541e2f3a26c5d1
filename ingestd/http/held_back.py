"""Answers that are sent a second late: their senders would send the next costly request at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["HeldBack"]

_SECONDS = 1.0
_SOON = 0.01  # seconds: answers of the same moment share a timer
_MOST = 1024  # answers, each with the headers of its request, even if the client has left


class HeldBack:
    """Beyond 1,024 answers, the oldest one is sent early."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        """Each with the loop's time at which it is due."""
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def add(self, send: Callable[[], None]) -> None:
        """Call `send` a second later, or as soon as `send_all` is called."""
        loop = asyncio.get_running_loop()
        if self._over:
            loop.call_soon(send)
            return
        self._waiting.append((loop.time() + _SECONDS, send))
        if len(self._waiting) > _MOST:
            self._send(1)
        if self._timer is None:
            self._timer = loop.call_later(_SECONDS, self._send_due)

    def send_all(self) -> None:
        """Hold no answer back any longer: the daemon is shutting down."""
        self._over = True
        self._send(len(self._waiting))

    def _send_due(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time() + _SOON
        self._send(sum(due <= now for due, _ in self._waiting))
        self._timer = loop.call_at(self._waiting[0][0], self._send_due) if self._waiting else None

    def _send(self, count: int) -> None:
        for _ in range(count):
            asyncio.get_running_loop().call_soon(self._waiting.popleft()[1])
