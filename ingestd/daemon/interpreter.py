"""The settings of the interpreter for a daemon."""

from __future__ import annotations

import gc
import sys

from .memory import keep_large_pieces_apart

__all__ = ["tune_the_interpreter"]


def tune_the_interpreter() -> None:
    """Tune the interpreter for a busy event loop beside threads that wait for the disk.

    - The garbage collector seldom looks at objects of requests: reference counts free almost all of them at once.
    - It never looks at objects of the start: they hold almost no garbage, and one search takes a tenth of the start.
    - A thread that returns from the disk runs after 0.1 ms, not 5 ms: answers wait for it some six times a commit.
    """
    keep_large_pieces_apart()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    sys.setswitchinterval(0.0001)
