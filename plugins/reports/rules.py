"""The rules of a shop that reports follow."""

from __future__ import annotations

from typing import NamedTuple

from ingestd.api.events import Record
from ingestd.support.unusable_ids import UnusableIds

from ..attribution.arrivals import Arrivals
from ..attribution.reading import Seen, read
from ..attribution.touches import Touch
from ..sources import Channels
from .periods import TimeZone

__all__ = ["ReportRules"]


class ReportRules(NamedTuple):
    arrivals: Arrivals
    channels: Channels
    time_zone: TimeZone
    cost_life: int
    """How long costs are kept after their day, in milliseconds."""

    def touch_of(self, record: Record, unusable_ids: UnusableIds) -> Touch | None:
        """The touchpoint that a record of the journal is, if it counts."""
        seen = read(record, self.arrivals, unusable_ids, with_stateless=True)
        return seen.touch if isinstance(seen, Seen) and seen.excluded is None else None
