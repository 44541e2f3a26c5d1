"""Reads files of JSON lines, compressed with gzip or not. Memory stays small, however long a file or a line is."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, cast

from ingestd.api.errors import BadRequest, CommandError, Refused, TooLarge

__all__ = ["STDIN", "InputFiles", "Line"]

STDIN = "-"
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16


class Line(NamedTuple):
    """A line that is not blank. `fault` stands in place of content that cannot be read."""

    file: str
    number: int
    content: bytes
    fault: Refused | None = None


class InputFiles:
    """The files of an import, in their order. `-` is standard input."""

    def __init__(self, names: Sequence[str], longest: int) -> None:
        """`longest` bounds the bytes of a line. Raises `CommandError` for a file that cannot be opened."""
        self._names = names
        self._longest = longest
        self._done = 0
        self._file: IO[bytes] | None = None
        """The file in hand, before it is decompressed."""
        self.size: int | None = 0
        """The bytes of all files. None if one of them is a pipe."""
        for name in names:
            if name == STDIN:
                self.size = None
                continue
            length = _length(name)
            self.size = None if self.size is None or length is None else self.size + length

    @property
    def position(self) -> int:
        """The bytes that were read so far, before they are decompressed."""
        return self._done + (self._file.tell() if self._file is not None else 0)

    def __iter__(self) -> Iterator[Line]:
        for name in self._names:
            with ExitStack() as stack:
                raw: BinaryIO
                if name == STDIN:
                    raw = cast("BinaryIO", sys.stdin.buffer)
                else:
                    raw = stack.enter_context(Path(name).open("rb"))
                    self._file = raw
                # `peek` may return fewer bytes than a pipe is about to bring, but at least one.
                head = cast("IO[bytes]", raw).peek(2)[:2]  # type: ignore[attr-defined]  # both are buffered readers
                content = stack.enter_context(gzip.open(raw)) if head[:1] == _GZIP[:1] else raw
                yield from self._read(name, cast("BinaryIO", content))
                if self._file is not None:
                    self._done += self._file.tell()
                    self._file = None

    def _read(self, name: str, content: BinaryIO) -> Iterator[Line]:
        number = 0
        try:
            while line := content.readline(self._longest + 2):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BOM)
                stripped, is_cut = line.strip(), len(line) > self._longest + 1 and not line.endswith(b"\n")
                if is_cut or len(stripped) > self._longest:
                    while not line.endswith(b"\n") and (line := content.readline(_CHUNK)):
                        pass
                    yield Line(name, number, b"", TooLarge(f"The line is longer than {self._longest} bytes."))
                elif stripped:
                    yield Line(name, number, stripped)
        except (OSError, EOFError, zlib.error) as error:
            fault = BadRequest(f"the rest of the file cannot be read: {error}", code="invalid_json")
            yield Line(name, number + 1, b"", fault)


def _length(name: str) -> int | None:
    """The bytes of a file, or None for a pipe. Raises `CommandError` for a file that cannot be read."""
    try:
        status = os.stat(name)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from None
    if stat.S_ISDIR(status.st_mode):
        raise CommandError(f"{name}: is a folder")
    if not os.access(name, os.R_OK):
        raise CommandError(f"{name}: cannot be read: permission denied")
    return status.st_size if stat.S_ISREG(status.st_mode) else None
