"""Counts texts that callers chose, of which there may be any number."""

from __future__ import annotations

from collections import Counter

__all__ = ["BoundedCounter"]

_MOST = 1000  # different texts
_LONGEST = 100  # characters of a text
_OTHERS = "(others)"


class BoundedCounter(Counter[str]):
    """Counts the first 1,000 different texts, and all others together."""

    def add(self, text: str) -> None:
        text = text[:_LONGEST]
        self[text if text in self or len(self) < _MOST else _OTHERS] += 1
