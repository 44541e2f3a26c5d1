"""The end of a batch or flush, stored before its first write, so that a crash does not change the batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from ingestd.api.events import Record
from ingestd.api.sink import Span
from ingestd.api.store import StoredValue

__all__ = ["BATCH_PLAN", "BatchPlan"]


class BatchPlan(msgspec.Struct, frozen=True):
    """The part of the journal that a batch or flush covers."""

    first: int
    """The position of the first record."""
    last: int
    """The position of the last record."""
    at: int
    """The time of the last record in milliseconds."""

    def span(self, partition: str) -> Span:
        return Span(self.first, self.last, self.at, partition)

    def begins_with(self, record: Record) -> bool:
        """Whether the record is in this part. The records before it may have been processed or removed."""
        return self.first <= record.position <= self.last

    def ends_with(self, record: Record) -> bool:
        """Whether the record is the last one of this part."""
        return (record.position, record.at) == (self.last, self.at)

    def is_met_by(self, records: Sequence[Record]) -> bool:
        """Whether the records begin in this part and reach its end.

        They do not after a journal has lost its end, even if other records have the same positions now.
        """
        if not self.begins_with(records[0]) or records[-1].position < self.last:
            return False
        end = records[bisect_left(records, self.last, key=lambda record: record.position)]
        return end.position > self.last or self.ends_with(end)


BATCH_PLAN = StoredValue("sink-batch", BatchPlan)
"""By sink."""
