"""A histogram in plain numbers. It costs less than the histogram of a client library, which takes locks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Distribution"]


class Distribution:
    """The number of values up to each bound, and the sum of all values. One thread adds; any thread may read."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> tuple[int, ...]:
        """The number of values up to each bound, then the number of all values."""
        return tuple(accumulate(self._counts.copy()))

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets of a Prometheus histogram: each upper bound, and the number of values up to it."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, self.cumulative(), strict=True))
