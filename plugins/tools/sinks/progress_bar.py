"""The progress of a long command, on standard error: a bar on a terminal, elsewhere a line for every tenth."""

from __future__ import annotations

import sys

from ingestd.support.terminal import printable

__all__ = ["ProgressBar"]

_WIDTH = 30
_STEPS = 10  # lines without a terminal


class ProgressBar:
    """Shows how many of `count` things are done. `what` is their name in the plural. `quiet` shows nothing."""

    def __init__(self, count: int, what: str, *, quiet: bool) -> None:
        self._count = max(1, count)
        self._what = what
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._shown = 0
        self._is_open = False

    def show(self, done: int) -> None:
        done = min(max(done, 0), self._count)
        step = done * (_WIDTH if self._is_terminal else _STEPS) // self._count
        if self._quiet or (step <= self._shown and not self._is_terminal):
            return
        self._shown = step
        share = f"{100 * done // self._count:3d} %"
        if self._is_terminal:
            bar = f"{'█' * step}{'░' * (_WIDTH - step)}"
            self._write(f"\r{bar} {share} of {self._count} {self._what}")
            self._is_open = True
        else:
            self._write(f"{share} of {self._count} {self._what}\n")

    def say(self, line: str) -> None:
        """Write a message on a separate line. The bar continues below it."""
        if not self._quiet:
            self.close()
            self._write(f"{printable(line)}\n")

    def close(self) -> None:
        """End the line of the bar, if there is one."""
        if self._is_open:
            self._write("\n")
            self._is_open = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
