"""Counts of a file's commits, as plain numbers."""

from __future__ import annotations

from ingestd.support.distribution import Distribution

__all__ = ["CommitStatistics"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
UNITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class CommitStatistics:
    """Commits that were tried since the file was opened."""

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0
        self.seconds = Distribution(SECONDS)
        self.units = Distribution(UNITS)

    def add(self, seconds: float, units: int, *, stored: bool) -> None:
        """Count a commit of `units` transactions."""
        if stored:
            self.stored += 1
        else:
            self.failed += 1
        self.seconds.add(seconds)
        self.units.add(units)
