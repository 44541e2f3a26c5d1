"""Rotated files: their names, their number, and the replacement of plain files by compressed ones.

`events.jsonl` becomes `events-20261121T040506Z-0001.jsonl`, with the time of the renaming, and `….jsonl.gz` when it is
compressed. The number grows by one, whether or not the last file is compressed. No other file is ever overwritten.
"""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ingestd.support.durable_files import sync

__all__ = ["RotatedFiles"]


class _Rotated(NamedTuple):
    number: int
    plain: Path
    """The path without compression. Both the plain and the compressed file may exist."""


class RotatedFiles:
    """The rotated files of one path. Every method blocks and raises `OSError`. Two threads may use it at a time."""

    def __init__(self, path: Path, *, keep: int | None) -> None:
        self._path = path
        self._keep = keep
        stem, suffix = re.escape(path.stem), re.escape(path.suffix)
        self._name = re.compile(rf"({stem}-\d{{8}}T\d{{6}}Z-(\d{{4,}}){suffix})(?:\.gz)?", re.ASCII)
        self._part = re.compile(rf"\.{stem}-\d{{8}}T\d{{6}}Z-\d{{4,}}{suffix}\.gz\.\w+\.part", re.ASCII)
        self._lock = threading.Lock()

    def add(self) -> None:
        """Rename the file at the path, and remove the oldest files beyond `keep`."""
        with self._lock:
            rotated = self._all()
            number = rotated[-1].number + 1 if rotated else 1
            time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            # No file has this name, because its number is greater than all others.
            plain = self._path.with_name(f"{self._path.stem}-{time}-{number:04d}{self._path.suffix}")
            self._path.rename(plain)
            if self._keep is not None:
                for old in [*rotated, _Rotated(number, plain)][: -self._keep]:
                    old.plain.unlink(missing_ok=True)
                    _compressed(old.plain).unlink(missing_ok=True)

    def plain(self) -> list[Path]:
        """The files that are not compressed yet, oldest first."""
        with self._lock:
            return [each.plain for each in self._all() if each.plain.is_file()]

    def replace(self, plain: Path, part: Path) -> None:
        """Replace the plain file by `part`, the complete compressed file on the disk."""
        with self._lock:
            if not plain.exists():  # rotation removed it meanwhile because of `keep`
                part.unlink()
                return
            # A crash may leave both files. Their content is the same, so the compressed one may be overwritten.
            part.rename(_compressed(plain))
            sync(self._path.parent)
            plain.unlink(missing_ok=True)

    def remove_parts(self) -> None:
        """Remove incomplete compressed files that a crash left."""
        for path in self._path.parent.iterdir():
            if self._part.fullmatch(path.name) is not None:
                path.unlink(missing_ok=True)

    def _all(self) -> list[_Rotated]:
        """All rotated files, oldest first. A file that is both plain and compressed is listed once."""
        matches = [self._name.fullmatch(path.name) for path in self._path.parent.iterdir()]
        return sorted({_Rotated(int(each[2]), self._path.with_name(each[1])) for each in matches if each is not None})


def _compressed(plain: Path) -> Path:
    return plain.with_name(f"{plain.name}.gz")
