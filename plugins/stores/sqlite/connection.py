"""Connections to the file, and its numbered migrations."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import aiosqlite

from ingestd.errors import ConfigError

__all__ = ["Connection", "connect", "migrate"]

_T = TypeVar("_T")


class Connection(aiosqlite.Connection):
    """aiosqlite hops to the connection's thread once a call; a batch is to be one hop.

    So this puts a function of ours into the queue of that thread, as its own methods do.
    """

    def submit(self, work: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Run a function with the connection, on its thread; it is queued at once.

        Raises `ValueError` when the connection is closed.
        """
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(work, self._conn)))
        return future


async def connect(path: Path, *, busy_timeout: float, read_only: bool) -> Connection:
    """Open one connection; transactions are begun and ended by hand. `busy_timeout` in seconds."""

    def connector() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=busy_timeout, cached_statements=64)
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            # Fewer, longer checkpoints: about 16 MB of log, against a stall for every 4.
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
        return connection

    connection = Connection(connector, 64)
    await connection
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest version, each migration in a transaction. Raises `ConfigError`."""
    folder = files("ingestd.plugins.stores.sqlite").joinpath("migrations")
    scripts = {int(entry.name[:4]): entry for entry in folder.iterdir() if entry.name.endswith(".sql")}
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > max(scripts):
        raise ConfigError(
            f"the store's file is of version {version}, this ingestd knows only {max(scripts)}; install a newer one"
        )
    for number in sorted(scripts):
        if number > version:
            script = scripts[number].read_text(encoding="utf-8")
            connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
