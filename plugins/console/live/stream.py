"""The stream of the events that one filter selects: a sample of them, and the last rows of it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ingestd.api import times

from .arrivals import Arrival, ArrivalFilter
from .sample import Sample

__all__ = ["RATE", "ArrivalOf", "RowOf", "Stream", "StreamEntry"]

RATE = 20.0
"""The most rows a second of events that were not refused, and as many more of refused ones."""

_BURST = 100  # rows at once after a pause
_KEPT = 300  # rows
_KEPT_BYTES = 1 << 20

RowOf = Callable[[int, Arrival], bytes]
"""Makes the JSON of a row from the event and its number."""

ArrivalOf = Callable[[int], Arrival]
"""Describes the event of a request that has this index."""

_Numbered = tuple[int, Arrival]
_Place = tuple[int, int]  # the number of an event in the stream, and its index in the request


class StreamEntry(NamedTuple):
    number: int
    """The number of the event among those that the filter selects."""
    arrival: Arrival
    row: bytes

    @property
    def size(self) -> int:
        return len(self.row) + len(self.arrival.record or b"")


class Stream:
    """Runs in the event loop. `offer_all` is on the path of every request, `read` on that of viewers."""

    def __init__(self, wanted: ArrivalFilter, row_of: RowOf, now: float, earlier: Iterator[StreamEntry]) -> None:
        """`earlier` are entries of another stream, of which this one begins with those that its filter selects."""
        self.token = secrets.token_hex(4)
        """Distinguishes the numbers of this stream from those of others."""
        self.came = 0
        """The number of events that the filter has selected. It is the number of the newest one."""
        self.left = 0
        """The number of viewers that have left."""
        self.selects = None if wanted == ArrivalFilter() else wanted.selects
        """Whether the filter selects an event. None: it selects all."""
        self._row_of = row_of
        self._others = Sample[_Numbered](RATE, _BURST)
        self._refused = Sample[_Numbered](RATE, _BURST)
        self._taken_at = now
        self._entries: deque[StreamEntry] = deque()
        self._bytes = 0
        self.since = times.now()
        """The time from which on the stream has events, in milliseconds."""
        for entry in earlier:
            self.since = min(self.since, entry.arrival.source.at)
            if wanted.selects(entry.arrival):
                self.came += 1
                self._append(self.came, entry.arrival)

    def offer(self, arrival: Arrival) -> None:
        """Count one event, and perhaps keep it."""
        self.offer_all(1, () if arrival.refused is None else (0,), lambda _: arrival)

    def offer_all(self, count: int, refused: Collection[int], arrival_of: ArrivalOf) -> None:
        """Count the events of a request, and keep a sample of them.

        `refused` has the indexes of those that are not answered 200. They have a sample of their own, so that no flood
        of others displaces them. `arrival_of` is called for few events, unless the stream has a filter.
        """
        before = self.came
        if self.selects is None and not refused:  # as almost always
            self.came += count
            for place in self._others.draw(count):
                self._others.keep((before + place + 1, arrival_of(place).trimmed()))
            return
        indexes: Sequence[int] = range(count)
        if self.selects is not None:
            indexes = [index for index in indexes if self.selects(arrival_of(index))]
        self.came += len(indexes)
        refused = frozenset(refused)
        those: list[_Place] = []
        others: list[_Place] = []
        for number, index in enumerate(indexes, before + 1):
            (those if index in refused else others).append((number, index))
        for sample, places in ((self._refused, those), (self._others, others)):
            for drawn in sample.draw(len(places)):
                number, index = places[drawn]
                sample.keep((number, arrival_of(index).trimmed()))

    def take_sample(self, now: float) -> None:
        """Make rows of the sample."""
        seconds, self._taken_at = now - self._taken_at, now
        sample = [*self._others.take(seconds), *self._refused.take(seconds)]
        for number, arrival in sorted(sample, key=lambda each: each[0]):
            self._append(number, arrival)

    def _append(self, number: int, arrival: Arrival) -> None:
        entry = StreamEntry(number, arrival, self._row_of(number, arrival))
        self._entries.append(entry)
        self._bytes += entry.size
        while len(self._entries) > _KEPT or self._bytes > _KEPT_BYTES:
            self._bytes -= self._entries.popleft().size

    def entries(self) -> Iterator[StreamEntry]:
        """The entries, oldest first."""
        return iter(self._entries)

    def read(self, after: int, most: int) -> list[StreamEntry]:
        """The oldest entries behind a number, at most so many."""
        return [*islice((entry for entry in self._entries if entry.number > after), most)]
