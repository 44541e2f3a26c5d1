"""Small disks, and the pages of a file in the system's memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["full", "held_in_memory", "small_disk"]


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[None]:
    """A separate small disk for the folder. The test is skipped if it cannot mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("no disk can be mounted here")
    try:
        yield
    finally:
        if subprocess.run(["umount", str(folder)], check=False).returncode:
            # A disk that stays would break the next run of tests.
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
            pytest.fail(f"a file on {folder} is still open")


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """The disk of this folder is full."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        ballast.unlink()


def held_in_memory(path: Path) -> list[bool]:
    """Which pages of a file are in memory. The test is skipped on a file system that exists only in memory."""
    kind = subprocess.check_output(["stat", "--file-system", "--format=%T", str(path)], text=True).strip()
    if kind in {"tmpfs", "ramfs"}:
        pytest.skip(f"{path} is on {kind}")
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        held = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(held), ctypes.c_size_t(size), pages)
        del held  # otherwise the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return [bool(page & 1) for page in pages]
