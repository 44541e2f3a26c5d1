"""Checkpoints of the write-ahead log, outside of commits: within a commit they would delay events."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import suppress

from .commits import Commits
from .database import Database
from .files import open_to_sync

__all__ = ["Checkpoints"]

_UNITS = 100  # transactions, some 0.8 MB: small and frequent checkpoints load the disk less than rare large ones
_LONG = 5000  # pages of the log, half of `AUTOCHECKPOINT_PAGES`: with more, SQLite is made to restart the log
_PATIENCE = 0.05  # seconds to wait for another commit


class Checkpoints:
    """Moves the write-ahead log into the file. Close the other connections to the file before this."""

    def __init__(self, database: Database, commits: Commits) -> None:
        self._connections = database.connections
        self._statistics = database.statistics
        self._commits = commits
        self._moved = 0.0
        self._descriptor = open_to_sync(database.path)

    def close(self) -> None:
        os.close(self._descriptor)

    async def step(self) -> None:
        """Move the content of the log, if it is much. Raises `Unavailable`."""
        written = self._statistics.units.sum
        if written - self._moved < _UNITS:
            return
        if await self._move() >= _LONG:
            # SQLite restarts the log only once all of it is moved, also the little that was written meanwhile. This
            # stops all commits for some milliseconds, so it is rare.
            await self._connections.change(_checkpoint)
        self._moved = written

    async def _move(self) -> int:
        """Returns the number of pages in the log, moved ones included.

        If all of the log is moved, SQLite syncs the file at once. A commit that syncs at the same time waits for both.
        So a snapshot from before the latest commit limits the move, and the file is synced afterwards.
        """
        try:
            await self._connections.snapshot(_begin)
            with suppress(TimeoutError):  # without a new commit nothing has to wait either
                async with asyncio.timeout(_PATIENCE):
                    await self._commits.wait(self._commits.last)
            pages = await self._connections.background(_checkpoint)
        finally:
            await self._connections.snapshot(_end)
        await self._connections.background(_sync, self._descriptor)
        return pages


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # a snapshot starts with a read


def _end(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _checkpoint(connection: sqlite3.Connection) -> int:
    """Returns the number of pages in the log, moved ones included."""
    _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)


def _sync(_: sqlite3.Connection, descriptor: int) -> None:
    with suppress(OSError):  # SQLite's own sync reports it too, and without that sync the log does not restart
        os.fdatasync(descriptor)
