"""`ingestd.json` in the runtime directory: which process the daemon is, and what came of its reloads.

The directory is `RUNTIME_DIRECTORY`, which systemd sets for `RuntimeDirectory=`; without it there is no file. Beside it
the daemon holds a lock, which tells whether it still runs, and who it is: a number that a killed daemon has left may be
another process's by now, and below systemd's sandbox none can look at another in /proc.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["RunFile", "RunState", "runtime_directory"]

log = logging.getLogger("ingestd.reload")

_FLOCK = "hhqqi0q"  # struct flock of fcntl(2): type, whence, start, length, process


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """`begun` and `ended` count reloads.

    `refused` is why the last one that ended was refused, and `code` the exit code that stands for that.
    """

    pid: int
    generation: int = 1
    begun: int = 0
    ended: int = 0
    refused: str | None = None
    code: int = 0


class RunFile:
    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._lock = -1

    # The daemon's side. Nothing that goes wrong here keeps it from serving.

    def hold(self) -> None:
        """Be the daemon of this directory, if there is one."""
        if self._directory is None:
            return
        try:
            self._lock = os.open(self._directory / "ingestd.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.warning("RUNTIME_DIRECTORY is not to be had, so ingestd reload does not know this daemon: %s", error)
            self._let_go()

    def write(self, state: RunState) -> None:
        """Whole, or not at all."""
        if self._directory is None or self._lock < 0:
            return
        beside = self._directory / "ingestd.json.new"
        try:
            beside.write_bytes(msgspec.json.encode(state) + b"\n")
            beside.replace(self._path(self._directory))
        except OSError as error:
            log.warning("ingestd reload does not know what comes of it: %s", error)

    def release(self) -> None:
        """The daemon ends."""
        if self._directory is not None and self._lock >= 0:
            try:
                self._path(self._directory).unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s", error)
            self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # Who asks for a reload

    def read(self) -> RunState | None:
        """What the daemon of this directory says; None if there is none. Raises `OSError`."""
        if self._directory is None:
            return None
        holder = _holder(self._directory / "ingestd.lock")
        try:
            state = msgspec.json.decode(self._path(self._directory).read_bytes(), type=RunState)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return state if state.pid == holder else None

    @staticmethod
    def _path(directory: Path) -> Path:
        return directory / "ingestd.json"


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The first, where the unit has several."""
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(given) if given else None


def _holder(path: Path) -> int | None:
    """The process that holds the lock."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, holder = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    finally:
        os.close(lock)
    return None if kind == fcntl.F_UNLCK else int(holder)
