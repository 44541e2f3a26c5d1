"""A random sample of the items that come between two looks, of which there are few or very many."""

from __future__ import annotations

import sys
from math import exp, log1p
from random import expovariate, random
from typing import Generic, TypeVar

__all__ = ["Sample"]

Item = TypeVar("Item")

_ALMOST_ONE = 1 - sys.float_info.epsilon


class Sample(Generic[Item]):
    """Each item since the last `take` has the same chance.

    An item that gets no place costs nothing but its share of a sum: the sample draws how many items it passes over, and
    not for each one whether it passes over it (Li's algorithm L).
    """

    __slots__ = ("_allowance", "_burst", "_came", "_kept", "_next", "_rate", "_room", "_threshold")

    def __init__(self, rate: float, burst: int) -> None:
        """At most `rate` items a second are taken, and up to `burst` at once after a quiet time."""
        self._rate = rate
        self._burst = burst
        self._allowance = float(burst)
        self._begin()

    def _begin(self) -> None:
        self._kept: list[Item] = []
        self._came = 0
        self._room = int(self._allowance)
        self._next = 0 if self._room else sys.maxsize
        """The number of items before the next one that gets a place."""
        self._threshold = 1.0

    def draw(self, count: int) -> list[int]:
        """Draw from so many items that come. Returns the indexes of those to keep, in order: `keep` takes each."""
        begun = self._came
        self._came += count
        drawn: list[int] = []
        while self._next < self._came:
            drawn.append(self._next - begun)
            self._next += 1
            if self._next >= self._room:
                self._threshold *= exp(-expovariate(1.0) / self._room)
                self._next += int(expovariate(1.0) / -log1p(-min(self._threshold, _ALMOST_ONE)))
        return drawn

    def keep(self, item: Item) -> None:
        """Keep an item that was drawn, in place of any earlier one if there is no further room."""
        if len(self._kept) < self._room:
            self._kept.append(item)
        else:
            self._kept[int(random() * self._room)] = item  # noqa: S311 - no secret

    def take(self, seconds: float) -> list[Item]:
        """The sample, `seconds` after the last one. The next one begins."""
        kept = self._kept
        self._allowance = min(self._burst, self._allowance - len(kept) + self._rate * seconds)
        self._begin()
        return kept
