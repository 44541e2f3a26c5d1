"""The processes of this machine, read from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .forked import fork_servers

__all__ = ["children", "open_files", "own_children", "wait_for_end"]


def children(pid: int) -> list[int]:
    """The child processes of all threads of this process, including ended ones that were not waited for."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def own_children() -> list[int]:
    """The children of this process, without the fork servers for later starts of `ingestd`."""
    return [pid for pid in children(os.getpid()) if pid not in fork_servers()]


def open_files(pid: int) -> dict[int, str]:
    """The target of each file descriptor of a process."""
    return {int(each.name): os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}


def wait_for_end(pid: int, seconds: float = 20.0) -> bool:
    """Whether the process ends in time. It may have no parent any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # ended, but its parent does not wait for it
            return True
        time.sleep(0.02)
    return False
