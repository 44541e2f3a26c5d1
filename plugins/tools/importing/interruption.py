"""Ctrl-C during a long command: it ends where nothing is half done."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupted", "Interruption"]


class Interrupted(Exception):
    """The user wants the command to end."""


class Interruption:
    """What Ctrl-C does. At first it raises `Interrupted` at once.

    With `is_guarded`, the first one is remembered until `check`, and the second one raises `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self.is_guarded = False
        self._is_wanted = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
