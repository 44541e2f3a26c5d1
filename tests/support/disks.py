"""Disks that fill up soon, and what the system keeps of one in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["held_in_memory", "small_disk"]


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[None]:
    """A disk of its own for the folder; skips where the test may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("no disk can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def held_in_memory(path: Path) -> list[bool]:
    """Which pages of a file the system has in memory; skips where all files are there only."""
    kind = subprocess.check_output(["stat", "--file-system", "--format=%T", str(path)], text=True).strip()
    if kind in {"tmpfs", "ramfs"}:
        pytest.skip(f"{path} is on {kind}")
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        held = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(held), ctypes.c_size_t(size), pages)
        del held  # or the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return [bool(page & 1) for page in pages]
