"""Hostile names that callers may send to disturb a terminal, and a terminal to show them on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .forked import INGESTD, run

__all__ = ["HOSTILE", "shown_on_terminal", "terminal"]

HOSTILE = [
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x1b[2J",
    "line\nbreak",
    "line\r\nbreak",
    "tab\there",
    "\u202eright to left",
    "\u2066isolated\u2069",
    "\u200bzero\ufeff",
    "line\u2028separator\u0085",
    "\x00\x7f\x80",
    "\U000e0041tag",
]


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: the end to read from, and the end that programs write to."""
    reading, writing = os.openpty()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        with suppress(OSError):  # closed already
            os.close(writing)


def shown_on_terminal(*arguments: str, config: Path) -> str:
    """The output of a command that must succeed, on a terminal."""
    shown: list[bytes] = []

    def read(descriptor: int) -> None:
        with suppress(OSError):  # no program has the terminal open any more
            while piece := os.read(descriptor, 65536):
                shown.append(piece)

    with terminal() as (reading, writing):
        reader = threading.Thread(target=read, args=(reading,))
        reader.start()
        done = run([INGESTD, *arguments, "--config", str(config)], stdout=writing, stderr=None)
        os.close(writing)
        reader.join()
    assert done.returncode == 0
    return b"".join(shown).decode()
