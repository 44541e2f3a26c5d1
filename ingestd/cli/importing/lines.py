"""Reads files of JSON lines, compressed with gzip or not. Memory stays small, however long a file or a line is."""

from __future__ import annotations

import gzip
import os
import resource
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, cast

from ingestd.api.errors import BadRequest, CommandError, Refused, TooLarge
from ingestd.daemon import file_limits

__all__ = ["STDIN", "InputFiles", "Line"]

STDIN = "-"
_GZIP = b"\x1f"  # the first byte of gzip, with which no JSON begins
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16
_OTHER_FILES = 64  # open files beside those of the import


class Line(NamedTuple):
    """A line that is not blank. `fault` stands in place of content that cannot be read."""

    file: str
    number: int
    content: bytes
    fault: Refused | None = None


class InputFiles:
    """The files of an import, in their order. `-` is standard input.

    All are opened at once: a command of root reads them before it becomes the owner of the store.
    """

    def __init__(self, names: Sequence[str], longest: int) -> None:
        """`longest` bounds the bytes of a line. Raises `CommandError` for a file that cannot be opened."""
        self._longest = longest
        self._done = 0
        self._in_hand: BufferedReader | None = None
        """The file that is being read, before it is decompressed."""
        self.size: int | None = 0
        """The bytes of all files. None if one of them is a pipe."""
        if names.count(STDIN) > 1:
            raise CommandError("- is standard input, and can be given once only")
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        file_limits.raise_limit(min(len(names) + _OTHER_FILES, most))
        self._files: list[tuple[str, BufferedReader]] = []
        for name in names:
            file = _open(name)
            self._files.append((name, file))
            status = os.fstat(file.fileno())
            self.size = None if self.size is None or not stat.S_ISREG(status.st_mode) else self.size + status.st_size

    @property
    def position(self) -> int:
        """The bytes that were read so far, before they are decompressed."""
        return self._done + (self._in_hand.tell() if self._in_hand is not None and self.size is not None else 0)

    def __iter__(self) -> Iterator[Line]:
        while self._files:
            name, raw = self._files.pop(0)
            self._in_hand = raw
            with raw:
                # `peek` may return fewer bytes than a pipe is about to bring, but at least one.
                if raw.peek(1)[:1] == _GZIP:
                    with gzip.open(raw) as content:
                        yield from self._read(name, content)
                else:
                    yield from self._read(name, raw)
                self._done, self._in_hand = self.position, None

    def _read(self, name: str, content: BufferedReader | gzip.GzipFile) -> Iterator[Line]:
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


def _open(name: str) -> BufferedReader:
    """Raises `CommandError`."""
    try:
        return cast("BufferedReader", sys.stdin.buffer) if name == STDIN else Path(name).open("rb")
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from None
