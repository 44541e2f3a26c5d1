"""The clock of Redis' server: by it, Redis removes the entries that have ended."""

from __future__ import annotations

import time

from ingestd.api import times

__all__ = ["ServerClock", "clock_ahead", "monotonic"]

_OUTLIVES = 600_000  # milliseconds for which Redis keeps an entry after its end: MARGIN in batch.lua


def clock_ahead(clock: int, asked_at: int) -> int:
    """Milliseconds by which Redis' clock is ahead of ours: it was read between our question and now."""
    return min(0, clock - asked_at) or max(0, clock - times.now())


def monotonic() -> int:
    """Milliseconds of a clock that never jumps, and goes on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class ServerClock:
    """Notices that the server's clock jumps so far ahead that Redis removes entries before their end."""

    def __init__(self) -> None:
        self._most: int | None = None
        """By how much it was ahead of the monotonic clock, at most, at the last answer."""

    def jump(self, clock: int, asked_at: int) -> int:
        """Milliseconds of life that entries have lost since the last answer, or 0. `asked_at` is by `monotonic`."""
        former, self._most = self._most, clock - asked_at
        jump = 0 if former is None else clock - monotonic() - former
        return jump if jump > _OUTLIVES else 0
