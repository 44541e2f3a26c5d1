"""The lines that were not imported: each with its file, its number, the places of its faults and the reasons."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ingestd.api.errors import CommandError, Refused, UnknownKey

from .lines import InputFile, Line
from .tally import BoundedCounter

__all__ = ["FaultReport"]

_INDEX = re.compile(r"/[0-9]+(?=/|$)")
_MODE = 0o600
_SHOWN = 10  # faults on standard error if there is no file for them


class FaultReport:
    """Counts faults, and writes each to `path` as one JSON object a line, or shows the first ones with `say`."""

    def __init__(
        self, path: Path | None, say: Callable[[str], None], most: int, inputs: Sequence[InputFile] = ()
    ) -> None:
        """`most` is the number of faults that end the import.

        Raises `CommandError` if the file cannot be written, or is one of `inputs`.
        """
        self.count = 0
        self.places = BoundedCounter()
        """The number of faulty lines by the place of their first fault. It counts all elements of an array together."""
        self._say = say
        self._most = most
        self._file: IO[str] | None = None
        if path is not None:
            try:
                self._file = _create(path, inputs)
            except OSError as error:
                raise CommandError(f"{path}: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def is_full(self) -> bool:
        """Whether there are so many faults that the import ends."""
        return self.count >= self._most

    def add(self, line: Line, refused: Refused) -> None:
        self.count += 1
        self.places.add(_place(refused))
        if self._file is not None:
            told = {
                "file": line.file,
                "line": line.number,
                "code": refused.code,
                "message": refused.detail,
                "errors": [{"pointer": error.pointer, "message": error.message} for error in refused.errors],
            }
            self._file.write(f"{json.dumps(told)}\n")
        elif self.count <= _SHOWN:
            self._say(f"{line.file}:{line.number}: {_told(refused)}")
        elif self.count == _SHOWN + 1:
            self._say("more lines are not imported; --errors FILE lists all of them")


def _create(path: Path, inputs: Sequence[InputFile]) -> IO[str]:
    """Open a file that only its owner can read, since faults quote values of callers."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _MODE)
    file = open(fd, "w", encoding="utf-8")  # noqa: SIM115 - the caller closes it
    status = os.fstat(fd)
    if any(os.path.samestat(status, each.status) for each in inputs):
        raise CommandError(f"{path}: this file is to be imported, so it cannot have the faults")
    if stat.S_ISREG(status.st_mode):
        os.fchmod(fd, _MODE)
        os.ftruncate(fd, 0)
    return file


def _place(refused: Refused) -> str:
    if not refused.errors:
        return "the line"
    first = refused.errors[0]
    if isinstance(refused, UnknownKey):  # its message has the name, which people look for
        return f"{first.pointer}: {first.message}"
    return _INDEX.sub("/*", first.pointer) or "the line"


def _told(refused: Refused) -> str:
    if not refused.errors:
        return refused.detail
    first = refused.errors[0]
    others = f" (and {len(refused.errors) - 1} more faults)" if len(refused.errors) > 1 else ""
    return f"{first.pointer or 'the line'}: {first.message}{others}"
