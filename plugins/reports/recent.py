"""Reads records of journals, for the page within a bound on their number: those from a time on, or the last orders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.events import Record
from ingestd.api.journal import Journal

__all__ = ["Pause", "Starts", "Undecided", "find_starts", "pages", "read_latest"]

Pause = Callable[[], Awaitable[None]]
"""Lets events go first, if the work has taken long enough."""

_ORDER = b'"Order Completed"'
_PAGE = 100  # records: reading them takes the event loop for less than a millisecond
_FARTHEST = 50_000  # records from the end of a journal
_DERIVED = {"attribution", "attribution_reversal"}


class Undecided:
    """The orders of a journal that attribution has not read yet."""

    def __init__(self, decided: int, tenant: str | None) -> None:
        self._decided = decided
        self._tenant = tenant
        self.ids: set[str | None] = set()

    @classmethod
    async def of(cls, journal: Journal, tenant: str | None) -> Undecided:
        """Call this before the end of the journal is read, so that attributions of decided orders are within it."""
        return cls(next((each.position for each in await journal.cursors() if each.name == "attribution"), 0), tenant)

    def add(self, record: Record) -> None:
        if record.position > self._decided and record.type == "event" and _ORDER in record.body:
            envelope = record.envelope()
            if self._tenant in {None, envelope.tenant}:
                self.ids.add(envelope.id)
        elif self.ids and record.type == "attribution":
            self.ids.discard(record.decode()["orderEventId"])


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


async def pages(journal: Journal, after: int, size: int = _PAGE) -> AsyncIterator[Sequence[Record]]:
    """The records behind a position, as far as they are in the journal now."""
    last = await journal.last()
    while after < last and (records := await journal.read(after, size)):
        yield records
        after = records[-1].position


async def read_latest(journal: Journal, count: int, pause: Pause) -> Iterable[Record]:
    """The attributions and reversals at the end of a journal, in order, until there are so many attributions."""
    extent = await journal.extent()
    end, oldest, missing = extent.last, max(extent.first - 1, extent.last - _FARTHEST), count
    found: list[Record] = []
    while end > oldest and missing > 0:
        begin = after = max(oldest, end - _PAGE)
        page: list[Record] = []
        while after < end and (records := await journal.read(after, end - after)):  # long records come in parts
            after = records[-1].position
            page += [each for each in records if each.type in _DERIVED and each.position <= end]
            await pause()
        missing -= sum(each.type == "attribution" for each in page)
        found[:0] = page
        end = begin
    return found
