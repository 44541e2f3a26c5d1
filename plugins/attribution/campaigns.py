"""Names of campaigns in the report and on the operators' page, and shares of campaigns in an order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

__all__ = ["DIRECT", "MAX_NAME", "NOT_SET", "OTHERS", "add_weights", "campaign_digest", "campaign_name"]

Campaign = TypeVar("Campaign", str, int)
"""A campaign by its name or its digest."""

DIRECT = "(direct)"
NOT_SET = "(not set)"
OTHERS = "(others)"

MAX_NAME = 80
"""Characters of a campaign's name that the state keeps. Callers choose names, so they need a bound."""


def campaign_name(source: str | None, medium: str | None, name: str | None) -> str:
    """The source, medium and name in one text."""
    return " / ".join(part for part in (source, medium, name) if part) or NOT_SET


@lru_cache(maxsize=1024)
def campaign_digest(name: str) -> int:
    """A number for the name, cut to `MAX_NAME`. It replaces names that must not be kept: they may name a person."""
    kept = name[:MAX_NAME].encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(kept, digest_size=6).digest())


def add_weights(touchpoints: Iterable[tuple[Campaign, float]], direct: Campaign) -> dict[Campaign, list[float]]:
    """The weights of touchpoints by campaign. An order without touchpoints is `direct`."""
    weights: dict[Campaign, list[float]] = {}
    for campaign, weight in touchpoints:
        if weight:
            weights.setdefault(campaign, []).append(weight)
    return weights or {direct: [1.0]}
