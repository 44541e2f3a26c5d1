"""The run file of a daemon: `ingestd.json`, with its process, its configuration and the outcome of its reloads.

The file is in the run directory of the daemon (`run_directory`). The daemon holds a lock on `ingestd.lock` beside it,
and the kernel names the process with the lock. So the file of a killed daemon never counts as a running daemon, even
if another process has the same number. The kernel also translates process numbers between containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from pathlib import Path

import msgspec

__all__ = ["RunFile", "RunState"]

_FLOCK = "hhqqi0q"  # struct flock of fcntl(2): type, whence, start, length, process
_MAX_SIZE = 1 << 16
_STATE, _LOCK = "ingestd.json", "ingestd.lock"


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """`begun` and `ended` count reloads.

    `refused` is the reason if the last reload that ended was refused, and `code` the exit code for it.
    """

    pid: int
    config: str = ""
    """The absolute path of the configuration file."""
    generation: int = 1
    begun: int = 0
    ended: int = 0
    refused: str | None = None
    code: int = 0


class RunFile:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = -1
        self._kept = -1

    # The daemon's side

    def hold(self, state: RunState) -> None:
        """Lock the directory for this daemon and write its state. Raises `OSError`, also if another daemon has it."""
        lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock = lock
            self.write(state)  # at once: a command must not read the state of a killed daemon as ours
            self._kept = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(BlockingIOError):  # systemd-tmpfiles leaves a folder in /tmp alone if it is locked
                fcntl.flock(self._kept, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            self._lock = lock
            self._close()
            if isinstance(error, BlockingIOError):
                raise BlockingIOError(f"{self.directory} is another daemon's") from None
            raise

    @property
    def held(self) -> bool:
        return self._lock >= 0

    def write(self, state: RunState) -> None:
        """Replace the state atomically. Raises `OSError`, and then the old state remains."""
        if self.held:
            beside = self.directory / f"{_STATE}.new"
            beside.write_bytes(msgspec.json.encode(state) + b"\n")
            beside.replace(self.directory / _STATE)

    def release(self) -> None:
        """Remove the state and drop the lock when the daemon ends. Raises `OSError`."""
        if self.held:
            try:
                (self.directory / _STATE).unlink(missing_ok=True)
            finally:
                self._close()

    def _close(self) -> None:
        for descriptor in (self._lock, self._kept):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._kept = -1

    def remove(self) -> None:
        """Remove both files and the directory. Raises `OSError`."""
        for name in (_STATE, f"{_STATE}.new", _LOCK):
            (self.directory / name).unlink(missing_ok=True)
        self.directory.rmdir()

    # The commands' side

    def holder(self) -> int | None:
        """The process of the daemon, 0 if it is in a container that we cannot see into, None without a daemon.

        The daemon of this directory must not call it: closing the file would drop its lock. Raises `OSError`.
        """
        lock = _open(self.directory / _LOCK)
        if lock is None:
            return None
        try:
            # A read lock conflicts with the daemon's lock only. Others cannot open the file for writing.
            asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, holder = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
        finally:
            os.close(lock)
        return None if kind == fcntl.F_UNLCK else int(holder)

    def read(self) -> RunState | None:
        """The state of the running daemon with its process from `holder`, None without one. Raises `OSError`."""
        holder = self.holder()
        file = None if holder is None else _open(self.directory / _STATE)
        if holder is None or file is None:
            return None
        try:
            state = msgspec.json.decode(os.read(file, _MAX_SIZE), type=RunState)
        except msgspec.DecodeError:
            return None
        finally:
            os.close(file)
        return msgspec.structs.replace(state, pid=holder)


def _open(path: Path) -> int | None:
    """Open a regular file for reading, None if there is none. Another user may have put anything at this path."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None
