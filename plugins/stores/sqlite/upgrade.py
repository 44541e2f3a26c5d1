"""The upgrade of a file that an earlier version has written: a copy first, then all steps as one transaction.

A daemon does it at its start, and `ingestd store upgrade` without one. Other commands leave such a file as it is, so
that the earlier version can still use it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from ingestd.api.check_result import show_size
from ingestd.api.errors import CommandError, Unavailable, UpgradeNeeded
from ingestd.support.durable_files import sync

from .connection import MIGRATIONS, check_version

__all__ = ["kept_file", "prepare", "upgrade"]

_ROOM = 64 << 20
"""Bytes that must stay free beside the copy, for the upgrade itself and the events of the first minutes."""

_log = logging.getLogger("ingestd.sqlite")


def kept_file(path: Path) -> Path:
    """Where the copy of before the last upgrade is. The next upgrade replaces it."""
    return path.with_name(path.name + ".before-upgrade")


def prepare(connection: sqlite3.Connection, path: Path, *, serving: bool) -> None:
    """Make the tables of a new file; for a daemon, also upgrade those of an earlier version.

    Raises `UpgradeNeeded` for a command, `Unavailable` without room for the copy, `ConfigError`, `sqlite3.Error`.
    """
    version = check_version(connection, path)
    if not version:
        _migrate(connection, 0)
    elif version < len(MIGRATIONS) and not serving:
        room = _room(connection, path)
        raise UpgradeNeeded(
            f"{path}: {_difference(version)}; a daemon of this version upgrades it when it starts, and"
            f" `ingestd store upgrade` without one. Both keep a copy of {show_size(room)} beside it"
        )
    elif version < len(MIGRATIONS):
        _log.info("%s: %s; it is copied, and then upgraded", path, _difference(version))
        _log.info("%s", _upgrade(connection, path, version, keep=True))


def upgrade(path: Path, *, keep: bool) -> str | None:
    """Upgrade a file that nobody has open. `keep` keeps a copy. Returns what was done; None if there was nothing to do.

    Raises like `prepare`.
    """
    if not path.exists():
        raise CommandError(f"{path} does not exist, so there is nothing to upgrade")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection:
        version = check_version(connection, path)
        if version in {0, len(MIGRATIONS)}:
            return None
        return _upgrade(connection, path, version, keep=keep)


def _difference(version: int) -> str:
    return f"written by an earlier version of ingestd (tables of version {version}, not {len(MIGRATIONS)})"


def _upgrade(connection: sqlite3.Connection, path: Path, version: int, *, keep: bool) -> str:
    began = time.monotonic()
    if keep:
        _room(connection, path)
        _keep(connection, path)
    _migrate(connection, version)
    text = f"{path}: upgraded from tables of version {version} to {len(MIGRATIONS)} in {time.monotonic() - began:.1f} s"
    return f"{text}; the file of before is {kept_file(path)}: remove it when you do not go back" if keep else text


def _room(connection: sqlite3.Connection, path: Path) -> int:
    """The bytes of a copy. Raises `Unavailable` if the disk has no room for it."""
    pages, page_size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    kept, size = kept_file(path), int(pages * page_size)
    free = shutil.disk_usage(path.parent).free + (kept.stat().st_size if kept.exists() else 0)
    if free < size + _ROOM:
        raise Unavailable(
            f"{path}: it is of an earlier version, and an upgrade keeps a copy of {show_size(size)} beside it, but"
            f" {show_size(free)} are free; make room, or write a backup to another disk and run"
            " `ingestd store upgrade --no-copy`"
        )
    return size


def _keep(connection: sqlite3.Connection, path: Path) -> None:
    kept = kept_file(path)
    partial = kept.with_name(kept.name + ".partial")
    _remove(partial)  # of a killed process
    kept.unlink(missing_ok=True)  # of an earlier upgrade: there may be no room for both
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file: no log beside it
        sync(partial)
        os.replace(partial, kept)
        sync(kept.parent)
    finally:
        _remove(partial)


def _remove(partial: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{partial}{suffix}")


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """All steps or none: a process that is killed leaves the former tables or the new ones."""
    steps = "\n".join(MIGRATIONS[version:])
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{steps}\nPRAGMA user_version = {len(MIGRATIONS)};\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.rollback()
        raise
