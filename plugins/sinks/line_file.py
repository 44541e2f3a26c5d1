"""A file of whole, durable lines, whatever happens to the disk, the file or the process."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ingestd.api import times
from ingestd.support.durable_files import make_folders, sync

from .rotated_files import RotatedFiles

__all__ = ["LineFile"]

_MODE = 0o640  # minus the umask: other users of the machine must not read events of customers
_BLOCK = 1 << 16
_FOLLOWED = 8 << 20  # bytes at the end that may stay in the system's memory, for programs that follow the file
_STEP = 4 << 20  # bytes to release at a time, because each call may make every core drain its page lists
_TIMES = ("receivedAt", "decidedAt", "erasedAt")
"""Members of records that hold the time at which the record was made."""


class LineFile:
    """The file and its rotation. Every method blocks, raises `OSError`, and may be called again afterwards.

    `rotate_every` and the result of `now` are in milliseconds. Unless `read_again` is set, bytes far before the end are
    released from the system's memory. Otherwise bytes that are never read again would displace data in use.
    """

    def __init__(
        self,
        path: Path,
        rotated: RotatedFiles,
        *,
        max_size: int,
        rotate_every: int | None = None,
        read_again: bool = False,
        now: Callable[[], int] = times.now,
    ) -> None:
        self._path = path
        self._rotated = rotated
        self._max_size = max_size
        self._rotate_every = rotate_every
        self._read_again = read_again
        self._now = now
        self._fd: int | None = None
        self._begun = 0
        """The time at which its first line was written, or that line's record received."""

    def open(self) -> int:
        """The descriptor. It is a new file if the open one is no longer at the path."""
        if self._fd is not None and self._is_in_place(self._fd):
            return self._fd
        self.close()
        make_folders(self._path.parent)
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            self._own(fd)
            _cut_torn_line(fd)
            os.fsync(fd)
            sync(self._path.parent)
            if self._rotate_every is not None:
                self._begun = _begun(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def append(self, lines: bytes) -> bool:
        """Write the lines durably. Returns whether the file was rotated first."""
        fd = self.open()
        size = os.fstat(fd).st_size
        rotate = size > 0 and (size + len(lines) > self._max_size or self._is_old())
        if rotate:
            self._let_go(fd, 0, size)
            self._rotated.add()
            fd, size = self.open(), 0
        if not size:
            self._begun = self._now()
        rest = memoryview(lines)
        try:
            while rest:  # one write takes all lines unless the disk is full; then the next write raises
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            # If this fails too, the next open cuts off the torn line.
            with suppress(OSError):
                os.ftruncate(fd, size)
            self.close()
            raise
        first, end = (max(0, each - _FOLLOWED) // _STEP * _STEP for each in (size, size + len(lines)))
        if end > first:
            self._let_go(fd, first, end)
        return rotate

    def check(self) -> None:
        folder = self._path.parent
        if self._path.exists():
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                self._refuse_special(fd)
            finally:
                os.close(fd)
        else:
            while not folder.exists():
                folder = folder.parent
            if not folder.is_dir():
                raise NotADirectoryError(f"{folder} is not a folder")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(f"the folder {folder} cannot be written to")
        if os.statvfs(folder).f_bavail == 0:
            raise OSError(f"the disk of {folder} is full")

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _let_go(self, fd: int, start: int, end: int) -> None:
        if not self._read_again:
            with suppress(OSError):  # only advice: the lines are on the disk even if the file system ignores it
                os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def _own(self, fd: int) -> None:
        """Lock the file. If others wrote to it too, removing the lines of a failed write would remove theirs."""
        self._refuse_special(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"{self._path} is being written by another sink or process") from error

    def _refuse_special(self, fd: int) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{self._path} is not a regular file")

    def _is_in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _is_old(self) -> bool:
        return self._rotate_every is not None and self._now() - self._begun >= self._rotate_every


def _cut_torn_line(fd: int) -> None:
    """Cut off everything after the last line end."""
    size = end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(fd, end)


def _begun(fd: int) -> int:
    """The time in the file's first record, or the time of the last write if the record has none."""
    written = os.fstat(fd).st_mtime_ns // 1_000_000
    with open(fd, "rb", closefd=False) as file:
        line = file.readline()
    try:
        record = json.loads(line)
    except ValueError:
        return written
    texts = [record.get(name) for name in _TIMES] if isinstance(record, dict) else []
    known = [at for text in texts if isinstance(text, str) and (at := times.parse_time(text)) is not None]
    return min([written, *known])
