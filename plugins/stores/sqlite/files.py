"""The files on disk: where they are, and the lock that gives them one owner."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path
from typing import NamedTuple

from ingestd.api.errors import ConfigError, IngestdError, Unavailable

__all__ = ["Lock", "acquire", "create", "daemon_process", "locate", "open_to_sync"]

PATIENCE = 10.0  # seconds to wait for a command that has the file; commands are short
RETRY = 0.05

_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}


def locate(url: str, base: Path) -> Path:
    """The file a URL names. Raises `ConfigError`.

    Three slashes and an absolute path make four, as SQLAlchemy has it; here they mean the same as three.
    """
    match = re.fullmatch(r"sqlite:(?:///?(?=/))?([^?#]+)", url)
    if match is None or match[1].startswith("//") or match[1].endswith("/"):
        raise ConfigError(
            f"{url!r}: expected sqlite:///absolute/path.db, or sqlite:path.db relative to the configuration"
        )
    return (base / match[1]).resolve()  # resolved: one file has one lock, by whatever link it is reached


def create(path: Path) -> None:
    """Make the file and its folder where they are missing, for nobody else to read: they hold secrets."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _refusal(path, error) from error


def open_to_sync(path: Path) -> int:
    """A descriptor of the file; to close it, or any other, drops the locks that SQLite has on the file."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> IngestdError:
    if error.errno in _TRANSIENT:
        return Unavailable(f"{path}: cannot be opened: {error.strerror}")
    return ConfigError(f"{path}: cannot be opened: {error.strerror}; its folder must be the daemon's own")


class _Holder(NamedTuple):
    pid: str
    kind: str


class Lock:
    """The lock on the side file. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        with contextlib.suppress(OSError):  # the text is only for messages
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


async def acquire(path: Path, *, serving: bool) -> Lock | None:
    """Become the owner of the file; None for a command beside a running daemon.

    Waits for a command that has the file to end. Raises `ConfigError` for a second daemon.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        taken = _try(_lock_path(path), "daemon" if serving else "command")
        if isinstance(taken, Lock):
            return taken
        if taken.kind == "daemon" and not serving:
            return None
        if taken.kind == "daemon":
            raise ConfigError(
                f"{path}: in use by process {taken.pid}, and a file has one daemon;"
                " stop that one, or give this one a file of its own ([store] url)"
            )
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"{path}: in use by process {taken.pid}, a command; try again when it has ended")
        await asyncio.sleep(RETRY)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _try(path: Path, kind: str) -> Lock | _Holder:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {kind}".encode(), 0)
    except BlockingIOError:
        words = os.pread(descriptor, 100, 0).decode("ascii", "replace").split()
        os.close(descriptor)
        return _Holder(*words) if len(words) == 2 else _Holder("unknown", "command")  # it is just writing it
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"{path}: cannot be locked: {error.strerror}") from error
    return Lock(descriptor)


def daemon_process(path: Path) -> int | None:
    """The process of the daemon that has the file; None without one. Raises `OSError`."""
    try:
        descriptor = os.open(_lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        words = os.pread(descriptor, 100, 0).decode("ascii", "replace").split()
        if len(words) != 2 or words[1] != "daemon" or not Path("/proc", words[0]).exists():
            return None  # before the lock is tried: a daemon that starts just now must not meet our lock
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(words[0])
    finally:
        os.close(descriptor)
    return None  # it was killed, and another process has its number
