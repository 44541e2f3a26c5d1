"""Backups of the SQLite file: made beside a running daemon, checked, and restored without one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ingestd.api import times
from ingestd.api.errors import CommandError, ConfigError
from ingestd.api.times import format_time
from ingestd.support.durable_files import sync

from .connection import check_version, open_error
from .store import LOSS_KEY

__all__ = ["back_up", "restore"]


def back_up(database: Path, file: Path) -> None:
    """Write the present content of the database to a new file. Raises `CommandError`, `ConfigError`, `OSError`."""
    if file.exists():
        raise CommandError(f"{file} exists, and a backup overwrites nothing; name another file")
    if not database.exists():
        raise CommandError(f"{database} does not exist, so there is nothing to back up")
    with _beside(file) as copy:
        _copy(database, copy)
        _put(copy, file)


def restore(file: Path, database: Path) -> Path | None:
    """Replace the database, which nobody has open, by a backup. Returns the former database's new path, if any.

    The restored store has a loss of data. Raises `CommandError`, `ConfigError`, `OSError`.
    """
    if not file.exists():
        raise CommandError(f"{file} does not exist")
    now = times.now()
    with _beside(database) as copy:
        _copy(file, copy)
        _note_loss(copy, f"the store was restored from {file.name} (at {format_time(now)})")
        if not database.exists():
            _put(copy, database)
            return None
        kept = database.with_name(f"{database.name}.before-restore-{format_time(now).replace(':', '')}")
        _fold_log(database)
        os.link(database, kept)  # the former database stays until the backup is in its place
        for suffix in ("-wal", "-shm"):  # only a damaged database has them still; they must not meet the backup
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{database}{suffix}", f"{kept}{suffix}")
        os.replace(copy, database)
        sync(database.parent)
    return kept


@contextlib.contextmanager
def _beside(file: Path) -> Iterator[Path]:
    """A temporary file in the same folder, for its owner only."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=".partial", dir=file.parent)
    except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
        raise CommandError(f"{file}: {error.strerror}; the owner of the store must be able to write there") from None
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name + suffix)


def _copy(source: Path, copy: Path) -> None:
    """Copy a database at one moment, and check the copy."""
    try:
        with closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True)) as connection:
            version = check_version(connection, source)
            with closing(sqlite3.connect(copy)) as target:
                connection.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file: no log beside it
                faults = [text for (text,) in target.execute("PRAGMA integrity_check(5)") if text != "ok"]
    except sqlite3.DatabaseError as error:
        full = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL
        raise open_error(error, copy if full else source) from error
    if not version:
        raise ConfigError(f"{source}: no database of ingestd")
    if faults:
        raise ConfigError(f"{source} is damaged: {'; '.join(' '.join(faults).splitlines())}")
    sync(copy)


def _put(copy: Path, file: Path) -> None:
    """Give the file its name, unless another one has it by now."""
    try:
        os.link(copy, file)
    except FileExistsError:
        raise CommandError(f"{file} exists, and a backup overwrites nothing; name another file") from None
    sync(file.parent)


def _note_loss(copy: Path, loss: str) -> None:
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute("INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)", (LOSS_KEY, loss))
    sync(copy)


def _fold_log(database: Path) -> None:
    """Write the log of a killed daemon into the database. A damaged database stays as it is, beside its log."""
    with contextlib.suppress(sqlite3.Error):
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            ((fault,),) = connection.execute("PRAGMA quick_check(1)")
        if fault == "ok":
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
