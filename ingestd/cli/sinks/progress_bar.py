"""How far a long order is, on standard error: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys

from ingestd.api.terminal import printable

__all__ = ["ProgressBar"]

_WIDTH = 30
_STEPS = 10  # lines, where there is no terminal


class ProgressBar:
    """Of `count` things. With `quiet` nothing is shown."""

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
        """A line for people between."""
        if not self._quiet:
            self.close()
            self._write(f"{printable(line)}\n")

    def close(self) -> None:
        """End the line that the bar is on."""
        if self._is_open:
            self._write("\n")
            self._is_open = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
