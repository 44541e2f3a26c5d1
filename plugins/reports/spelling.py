"""Rows that differ only in case become one, written as most orders write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from ..attribution.campaigns import Campaign

__all__ = ["Spelling"]

Value = TypeVar("Value")
Key = TypeVar("Key", bound=tuple[Any, ...])


class Spelling:
    """The spelling of each text in a column of rows: that of most orders, else of most sessions, else the first."""

    def __init__(self, rest: Callable[[], None] = lambda: None) -> None:
        """`rest` lets other threads run, if it is time."""
        self._rest = rest
        self._uses: dict[tuple[int, str], Counter[str]] = {}
        self._sessions: Counter[tuple[int, str]] = Counter()
        self._known: dict[Campaign, Campaign] = {}

    def count(self, campaign: Campaign, orders: Decimal, sessions: int) -> None:
        """Count the uses of the texts of a row, before any call of `merged`."""
        self._rest()
        for column, text in enumerate(campaign.fields):
            if text is not None:
                self._uses.setdefault((column, text.lower()), Counter())[text] += orders  # type: ignore[assignment]
                self._sessions[column, text] += sessions

    def merged(self, values: Mapping[Key, Value], add: Callable[[Value, Value], Value]) -> dict[Key, Value]:
        """The values by keys with these spellings. The second member of each key is a campaign."""
        found: dict[Key, Value] = {}
        for key, value in values.items():
            self._rest()
            written: Any = (key[0], self._written(key[1]), *key[2:])
            found[written] = add(found[written], value) if written in found else value
        return found

    def _written(self, campaign: Campaign) -> Campaign:
        known = self._known.get(campaign)
        if known is None:
            fields = tuple(text and self._best(column, text) for column, text in enumerate(campaign.fields))
            known = self._known[campaign] = Campaign(campaign.kind, fields)
        return known

    def _best(self, column: int, text: str) -> str:
        uses = self._uses.get((column, text.lower()), {text: 0})
        return min(uses, key=lambda each: (-uses[each], -self._sessions[column, each], each))
