"""The files that the arguments of an import name. A folder stands for the files below it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ingestd.api.errors import CommandError

__all__ = ["Found", "find_files"]

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
