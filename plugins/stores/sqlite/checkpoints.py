"""Moves what the write-ahead log holds into the file, beside the commits: within one, it would keep events waiting."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backend import SqliteBackend

__all__ = ["Checkpoints"]

_UNITS = 1000  # some 8 MB: small and often is kinder to the disk than all at once now and then
_LONG = 5000  # pages of the log: before it has twice as many (`AUTOCHECKPOINT_PAGES`), it is to be begun anew


class Checkpoints:
    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend
        self._moved = 0.0

    async def step(self) -> None:
        """Move what there is, if it is much. Raises `Unavailable`."""
        written = self._backend.statistics.units.sum
        if written - self._moved < _UNITS:
            return
        if await self._backend.aside(_checkpoint) >= _LONG:
            # Little was written meanwhile; but only once it is moved too, the log is begun anew instead of growing. No
            # event is stored for some milliseconds, so this is not done each time.
            await self._backend.change(_checkpoint)
        self._moved = written


def _checkpoint(connection: sqlite3.Connection) -> int:
    """Returns how many pages the log holds, also of those that have been moved."""
    _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)
