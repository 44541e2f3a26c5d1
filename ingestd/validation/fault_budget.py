"""The price of faults: how many of a request's values are explained, searched for numbers, and names suggested.

To explain a fault takes ten times as long as to find that there is one. So the first values of a request are explained
whole, and behind them each event gets its first fault. A request of one event has the same budget as a batch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["MAX_EXPLAINED_VALUES", "FaultBudget", "Suggestions"]

MAX_EXPLAINED_VALUES = 500
"""The number of values in events at fault of which all faults are told. jsonschema_rs takes up to 7 µs for each."""

_EVENT = 20  # values: what it takes to explain an event at fault that has hardly any
_MAX_READINGS = 20_000  # values of refused events that were searched for numbers as text: each takes up to 2 µs
_MAX_SEARCHES = 5  # for suggestions: each takes up to a millisecond
_TEXT_OF_A_VALUE = 64  # characters: an error has a copy of the text
_MAX_NAME = 100  # characters: the time of a search grows with the length, which the caller chooses
_MAX_REMEMBERED = 1_000


class FaultBudget:
    """What may still be explained of the faults of one request."""

    __slots__ = ("readings", "searches", "values")

    def __init__(self, values: int = MAX_EXPLAINED_VALUES) -> None:
        self.readings = _MAX_READINGS
        self.searches = _MAX_SEARCHES
        self.values = values

    def explains(self, body: Any) -> bool:
        """Whether all faults of a body are to be told. Then its values are taken from the budget, else few."""
        level, left = [body], self.values - _EVENT
        while level and len(level) <= left:
            left -= len(level)
            following: list[Any] = []
            for value in level:
                kind = type(value)
                if kind is dict:
                    following += value.values()
                elif kind is list:
                    following += value
                elif kind is str:
                    left -= len(value) // _TEXT_OF_A_VALUE
            level = following
        is_whole = not level and left >= 0
        self.values = max(0, left if is_whole else self.values - _EVENT)
        return is_whole


class Suggestions:
    """Finds the known name nearest to an unknown one, in any case, and remembers it: callers repeat their mistakes."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = {name.casefold(): name for name in sorted(known)}
        self._found: dict[str, str] = {}

    def nearest(self, name: str, budget: FaultBudget) -> str:
        """The known name; empty if none is near, or the budget of the request has no search left."""
        if (found := self._found.get(name)) is None:
            if len(name) > _MAX_NAME or not budget.searches:
                return ""
            budget.searches -= 1
            near = difflib.get_close_matches(name.casefold(), self._known, n=1)
            found = self._known[near[0]] if near else ""
            if len(self._found) >= _MAX_REMEMBERED:
                self._found.clear()
            self._found[name] = found
        return found
