"""The files of an import, and their JSON lines, compressed with gzip or not. A folder stands for the files below it.

Memory stays small, however long a file or a line is.
"""

from __future__ import annotations

import errno
import gzip
import os
import resource
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from ingestd.api.errors import BadRequest, CommandError, Refused, TooLarge
from ingestd.daemon.process import raise_file_limit

__all__ = ["ARRAY", "STDIN", "Found", "InputFile", "InputFiles", "Line", "find_files"]

STDIN = "-"
_GZIP = b"\x1f"  # the first byte of gzip, with which no JSON begins
_BOM = b"\xef\xbb\xbf"
_OTHERS: Mapping[bytes, str] = {
    b"\xff\xfe": "in UTF-16", b"\xfe\xff": "in UTF-16", b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2", b"\xfd7zXZ": "compressed with xz", b"PK\x03\x04": "a zip archive",
    b"PAR1": "in the format Parquet",
}  # fmt: skip
"""The first bytes of files that people confuse with JSON lines, and what they are."""
ARRAY = "an array: give each of its objects a line, as jq -c '.[]' does"
_CHUNK = 1 << 16
_ENDLESS = 4 << 30  # bytes of a line after which the rest of the file is not read
_MOST_BLANK = 1_000_000  # blank lines one after the other, after which the rest of the file is not read
_OTHER_FILES = 64  # open files beside those of the import


class Line(NamedTuple):
    """A line that is not blank. `fault` stands in place of content that cannot be read."""

    file: str
    number: int
    content: bytes
    fault: Refused | None = None


class _Unreadable(Exception):
    """The rest of a file cannot be read."""


class InputFile:
    """An open file. A pipe can be read once, any other file again and again."""

    def __init__(self, name: str, longest: int) -> None:
        """`longest` bounds the bytes of a line. Raises `CommandError` for a file that cannot be opened."""
        self.name = name
        self._longest = longest
        try:
            self._fd = os.dup(sys.stdin.fileno()) if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            self.status = os.fstat(self._fd)
            if stat.S_ISDIR(self.status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror}") from None
        self.is_pipe = not stat.S_ISREG(self.status.st_mode)
        """Whether the file can be read only once."""
        self._start = 0 if self.is_pipe else os.lseek(self._fd, 0, os.SEEK_CUR)
        self._begun: Iterator[Line] | None = None
        """The lines of a pipe, after a look at the first one."""

    def close(self) -> None:
        os.close(self._fd)

    def rewind(self) -> None:
        if not self.is_pipe:
            os.lseek(self._fd, self._start, os.SEEK_SET)

    @property
    def position(self) -> int:
        """The bytes that were read, before they are decompressed. Not for a pipe."""
        return os.lseek(self._fd, 0, os.SEEK_CUR) - self._start

    def spool(self) -> None:
        """Copy a pipe to a temporary file, which can be read again and again."""
        if self.is_pipe:
            with TemporaryFile() as copy, open(self._fd, "rb") as pipe:
                shutil.copyfileobj(pipe, copy)
                copy.flush()
                self._fd = os.dup(copy.fileno())
            self.status, self.is_pipe = os.fstat(self._fd), False

    def first(self) -> Line | None:
        """The first line, which stays to be read; None if there is none."""
        lines = self.lines()
        line = next(lines, None)
        self._begun = lines if line is None else chain([line], lines)
        return line

    def lines(self) -> Iterator[Line]:
        """The lines that are not blank."""
        if not self.is_pipe:
            self.rewind()
            return self._lines()
        begun, self._begun = self._begun, None
        return self._lines() if begun is None else begun

    def _lines(self) -> Iterator[Line]:
        name, longest = self.name, self._longest
        number = blank = 0
        with open(self._fd, "rb", closefd=False) as raw:  # the file may be read again
            try:
                content = _unpacked(raw)
                while line := content.readline(longest + 2):
                    number += 1
                    if number == 1:
                        line = line.removeprefix(_BOM)
                    stripped, is_cut = line.strip(), len(line) > longest + 1 and not line.endswith(b"\n")
                    if is_cut or len(stripped) > longest:
                        why = f" and begins {ARRAY}" if line.startswith(b"[") else ""
                        yield Line(name, number, b"", TooLarge(f"The line is longer than {longest} bytes{why}."))
                        _skip(line, content)
                    elif stripped:
                        yield Line(name, number, stripped)
                        blank = 0
                    elif (blank := blank + 1) > _MOST_BLANK:
                        raise _Unreadable(f"more than {_MOST_BLANK} lines are blank")
                if self._has_changed():
                    raise _Unreadable("it has changed while it was read; run the command again")
            except (OSError, EOFError, zlib.error, _Unreadable) as error:
                fault = BadRequest(f"the rest of the file cannot be read: {error}", code="invalid_json")
                yield Line(name, number + 1, b"", fault)

    def _has_changed(self) -> bool:
        now = os.fstat(self._fd)
        return not self.is_pipe and (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns)


def _unpacked(raw: BufferedReader) -> BufferedReader | gzip.GzipFile:
    """The content of a file. Raises `_Unreadable` for a file that can be no JSON lines."""
    # `peek` may return fewer bytes than a pipe is about to bring, but at least one.
    head = raw.peek(8)
    if other := next((what for magic, what in _OTHERS.items() if head.startswith(magic)), None):
        raise _Unreadable(f"it is {other}")
    return gzip.open(raw) if head[:1] == _GZIP else raw


def _skip(line: bytes, content: BufferedReader | gzip.GzipFile) -> None:
    """Skip the rest of a long line."""
    length = 0
    while not line.endswith(b"\n") and (line := content.readline(_CHUNK)):
        length += len(line)
        if length > _ENDLESS:
            raise _Unreadable(f"the line before does not end after {length} bytes")


class InputFiles:
    """The files of an import, in their order. `-` is standard input.

    All are opened at once: a command of root reads them before it becomes the owner of the store.
    """

    def __init__(self, names: Sequence[str], longest: int) -> None:
        """`longest` bounds the bytes of a line. Raises `CommandError` for a file that cannot be opened."""
        if names.count(STDIN) > 1:
            raise CommandError("- is standard input, and can be given once only")
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise_file_limit(min(len(names) + _OTHER_FILES, most))
        self.files = [InputFile(name, longest) for name in names]

    def close(self) -> None:
        for file in self.files:
            file.close()

    @property
    def size(self) -> int | None:
        """The bytes of all files. None if one of them is a pipe."""
        return None if any(file.is_pipe for file in self.files) else sum(file.status.st_size for file in self.files)

    @property
    def position(self) -> int:
        """The bytes that were read so far, before they are decompressed. Not for a pipe."""
        return sum(file.position for file in self.files)

    def spool(self) -> None:
        for file in self.files:
            file.spool()

    def rewind(self) -> None:
        """Let `position` count from the start."""
        for file in self.files:
            file.rewind()

    def __iter__(self) -> Iterator[Line]:
        for file in self.files:
            yield from file.lines()


_ENDINGS = (".json", ".jsonl", ".ndjson", ".log", ".gz")


class Found(NamedTuple):
    """The names of files to read, and of files in folders whose names end otherwise."""

    files: list[str]
    left_out: list[str]


def find_files(names: Sequence[str]) -> Found:
    """Raises `CommandError` for a folder that cannot be read, or has no file to read."""
    found = Found([], [])
    for name in names:
        if not os.path.isdir(name):
            found.files.append(name)
            continue
        below = sorted(_below(name))
        chosen = [path for path in below if path.endswith(_ENDINGS)]
        if not chosen:
            raise CommandError(f"{name}: no file below this folder ends in {', '.join(_ENDINGS)}")
        found.files.extend(chosen)
        found.left_out.extend(path for path in below if not path.endswith(_ENDINGS))
    return found


def _below(folder: str) -> Iterator[str]:
    """The files of the folder and of folders in it, without hidden ones. Links to folders are not followed."""
    for path, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for each in files:
            if not each.startswith(".") and (file := Path(path, each)).is_file():
                yield str(file)


def _refuse(error: OSError) -> None:
    raise CommandError(f"{error.filename}: {error.strerror}") from None
