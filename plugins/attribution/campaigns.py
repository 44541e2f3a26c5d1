"""Campaigns as the report and the operators' page name them, and their shares of an order."""

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
"""Characters of a campaign's name that are kept beside the journal: callers choose names."""


def campaign_name(source: str | None, medium: str | None, name: str | None) -> str:
    """Source, medium and name in one text."""
    return " / ".join(part for part in (source, medium, name) if part) or NOT_SET


@lru_cache(maxsize=1024)
def campaign_digest(name: str) -> int:
    """Stands for the name, cut to `MAX_NAME`, where the name must not be kept: somebody may have put a person in it."""
    kept = name[:MAX_NAME].encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(kept, digest_size=6).digest())


def add_weights(touchpoints: Iterable[tuple[Campaign, float]], direct: Campaign) -> dict[Campaign, list[float]]:
    """The weights of touchpoints by campaign. An order without a touchpoint is direct."""
    weights: dict[Campaign, list[float]] = {}
    for campaign, weight in touchpoints:
        if weight:
            weights.setdefault(campaign, []).append(weight)
    return weights or {direct: [1.0]}
