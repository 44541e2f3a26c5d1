"""How long to pause before what failed is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Backoff"]


class Backoff(NamedTuple):
    """How long to pause before a failed attempt is made again, in seconds.

    Exponential with full jitter: anything from 0 to a limit that doubles from `initial` to `maximum`.
    """

    initial: float = 0.2
    maximum: float = 30.0
    jitter: Callable[[], float] = random.random
    """Gives a number from 0 to 1, at random."""

    def pause(self, failures: int) -> float:
        """The pause after so many failures in a row (from 1)."""
        limit = self.initial * 2.0 ** min(failures - 1, 60)  # 2.0 ** 1024 overflows
        return self.jitter() * min(self.maximum, limit)
