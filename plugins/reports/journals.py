"""Fills reports from journals and costs. The page bounds the records: those from a time on, or the last orders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from ingestd.api import times
from ingestd.api.backend import MissingPartitions, Partition
from ingestd.api.events import Record
from ingestd.api.hookspecs import Daemon
from ingestd.api.journal import Journal

from .costs import read_costs
from .periods import Periods
from .report import Report

__all__ = ["Pause", "Starts", "add_costs", "add_records", "find_starts", "pages", "read_latest"]

Pause = Callable[[], Awaitable[None]]
"""Lets events go first, if the work has taken long enough."""

_ORDER = b'"Order Completed"'
_PAGE = 100  # records: reading them takes the event loop for less than a millisecond
_FEW = 8  # records between two looks at the clock
_FARTHEST = 50_000  # records from the end of a journal
_DERIVED = {"attribution", "attribution_reversal"}


async def add_records(report: Report, journal: Journal, after: int, pause: Pause, *, size: int = _PAGE) -> int:
    """Add the records behind a position. Returns the number of orders that attribution has not read yet."""
    # Before the end of the journal is read, so that attributions of decided orders are within it.
    decided = next((each.position for each in await journal.cursors() if each.name == "attribution"), 0)
    undecided: set[str | None] = set()
    async for records in pages(journal, after, size):
        for index, record in enumerate(records):
            if not index % _FEW:
                await pause()
            report.add(record)
            if record.position > decided and record.type == "event" and _ORDER in record.body:
                envelope = record.envelope()
                if report.tenant in {None, envelope.tenant}:
                    undecided.add(envelope.id)
            elif undecided and record.type == "attribution":
                undecided.discard(record.decode()["orderEventId"])
    return len(undecided)


async def add_costs(
    report: Report, periods: Periods, daemon: Daemon, missing: MissingPartitions, *, life: int, pause: Pause
) -> None:
    """Add the costs of the report's tenants, which its records tell. `life` is as in `costs.change`."""
    for tenant in report.tenants if report.tenant is None else [report.tenant]:
        partition = daemon.of_tenant(tenant)
        with missing.tolerating(partition):
            async for number, cost in read_costs(partition.store, tenant, periods, life):
                report.add_cost(cost, number)
                await pause()


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
