"""The rules of a shop that reports follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ingestd.api.events import Record
from ingestd.support.unusable_ids import UnusableIds

from ..attribution.reading import Erasure, Seen
from .periods import TimeZone

__all__ = ["ReportRules"]


class ReportRules(NamedTuple):
    read: Callable[[Record, UnusableIds], Seen | Erasure | None]
    """Reads a record of the journal."""
    time_zone: TimeZone
    cost_life: int
    """How long costs are kept after their day, in milliseconds."""
