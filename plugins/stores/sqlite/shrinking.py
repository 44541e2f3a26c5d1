"""Gives space to the disk that the file and its write-ahead log have not needed for some seconds.

Without this, the file would stay as large as it was in its worst hour: while a sink was away, or under an attack.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque

from .database import Database

__all__ = ["Shrinker"]

_LOOKS = 3  # looks at which pages were free, two a second
_KEEP = 2000  # free pages that stay for new content, some 8 MB
_SHARE = 5  # at least a fifth of the pages in use stays free too
_PAGES = 512  # pages that one statement removes: it moves as many from the end of the file
_PAUSE = 0.02  # seconds between two such statements, for commits
_LOG = 8 << 20  # bytes of the log from which it is emptied when there is little to do
_QUIET = 50  # transactions between two looks


class Shrinker:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = database.path.with_name(f"{database.path.name}-wal")
        self._free: deque[int] = deque(maxlen=_LOOKS)
        self._written = 0.0

    async def step(self) -> None:
        """Raises `Unavailable`."""
        written = self._database.statistics.units.sum
        is_quiet, self._written = written - self._written < _QUIET, written
        if is_quiet and self._log.exists() and self._log.stat().st_size > _LOG:
            self._database.cleaner.due = True
        excess = await self._excess()
        if excess <= 0 or len(self._free) < _LOOKS:
            return
        while excess > 0:
            await self._database.connections.change(_remove_pages)
            await asyncio.sleep(_PAUSE)
            excess = min(excess - _PAGES, await self._excess())
        self._free.clear()
        self._database.cleaner.due = True  # the file is cut once the log is in it

    async def _excess(self) -> int:
        """How many pages have been free for long enough, beyond those that stay."""
        pages, free = await self._database.connections.read(_count_pages)
        self._free.append(free)
        return min(self._free) - max(_KEEP, (pages - free) // _SHARE)


def _count_pages(connection: sqlite3.Connection) -> tuple[int, int]:
    """The pages of the file, and how many of them are free. A file of an earlier version cannot shrink."""
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return pages, free if mode else 0


def _remove_pages(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # after a commit that failed in its end
        return
    connection.executescript(f"PRAGMA incremental_vacuum({_PAGES})")  # `execute` would remove a single page
