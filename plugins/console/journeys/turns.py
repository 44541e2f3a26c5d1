"""Turns of costly requests: one works, a few wait, and further ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ingestd.api.errors import Unavailable

__all__ = ["Turns"]

_MAX_WAITING = 4
_RETRY_AFTER = 5  # seconds


class Turns:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn. Raises `Unavailable` if too many wait already."""
        if self._waiting >= _MAX_WAITING:
            raise Unavailable("Too many requests for this wait already. Try again later.", retry_after=_RETRY_AFTER)
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()
