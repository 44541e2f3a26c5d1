"""The `jsonl` sink: appends each record as a line to a file, and rotates it.

A write returns when its lines are on the disk (fsync). The file holds whole lines only: a torn one
that a crash left is cut off when the file is opened, and the lines of a write that failed are taken
back; their records come again. So a record may be there twice after a crash, and never none.

Rotation renames `events.jsonl` to `events-20261121T040506Z-0001.jsonl`; the number at the end goes up
and no file is ever written over. A file moved away by another (logrotate) is followed by a new one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from ingestd import hookimpl
from ingestd.events import Record
from ingestd.options import Options, PositiveSize, Size
from ingestd.sink import Sink

__all__ = ["JsonlSink", "register_sinks"]

_MODE = 0o640  # less the umask: what customers do is not for everyone on the machine
_BLOCK = 1 << 16


@hookimpl
def register_sinks(register: Callable[[str, type[Sink]], None]) -> None:
    register("jsonl", JsonlSink)


class JsonlOptions(Options):
    path: Path
    max_size: PositiveSize = Size.parse("100MiB")
    """A file that would grow beyond this is rotated first; only a single write may be larger."""
    keep: Annotated[int, Meta(ge=1)] | None = None
    """How many rotated files stay, the newest ones; all unless given."""


class JsonlSink(Sink):
    Options = JsonlOptions

    def __init__(self, name: str, options: JsonlOptions) -> None:
        super().__init__(name, options)
        self._file = _File(options.path, max_size=int(options.max_size), keep=options.keep)
        self._thread: ThreadPoolExecutor | None = None
        self._job: asyncio.Future[None] | None = None

    async def open(self) -> None:
        await self._do(self._file.open)

    async def write(self, batch: Sequence[Record]) -> None:
        # JSON has line breaks between tokens only, where a space is as good.
        lines = b"".join([record.body.replace(b"\n", b" ") + b"\n" for record in batch])
        await self._do(self._file.append, lines)

    async def check(self) -> None:
        await self._do(self._file.check)

    async def close(self) -> None:
        await self._do(self._file.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None  # it may be opened again

    async def _do(self, work: Callable[..., None], *arguments: Any) -> None:
        # A thread cannot be cancelled: what a cancelled call left running ends first, and nothing piles up.
        if self._job is not None:
            await asyncio.wait([self._job])
        if self._thread is None:
            # Of its own: a disk that hangs must not take the threads that others share.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"jsonl-{self.name}")
        self._job = asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        await asyncio.shield(self._job)


class _File:
    """The file and its rotation. Every method blocks, raises `OSError`, and may be called again after."""

    def __init__(self, path: Path, *, max_size: int, keep: int | None) -> None:
        self._path = path
        self._max_size = max_size
        self._keep = keep
        self._fd: int | None = None

    def open(self) -> None:
        self._open()

    def _open(self) -> int:
        """The descriptor, of a new file if the one that was open is no longer in its place."""
        if self._fd is not None and self._is_in_place(self._fd):
            return self._fd
        self.close()
        _make_folder(self._path.parent)
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            self._own(fd)
            _cut_torn_line(fd)
            os.fsync(fd)
            _sync_folder(self._path.parent)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return fd

    def append(self, lines: bytes) -> None:
        fd = self._open()
        size = os.fstat(fd).st_size
        if size and size + len(lines) > self._max_size:
            fd, size = self._rotate(), 0
        rest = memoryview(lines)
        try:
            while rest:  # one write takes it all, but for a disk that is full: the next one says so
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            # Should this fail too, the next open cuts off what is torn.
            with suppress(OSError):
                os.ftruncate(fd, size)
            self.close()
            raise

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

    def _own(self, fd: int) -> None:
        """Make sure that no other writes to the file: taking back lines would take theirs."""
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

    def _rotate(self) -> int:
        rotated = self._rotated()
        number = rotated[-1][0] + 1 if rotated else 1
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        # Free by construction: the number is greater than that of any other.
        self._path.rename(self._path.with_name(f"{self._path.stem}-{time}-{number:04d}{self._path.suffix}"))
        if self._keep is not None:
            surplus = max(0, len(rotated) + 1 - self._keep)  # one more was made above
            for _, old in rotated[:surplus]:
                old.unlink(missing_ok=True)
        return self._open()

    def _rotated(self) -> list[tuple[int, Path]]:
        """The rotated files with their numbers, oldest first."""
        name = re.compile(
            rf"{re.escape(self._path.stem)}-\d{{8}}T\d{{6}}Z-(\d{{4,}}){re.escape(self._path.suffix)}", re.ASCII
        )
        found = []
        for path in self._path.parent.iterdir():
            match = name.fullmatch(path.name)
            if match is not None:
                found.append((int(match[1]), path))
        return sorted(found)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cut_torn_line(fd: int) -> None:
    """Shorten the file to behind its last line end."""
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
