"""Moves what the write-ahead log holds into the file, beside the commits: within one, it would keep events waiting."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import suppress

from .commits import Commits
from .database import Database
from .files import open_to_sync

__all__ = ["Checkpoints"]

_UNITS = 100  # some 0.8 MB: small and often is kinder to the disk than all at once now and then
_LONG = 5000  # pages of the log: before it has twice as many (`AUTOCHECKPOINT_PAGES`), it is to be begun anew
_PATIENCE = 0.05  # seconds to wait for another commit


class Checkpoints:
    """Needs the file's own connections to be closed before it is."""

    def __init__(self, database: Database, commits: Commits) -> None:
        self._connections = database.connections
        self._statistics = database.statistics
        self._commits = commits
        self._moved = 0.0
        self._descriptor = open_to_sync(database.path)

    def close(self) -> None:
        os.close(self._descriptor)

    async def step(self) -> None:
        """Move what there is, if it is much. Raises `Unavailable`."""
        written = self._statistics.units.sum
        if written - self._moved < _UNITS:
            return
        if await self._move() >= _LONG:
            # Little was written meanwhile; but only once it is moved too, the log is begun anew instead of growing. No
            # event is stored for some milliseconds, so this is not done each time.
            await self._connections.change(_checkpoint)
        self._moved = written

    async def _move(self) -> int:
        """Returns how many pages the log holds, also of those that have been moved.

        Where all of the log is moved SQLite syncs the file at once, and a commit whose own sync meets that one waits
        for both. So less than all is moved, up to a snapshot from before the latest commit, and synced in between.
        """
        try:
            await self._connections.snapshot(_begin)
            with suppress(TimeoutError):  # nobody to keep waiting
                async with asyncio.timeout(_PATIENCE):
                    await self._commits.wait(self._commits.last)
            pages = await self._connections.background(_checkpoint)
        finally:
            await self._connections.snapshot(_end)
        await self._connections.background(_sync, self._descriptor)
        return pages


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # only who has read has a snapshot


def _end(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _checkpoint(connection: sqlite3.Connection) -> int:
    """Returns how many pages the log holds, also of those that have been moved."""
    _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)


def _sync(_: sqlite3.Connection, descriptor: int) -> None:
    with suppress(OSError):  # SQLite's own sync, without which the log is not begun anew, tells of the same
        os.fdatasync(descriptor)
