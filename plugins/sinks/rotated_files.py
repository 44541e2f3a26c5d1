"""Files that were rotated: their names, which of them stay, and how a compressed one takes the place of a plain one.

`events.jsonl` becomes `events-20261121T040506Z-0001.jsonl`, with the time of the renaming, and compressed
`….jsonl.gz`. The number goes up by one whichever kind was the last, and no other file is ever written over.
"""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

__all__ = ["RotatedFiles", "sync_folder"]


class _Rotated(NamedTuple):
    number: int
    plain: Path
    """Its name while it is not compressed; it may be there under both."""


class RotatedFiles:
    """Those of one path. Every method blocks and raises `OSError`; two threads may use it at a time."""

    def __init__(self, path: Path, *, keep: int | None) -> None:
        self._path = path
        self._keep = keep
        stem, suffix = re.escape(path.stem), re.escape(path.suffix)
        self._name = re.compile(rf"({stem}-\d{{8}}T\d{{6}}Z-(\d{{4,}}){suffix})(?:\.gz)?", re.ASCII)
        self._part = re.compile(rf"\.{stem}-\d{{8}}T\d{{6}}Z-\d{{4,}}{suffix}\.gz\.\w+\.part", re.ASCII)
        self._lock = threading.Lock()

    def add(self) -> None:
        """Rename the file at the path, and remove the oldest beyond those that are kept."""
        with self._lock:
            rotated = self._all()
            number = rotated[-1].number + 1 if rotated else 1
            time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            # Free by construction: the number is greater than that of any other.
            plain = self._path.with_name(f"{self._path.stem}-{time}-{number:04d}{self._path.suffix}")
            self._path.rename(plain)
            if self._keep is not None:
                for old in [*rotated, _Rotated(number, plain)][: -self._keep]:
                    old.plain.unlink(missing_ok=True)
                    _compressed(old.plain).unlink(missing_ok=True)

    def plain(self) -> list[Path]:
        """Those not compressed yet, oldest first."""
        with self._lock:
            return [each.plain for each in self._all() if each.plain.is_file()]

    def replace(self, plain: Path, part: Path) -> None:
        """Put the whole compressed file, which is on the disk as `part`, into the place of the plain one."""
        with self._lock:
            if not plain.exists():  # there were too many, so it was removed meanwhile
                part.unlink()
                return
            # A crash may leave both. They are the same, so the compressed one may be written over.
            part.rename(_compressed(plain))
            sync_folder(self._path.parent)
            plain.unlink(missing_ok=True)

    def remove_parts(self) -> None:
        """Remove what a crash left of files that were being compressed."""
        for path in self._path.parent.iterdir():
            if self._part.fullmatch(path.name) is not None:
                path.unlink(missing_ok=True)

    def _all(self) -> list[_Rotated]:
        """Oldest first; one that is there both plain and compressed is there once."""
        matches = [self._name.fullmatch(path.name) for path in self._path.parent.iterdir()]
        return sorted({_Rotated(int(each[2]), self._path.with_name(each[1])) for each in matches if each is not None})


def _compressed(plain: Path) -> Path:
    return plain.with_name(f"{plain.name}.gz")


def sync_folder(folder: Path) -> None:
    """Make durable which files the folder has."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
