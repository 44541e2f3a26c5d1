"""The processes of this machine, as Linux tells of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["children", "open_files", "wait_for_end"]


def children(pid: int) -> list[int]:
    """The processes that any thread of this process has started and that have not been waited for."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def open_files(pid: int) -> dict[int, str]:
    """What each file descriptor of a process is open on."""
    return {int(each.name): os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}


def wait_for_end(pid: int, seconds: float = 20.0) -> bool:
    """Whether the process, which may be nobody's child any more, ends in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # nobody waits for it
            return True
        time.sleep(0.02)
    return False
