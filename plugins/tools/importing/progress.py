"""The progress of an import, on standard error, and its end by Ctrl-C, where nothing is half done."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import count
from types import FrameType

from ..sinks.progress_bar import ProgressBar
from .lines import InputFiles

__all__ = ["Interrupted", "Interruption", "Progress"]


class Interrupted(Exception):
    """The user wants the command to end."""


class Interruption:
    """What Ctrl-C does. At first it raises `Interrupted` at once.

    With `is_guarded`, the first one is remembered until `check`, and the second one raises `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self.is_guarded = False
        self._is_wanted = False
        self._before = signal.signal(signal.SIGINT, self._note)

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.is_guarded:
            raise Interrupted
        if self._is_wanted:
            raise KeyboardInterrupt
        self._is_wanted = True

    def check(self) -> None:
        """Raises `Interrupted` after Ctrl-C."""
        if self._is_wanted:
            raise Interrupted


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
