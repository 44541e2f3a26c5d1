"""Signals to the servers that tests start."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from .clients import wait_until

__all__ = ["send_signal"]


def send_signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends a signal. After SIGSTOP it waits until the process has stopped, because another core stops it later."""
    process.send_signal(number)
    if number is signal.SIGSTOP:
        wait_until(lambda: all(_state(task) == "T" for task in Path(f"/proc/{process.pid}/task").iterdir()))


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(") ")[2][0]
