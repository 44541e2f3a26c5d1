"""What a caller may send for a name to upset whoever looks at it; and a terminal to look at it on."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .daemon import INGESTD

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
    """Both ends of one: where it is read, and where programs write."""
    reading, writing = os.openpty()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        with suppress(OSError):  # closed already
            os.close(writing)


def shown_on_terminal(*arguments: str, config: Path) -> str:
    """What a command that must succeed prints on one."""
    shown: list[bytes] = []

    def read(descriptor: int) -> None:
        with suppress(OSError):  # nobody writes there any more
            while piece := os.read(descriptor, 65536):
                shown.append(piece)

    with terminal() as (reading, writing):
        reader = threading.Thread(target=read, args=(reading,))
        reader.start()
        done = subprocess.run([INGESTD, *arguments, "--config", str(config)], stdout=writing, timeout=60, check=False)
        os.close(writing)
        reader.join()
    assert done.returncode == 0
    return b"".join(shown).decode()
