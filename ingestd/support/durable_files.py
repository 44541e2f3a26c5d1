"""Files and folders that outlive a power failure."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folders", "sync"]


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder, as after creating or renaming a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, each durably."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
