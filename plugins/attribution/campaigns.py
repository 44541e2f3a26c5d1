"""Campaigns as the report and the operators' page tell them apart, and shares of campaigns in an order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeVar

__all__ = [
    "DIRECT",
    "DIRECT_DIGEST",
    "OTHERS",
    "OTHERS_DIGEST",
    "TOTAL",
    "Campaign",
    "Fields",
    "add_weights",
    "campaign_digest",
    "cut",
]

Name = TypeVar("Name")
"""A campaign, or its digest."""

Fields = tuple[str | None, ...]
"""Source, medium and name of touchpoints, each None if missing; or one of them."""

_MAX_TEXT = 80  # characters of each field that the state keeps: callers choose them, so they need a bound
_NOT_SET = "(not set)"
_MISSING = "–"  # noqa: RUF001 - a dash for people


class Campaign(NamedTuple):
    """What a row of the report is about: touchpoints with the same fields, or orders without touchpoint, or a rest."""

    kind: Literal["campaign", "direct", "others", "path", "total"]
    fields: Fields = ()

    @property
    def label(self) -> str:
        """One text for people. Campaigns with other fields have another text, and so have the rows of other kinds."""
        if not self.fields:
            return _LABELS.get(self.kind, _NOT_SET)
        last = max((index for index, field in enumerate(self.fields) if field), default=-1)
        shown = [self._shown(field) if field else _MISSING for field in self.fields[: last + 1]]
        return " / ".join(shown) or _NOT_SET

    def _shown(self, field: str) -> str:
        """The field, in quotation marks if the label would otherwise look like that of other fields."""
        is_like_several = len(self.fields) > 1 and (field == _MISSING or " /" in field or "/ " in field)
        if self.kind == "campaign" and (is_like_several or field in _RESERVED or field.startswith('"')):
            return '"' + field.replace('"', '""') + '"'
        return field


DIRECT, OTHERS, TOTAL = Campaign("direct"), Campaign("others"), Campaign("total")
_LABELS = {"direct": "(direct)", "others": "(others)", "total": "total"}
_RESERVED = {*_LABELS.values(), _NOT_SET}


def cut(fields: Fields) -> Fields:
    """The fields as the state keeps them."""
    return tuple(field and field[:_MAX_TEXT] for field in fields)


@lru_cache(maxsize=1024)
def campaign_digest(fields: Fields) -> int:
    """A number for a campaign. It replaces fields that must not be kept: they may name a person."""
    return _digest(json.dumps(cut(fields)))


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest())


DIRECT_DIGEST, OTHERS_DIGEST = _digest(DIRECT.label), _digest(OTHERS.label)


def add_weights(touchpoints: Iterable[tuple[Name, float]], direct: Name) -> dict[Name, list[float]]:
    """The weights of touchpoints by campaign. An order without touchpoints is `direct`."""
    weights: dict[Name, list[float]] = {}
    for campaign, weight in touchpoints:
        if weight:
            weights.setdefault(campaign, []).append(weight)
    return weights or {direct: [1.0]}
