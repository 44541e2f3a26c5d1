"""Connections to the file: functions that run on aiosqlite's thread, pragmas, transactions, the tables' version."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import aiosqlite

from ingestd.api.errors import ConfigError, IngestdError, Unavailable, UpgradeNeeded

__all__ = [
    "MIGRATIONS", "Connection", "check_version", "connect", "is_damage", "is_row_fault", "open_error", "snapshot",
    "transaction",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")

APPLICATION_ID = 0x696E6764  # "ingd"; the first migration writes it

# For a daemon whose own checkpoints (see `Checkpoints`) are too slow: these run inside a commit.
AUTOCHECKPOINT_PAGES = 10_000
WAL_SIZE_LIMIT = 64 * 1024 * 1024
WRITER_CACHE_KIB = 16 * 1024

_SYNCED = "PRAGMA synchronous = FULL"
_UNSYNCED = "PRAGMA synchronous = NORMAL"

_TRANSIENT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


def _read_migrations() -> list[str]:
    folder = files(__package__) / "migrations"
    scripts = sorted((entry.name, entry) for entry in folder.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", entry.name))
    return [entry.read_text(encoding="utf-8") for _, entry in scripts]


# Read now: later a command may have given up the right to read its own program.
MIGRATIONS = _read_migrations()


class Connection(aiosqlite.Connection):
    """A connection that runs whole functions on its thread.

    aiosqlite hops to its thread and back for every call. For a batch, these hops cost more than the batch. So `submit`
    puts a whole function into the queue of that thread, as aiosqlite's own methods do.
    """

    def submit(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kw: P.kwargs
    ) -> asyncio.Future[T]:
        """Run `work(connection, …)` on the connection's thread. It is in the queue once this returns.

        Raises `ValueError` if the connection is closed.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(work, self._conn, *args, **kw)))
        return future

    def submit_then(
        self,
        then: Callable[[T | BaseException], object],
        work: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kw: P.kwargs,
    ) -> None:
        """As `submit`. Calls `then` in the event loop with the result or the error.

        A future would tell its waiter one turn of the loop later, which is milliseconds in a busy loop.
        """
        loop = asyncio.get_running_loop()
        call = partial(work, self._conn, *args, **kw)

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - `then` gets it
                loop.call_soon_threadsafe(then, error)
            else:
                loop.call_soon_threadsafe(then, result)

        self._tx.put_nowait((None, run))


async def connect(path: Path, *, writing: bool, busy_timeout: float) -> Connection:
    """Open an existing file. `busy_timeout` (seconds) bounds the wait for locks of other processes."""

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=busy_timeout, isolation_level=None, cached_statements=256
        )

    connection = Connection(open_file, iter_chunk_size=64)
    await connection
    try:
        await connection.submit(_configure, path, writing=writing)
    except BaseException:
        await connection.close()  # waits for the thread; a failure in `open_file` would leave it running
        raise
    return connection


def _configure(connection: sqlite3.Connection, path: Path, *, writing: bool) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new file; `Shrinker` needs it
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(f"{path}: its file system cannot hold a write-ahead log; put the file on a local disk")
    connection.execute(_SYNCED)
    if writing:
        # Overwrite deleted data: a forgotten person must not be found in free pages.
        connection.execute("PRAGMA secure_delete = ON")
        # Keep old pages out of temporary files, which a statement of many rows makes for its rollback. And no event may
        # fail because such a file has no room or must not be made.
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_SIZE_LIMIT}")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
    else:
        connection.execute("PRAGMA query_only = ON")


@contextmanager
def transaction(connection: sqlite3.Connection, *, synced: bool = True) -> Iterator[None]:
    """A transaction: all or nothing. First rolls back an earlier one that is still open after a failed end.

    An unsynced transaction survives the end of the process. It survives a power failure once a synced one has followed.
    """
    if connection.in_transaction:
        connection.rollback()
        connection.execute(_SYNCED)
    if not synced:
        connection.execute(_UNSYNCED)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise
    finally:
        if not synced:
            connection.execute(_SYNCED)


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """All reads within it see the file at one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


def check_version(connection: sqlite3.Connection, path: Path, *, current: bool = False) -> int:
    """The version of the file's tables, 0 for an empty file. `current` refuses all versions but the program's."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    newest = len(MIGRATIONS)
    if application != APPLICATION_ID and (version or tables):
        raise ConfigError(f"{path}: a database of another program; give the daemon a separate file")
    if version > newest:
        raise ConfigError(
            f"{path}: written by a newer ingestd (tables of version {version}, this one knows {newest});"
            " install that version or a later one, or restore a copy from before it ran"
        )
    if current and not version:
        raise Unavailable(f"{path}: it has no tables yet; try again when the daemon has started")
    if current and version != newest:
        raise UpgradeNeeded(
            f"{path}: its tables have version {version}, not {newest}: the running daemon is of an earlier version."
            " Use the command of that version, or restart the daemon with this one"
        )
    return int(version)


def is_row_fault(error: Exception) -> bool:
    """Whether one row causes the error (a lone surrogate, a number or text too large), and not the file."""
    if isinstance(error, sqlite3.Error):
        return isinstance(
            error, sqlite3.DataError | sqlite3.IntegrityError | sqlite3.InterfaceError | sqlite3.ProgrammingError
        )
    return not isinstance(error, MemoryError)


def is_damage(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def open_error(error: sqlite3.Error, path: Path) -> IngestdError:
    """An error while opening: `Unavailable` if it can pass, else `ConfigError`."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _TRANSIENT:
        return Unavailable(f"{path}: {error}")
    if is_damage(error):
        return ConfigError(f"{path} is damaged: {error}")
    return ConfigError(f"{path}: cannot be opened: {error}")
