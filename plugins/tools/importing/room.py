"""The room for imported records in a journal that has a limit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from ingestd.api.errors import Unavailable
from ingestd.api.journal import Journal
from ingestd.config import Config
from ingestd.storage.retention import room_below

from .progress import Interruption

__all__ = ["Room"]

_LOOK = 0.2  # seconds between two looks at a full journal
_PATIENCE = 30.0  # seconds without room in the journal until the command gives up


class Room:
    """The room in journals with `max_size`. The daemon refuses events while their journal is full."""

    def __init__(self, journals: Sequence[Journal], config: Config) -> None:
        self._journals = journals
        self._limit = None if config.journal.max_size is None else room_below(int(config.journal.max_size))
        self.chunk = sys.maxsize
        """The bytes of lines that certainly have room while the journal is not nearly full."""
        if config.journal.max_size is not None and self._limit is not None:
            self.chunk = (int(config.journal.max_size) - self._limit) // 4

    async def wait(self, interruption: Interruption) -> None:
        """Wait while a journal is nearly full. Raises `Unavailable` if nothing makes room, and `Interrupted`."""
        interruption.check()
        if self._limit is None:
            return
        loop = asyncio.get_running_loop()
        least, since = sys.maxsize, loop.time()
        while (size := max([(await journal.extent()).bytes for journal in self._journals])) > self._limit:
            if size < least:
                least, since = size, loop.time()
            elif loop.time() - since > _PATIENCE:
                raise Unavailable(
                    "the journal is full ([journal] max_size), and no daemon makes room in it; when its sinks have"
                    " caught up, run the command again: it goes on where it was"
                )
            interruption.check()
            await asyncio.sleep(_LOOK)
