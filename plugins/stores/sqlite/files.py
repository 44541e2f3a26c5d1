"""The files on disk: their paths, and the lock that gives them one owner."""

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

PATIENCE = 10.0  # seconds to wait for a command that holds the lock; commands are short
RETRY = 0.05

_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}


def locate(url: str, base: Path) -> Path:
    """The file that a URL names. Raises `ConfigError`.

    Three slashes and an absolute path give four slashes, as in SQLAlchemy. Here four mean the same as three.
    """
    match = re.fullmatch(r"sqlite:(?:///?(?=/))?([^?#]+)", url)
    if match is None or match[1].startswith("//") or match[1].endswith("/"):
        raise ConfigError(
            f"{url!r}: expected sqlite:///absolute/path.db or sqlite:path.db relative to the configuration"
        )
    return (base / match[1]).resolve()  # resolved: one file has one lock, through whatever link it is opened


def create(path: Path) -> None:
    """Make the file and its folder if they are missing. Only their owner can read them, because they hold secrets."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _refusal(path, error) from error


def open_to_sync(path: Path) -> int:
    """A descriptor of the file. Closing any descriptor of the file drops SQLite's locks on it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError, done: str = "opened") -> IngestdError:
    if error.errno in _TRANSIENT:
        return Unavailable(f"{path}: cannot be {done}: {error.strerror}")
    cure = "; the daemon must own the folder" if done == "opened" else ""
    return ConfigError(f"{path}: cannot be {done}: {error.strerror}{cure}")


class _Holder(NamedTuple):
    pid: str
    kind: str


class Lock:
    """The lock on the side file. The kernel releases it with the end of the process, after a crash too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        with contextlib.suppress(OSError):  # the text is only for messages
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


async def acquire(path: Path, *, serving: bool) -> Lock | None:
    """Become the owner of the file. None for a command while a daemon runs.

    Waits for a command that holds the lock. Raises `ConfigError` for a second daemon.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while isinstance(taken := _try(_lock_path(path), "daemon" if serving else "command"), _Holder):
        if taken.kind == "daemon" and not serving:
            return None
        if taken.kind == "daemon":
            raise ConfigError(
                f"{path}: in use by process {taken.pid}, and a file has one daemon;"
                " stop that one, or set another file for this one ([store] url)"
            )
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"{path}: in use by process {taken.pid}, a command; try again when it has ended")
        await asyncio.sleep(RETRY)
    return taken


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
        return _Holder(*words) if len(words) == 2 else _Holder("unknown", "command")  # the holder is just writing it
    except OSError as error:
        os.close(descriptor)
        raise _refusal(path, error, "locked") from error
    return Lock(descriptor)


def daemon_process(path: Path) -> int | None:
    """The process of the daemon that holds the lock; None without a daemon. Raises `OSError`."""
    try:
        descriptor = os.open(_lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        words = os.pread(descriptor, 100, 0).decode("ascii", "replace").split()
        if len(words) != 2 or words[1] != "daemon" or not Path("/proc", words[0]).exists():
            return None  # return before trying the lock: it could make a daemon fail that starts just now
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(words[0])
    finally:
        os.close(descriptor)
    return None  # the daemon was killed, and another process has its number
