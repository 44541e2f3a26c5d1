"""The lines of `ingestd check` about the file: its size, disk, daemon, faults, and a trial write."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from ingestd.api.check_result import CheckResult, fault, show_age, show_size
from ingestd.api.errors import IngestdError

from .commits import Commits
from .database import Database
from .upgrade import kept_file

__all__ = ["describe", "fill"]

_LOOK_SECONDS = 2.0
"""Time limit of the quick check, enough for some gigabytes. The daemon cannot shorten the log during the check."""
_STEPS = 1000  # instructions of SQLite's machine between two looks at the clock
_LOW_DISK = 256 << 20


async def describe(database: Database) -> list[CheckResult]:
    return [
        _file(database.path),
        _disk(database.path),
        *_kept(kept_file(database.path)),
        _daemon(database.path, database.commits),
        await _whole(database),
        await _writable(database.commits),
    ]


def fill(connection: sqlite3.Connection, _: int) -> None:
    """A trial write, in a separate commit."""
    # As large as a few events, so that a disk without room for them counts as full.
    connection.execute("INSERT OR REPLACE INTO probe (id, filler) VALUES (1, randomblob(65536))")


def _file(path: Path) -> CheckResult:
    log = path.with_name(path.name + "-wal")
    size, log_size = path.stat().st_size, log.stat().st_size if log.exists() else 0
    text = f"{path}, {show_size(size)} and a log of {show_size(log_size)}; SQLite {sqlite3.sqlite_version}"
    facts = {"path": str(path), "bytes": size, "logBytes": log_size, "sqlite": sqlite3.sqlite_version}
    return CheckResult("file", text, facts=facts)


def _disk(path: Path) -> CheckResult:
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    return CheckResult(
        "disk",
        f"{show_size(free)} free on the disk of the file",
        "unavailable" if free == 0 else "warning" if free < _LOW_DISK else "ok",
        {"freeBytes": free},
    )


def _kept(path: Path) -> Iterator[CheckResult]:
    if path.exists():
        size = path.stat().st_size
        text = f"{path}, {show_size(size)}: the file of before an upgrade; remove it when you do not go back"
        yield CheckResult("kept", text, facts={"path": str(path), "bytes": size})


def _daemon(path: Path, commits: Commits | None) -> CheckResult:
    if commits is not None:
        return CheckResult("daemon", "none is running on this file")
    pid = path.with_name(path.name + ".lock").read_text("ascii", "replace").partition(" ")[0]
    return CheckResult("daemon", f"process {pid} has the file", facts={"pid": int(pid)} if pid.isdigit() else {})


async def _whole(database: Database) -> CheckResult:
    try:
        faults = await database.connections.read(_quick_check)
    except IngestdError as error:
        return fault("whole", error)
    if faults is None:
        return CheckResult(
            "whole", f"no fault in the first {show_age(int(_LOOK_SECONDS * 1000))} of quick_check", facts={"all": False}
        )
    if faults:
        cure = "stop the daemon, and restore a copy or save what sqlite3's .recover finds"
        return CheckResult("whole", f"{database.path} is damaged: {'; '.join(faults)}; {cure}", "broken")
    return CheckResult("whole", "yes, says quick_check", facts={"all": True})


def _quick_check(connection: sqlite3.Connection) -> list[str] | None:
    """The first faults of the file; None if the time was too short to look at all of it."""
    deadline = time.monotonic() + _LOOK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return None
    except sqlite3.DatabaseError as error:
        return [str(error)]
    finally:
        connection.set_progress_handler(None, 0)
    return [] if found == ["ok"] else found


async def _writable(commits: Commits | None) -> CheckResult:
    if commits is None:
        return CheckResult("write", "not tried, since only its daemon writes the file; the operators' listener tells")
    try:
        await commits.commit(also=fill)
    except IngestdError as error:
        return fault("write", error)
    return CheckResult("write", "a trial write is on the disk")
