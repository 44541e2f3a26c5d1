"""The columns of a report: they tell to which row a touchpoint, an order or a cost belongs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from ..attribution.campaigns import DIRECT, OTHERS, Campaign

__all__ = ["UNKNOWN", "Columns", "Products", "Shares", "columns_of"]

UNKNOWN = "(unknown)"
"""The page or the products of an event that the journal no longer has."""

Shares = tuple[tuple[Campaign, Decimal], ...]
"""Rows, and the part of an order that each has."""
Products = tuple[tuple[str | None, Decimal], ...]

_MOST_STEPS, _LAST_STEPS = 10, 8  # of a path: a visitor may have hundreds of touchpoints
_Value = TypeVar("_Value")


def columns_of(by: Sequence[str]) -> tuple[str, ...]:
    """The columns for choices of `--by`. `campaign` alone is all that names one, and beside others its name.

    `landing` is the path of a touchpoint's page. `model` is no column.
    """
    chosen = [each for each in by if each != "model"] or ["channel"]
    if chosen == ["campaign"]:
        return "source", "medium", "name"
    return tuple(dict.fromkeys("name" if each == "campaign" else each for each in chosen))


class Columns:
    """`channel` names the channel of a touchpoint's texts. With `paths`, a row is a sequence of touchpoints."""

    def __init__(
        self, names: Sequence[str], channel: Callable[[Mapping[str, Any]], str | None], *, keep_case: bool, paths: bool
    ) -> None:
        self.fields = tuple(each for each in names if each != "product")
        self.product = names.index("product") if "product" in names else None
        self.keep_case, self.paths = keep_case, paths
        self.pages: dict[str, str | None] = {}
        """The paths of touchpoints' pages, by the ids of their events."""
        self._channel = channel
        self._equal: dict[Any, Any] = {}

    @property
    def are_touchpoints(self) -> bool:
        """Whether a row is what single touchpoints have in common."""
        return self.product is None and not self.paths

    def of_touchpoint(self, event_id: str, texts: Mapping[str, Any] | None) -> Campaign:
        """The row of a touchpoint. `texts` is None if a record had no room for them."""
        if texts is None:
            return OTHERS
        fields = tuple(self._field(name, event_id, texts) for name in self.fields)
        direct = self.direct()  # some tag visits with the source (direct)
        return direct if fields == direct.fields else self.shared(Campaign("campaign", fields))

    def _field(self, name: str, event_id: str, texts: Mapping[str, Any]) -> str | None:
        if name == "landing":
            return self.pages.get(event_id, UNKNOWN)
        found: str | None = self._channel(texts) if name == "channel" else texts.get(name)
        return found or None

    def direct(self) -> Campaign:
        """The row of orders and sessions without a touchpoint."""
        if "channel" not in self.fields:
            return DIRECT
        texts = {"channel": "Direct", "source": DIRECT.label}
        return self.shared(Campaign("direct", tuple(map(texts.get, self.fields))))

    def of_path(self, steps: Sequence[Campaign], left_out: int) -> Campaign:
        """The row of a sequence of touchpoints, the oldest first. Equal ones in succession are one step."""
        labels: list[str] = []
        for index, step in enumerate(steps):
            if index == 1 and left_out:
                labels.append("…")
            if index == 0 or self.same(step) != self.same(steps[index - 1]):
                labels.append(step.label)
        if not labels:
            return self.direct()
        if len(labels) > _MOST_STEPS:
            labels = [labels[0], "…", *labels[-_LAST_STEPS:]]
        return Campaign("path", (" > ".join(labels),))

    def of_products(self, shares: Shares, products: Products) -> Shares:
        """The shares of an order, divided among its products if a row is one."""
        if self.product is None:
            return shares
        found = []
        for campaign, weight in shares:
            kind = campaign.kind if self.fields else "campaign"
            fields = campaign.fields or (campaign.label, *[None] * len(self.fields))[: len(self.fields)]
            for name, part in products:
                names = (*fields[: self.product], name, *fields[self.product :])
                found.append((Campaign(kind, names), weight * part))
        return tuple(found)

    def same(self, campaign: Campaign) -> Campaign:
        """The same for all campaigns of a row."""
        if self.keep_case:
            return campaign
        return Campaign(campaign.kind, tuple(field and field.lower() for field in campaign.fields))

    def shared(self, value: _Value) -> _Value:
        """One object for equal values: many orders have the same."""
        found: _Value = self._equal.setdefault(value, value)
        return found
