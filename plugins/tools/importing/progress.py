"""The progress of an import, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from ingestd.cli.sinks.progress_bar import ProgressBar

from .interruption import Interruption
from .lines import InputFiles

__all__ = ["Progress"]

_MEGABYTE = 1_000_000
_MANY = 1000  # lines between two looks at the progress
_PAUSE = 5.0  # seconds between two lines about the progress of a pipe


class Progress:
    """The part of the files that was read. The length of a pipe is unknown, so lines are counted then."""

    def __init__(self, files: InputFiles, what: str, *, quiet: bool) -> None:
        self._files = files
        self._size = files.size
        self._bar = ProgressBar(-(-(self._size or 0) // _MEGABYTE), what, quiet=quiet)
        self._next = 0.0
        self.say = self._bar.say

    def show(self, lines: int) -> None:
        now = time.monotonic()
        if self._size is not None:
            self._bar.show(-(-self._files.position // _MEGABYTE))
        elif now > self._next:
            self._next = now + _PAUSE
            self.say(f"{lines} lines read")

    def step(self, interruption: Interruption) -> Callable[[], None]:
        """A function to call for each line, which seldom looks at anything."""
        lines = count()

        def step() -> None:
            if not next(lines) % _MANY:
                interruption.check()
                self.show(0)

        return step

    def close(self) -> None:
        self._bar.close()
