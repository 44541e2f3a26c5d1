"""Backoff: the pause before a failed attempt is repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Backoff"]


class Backoff(NamedTuple):
    """The pause before a failed attempt is repeated, in seconds.

    The backoff is exponential with full jitter. A pause is a random time from 0 to a limit, and the limit doubles from
    `initial` to `maximum`.
    """

    initial: float = 0.2
    maximum: float = 30.0
    jitter: Callable[[], float] = random.random
    """Returns a random number from 0 to 1."""

    def pause(self, failures: int) -> float:
        """The pause after that number of failures in a row (at least 1)."""
        limit = self.initial * 2.0 ** min(failures - 1, 60)  # 2.0 ** 1024 overflows
        return self.jitter() * min(self.maximum, limit)
