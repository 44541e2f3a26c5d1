"""Reads the latest records of journals, from a time on, and within a bound on their number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.events import Record
from ingestd.api.journal import Journal

__all__ = ["Starts", "find_starts", "pages"]

_PAGE = 100  # records: reading them takes the event loop for less than a millisecond


class Starts(NamedTuple):
    after: Sequence[tuple[Partition, int]]
    """The position in each journal behind which the records begin."""
    possible: int | None
    """None, or if there are too many records, the earliest time in milliseconds with few enough."""
    removed: int | None
    """The time of the oldest record, if a journal has removed earlier ones."""


async def find_starts(partitions: Sequence[Partition], missing: MissingPartitions, since: int, most: int) -> Starts:
    """Where the records from `since` on begin, in milliseconds. `most` is the bound on their number."""
    after, possible, removed = [], [], []
    for partition in partitions:
        with missing.tolerating(partition):
            journal = partition.journal
            extent = await journal.extent()
            if extent.first > 1:
                removed.append(times.now() if extent.oldest_at is None else extent.oldest_at)
            start = await _find(journal, extent.first - 1, extent.last, since)
            after.append((partition, start))
            bound = extent.last - most // len(partitions)
            if start < bound:
                possible += [each.at for each in await journal.outlines(bound, 1)]
    return Starts(after, max(possible, default=None), max(removed, default=None))


async def _find(journal: Journal, low: int, high: int, since: int) -> int:
    """The position before the first record from `since` on. Times grow with positions, but for seconds."""
    since -= 60_000
    while low < high:
        middle = (low + high) // 2
        found = await journal.outlines(middle, 1)
        if found and found[0].at < since:
            low = found[0].position
        else:
            high = middle
    return low


async def pages(journal: Journal, after: int) -> AsyncIterator[Sequence[Record]]:
    """The records behind a position, as far as they are in the journal now."""
    last = await journal.last()
    while after < last and (records := await journal.read(after, _PAGE)):
        yield records
        after = records[-1].position
