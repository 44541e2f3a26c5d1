"""The last records of the journal as rows, so that live events do not begin with an empty list."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api.backend import Partition
from ingestd.api.errors import Unavailable
from ingestd.api.events import Endpoint, Record
from ingestd.api.outcomes import Outcome
from ingestd.support.record_head import read_head

from ..disclosure import Disclosure
from ..journeys.search import JournalSearch, SearchLimits
from .arrivals import Arrival, ArrivalFilter, Source
from .rows import row_of

__all__ = ["earlier_rows"]

_MOST = 50  # rows
_LIMITS = SearchLimits(records=2000, bytes=8 << 20, seconds=1.0, found=_MOST, found_bytes=1 << 20)


class _Selected:
    """Chooses the records before a time that a filter selects."""

    def __init__(self, wanted: ArrivalFilter, disclosure: Disclosure, before: int) -> None:
        self._wanted = wanted
        self._disclosure = disclosure
        self._before = before

    def matches(self, record: Record) -> bool:
        if record.at >= self._before:
            return False
        arrival = _arrival_of(record, self._disclosure)
        return arrival is not None and self._wanted.selects(arrival)

    def __len__(self) -> int:
        return 1


async def earlier_rows(
    partitions: Sequence[Partition], wanted: ArrivalFilter, disclosure: Disclosure, before: int
) -> bytes:
    """The message with the rows of events that came before a time in milliseconds, oldest first. Their number is 0.

    A partition out of reach has none.
    """
    found: list[Record] = []
    for partition in partitions:
        search = JournalSearch(partition.journal, _LIMITS)
        try:
            extent = await partition.journal.extent()
            await search.backward(extent.last + 1, extent.first, _Selected(wanted, disclosure, before))
        except Unavailable:
            continue
        found += search.found.values()
    latest = sorted(found, key=lambda record: (record.at, record.position))[-_MOST:]
    arrivals = [arrival for record in latest if (arrival := _arrival_of(record, disclosure)) is not None]
    rows = b",".join([row_of(0, arrival.trimmed(), disclosure) for arrival in arrivals])
    return b'event: earlier\ndata: {"rows":[%b]}\n\n' % rows


def _arrival_of(record: Record, disclosure: Disclosure) -> Arrival | None:
    """The event of a record, None for other records. Its id stands for that of the request, which records lack."""
    if record.type not in {"event", "identify"}:
        return None
    head = read_head(record.body)
    try:
        endpoint = Endpoint.of(head.endpoint)
    except KeyError:  # of an intake that is off now
        return None
    if record.type == "identify":
        endpoint = endpoint.identify
    source = Source(endpoint, head.id or "", record.at, batch=False)
    key = head.key if head.key in disclosure.keys else ""
    return Arrival(source, None, endpoint, key or "", Outcome.ACCEPTED, record.body)
