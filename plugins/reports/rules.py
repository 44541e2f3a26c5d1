"""The rules of a shop that reports follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ingestd.api.events import Record
from ingestd.support.unusable_ids import UnusableIds

from ..attribution.reading import Erasure, Seen
from ..attribution.touches import Touch
from ..sources import Channels
from .periods import TimeZone

__all__ = ["ReportRules"]


class ReportRules(NamedTuple):
    read: Callable[[Record, UnusableIds], Seen | Erasure | None]
    """Reads a record of the journal."""
    channels: Channels
    time_zone: TimeZone
    cost_life: int
    """How long costs are kept after their day, in milliseconds."""

    def touch_of(self, record: Record, unusable_ids: UnusableIds) -> Touch | None:
        """The touchpoint that a record of the journal is, if it counts."""
        seen = self.read(record, unusable_ids)
        return seen.touch if isinstance(seen, Seen) and seen.excluded is None else None
