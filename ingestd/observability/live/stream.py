"""The stream of the events that one filter selects: a sample of them, and the last rows of it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from random import random
from typing import NamedTuple

from ingestd.api.events import Endpoint
from ingestd.api.outcomes import Outcome

from .arrivals import Arrival, ArrivalFilter, Sent

__all__ = ["RATE", "Entry", "RowOf", "Stream"]

RATE = 20.0
"""The most rows a second of events that were not refused, and as many more of refused ones."""

_ANSWERED_200 = frozenset([Outcome.ACCEPTED, Outcome.DUPLICATE, Outcome.DROPPED])
_BURST = 100  # rows at once after a pause
_KEPT = 300  # rows
_KEPT_BYTES = 1 << 20

RowOf = Callable[[int, Arrival], bytes]
"""Makes the JSON of a row from the event and its number."""


class Entry(NamedTuple):
    number: int
    """The number of the event among those that the filter selects."""
    arrival: Arrival
    row: bytes

    @property
    def size(self) -> int:
        return len(self.row) + len(self.arrival.record or b"")


class _Sample:
    """A sample of the events since the last one was taken. Each of them has the same chance (Vitter's algorithm R)."""

    __slots__ = ("_allowance", "came", "kept", "room")

    def __init__(self) -> None:
        self.kept: list[tuple[int, Arrival]] = []
        """Events with their numbers."""
        self.came = 0
        self.room = _BURST
        self._allowance = float(_BURST)

    def take(self, seconds: float) -> list[tuple[int, Arrival]]:
        """The sample, `seconds` after the last one."""
        kept = self.kept
        self._allowance = min(_BURST, self._allowance - len(kept) + RATE * seconds)
        self.kept, self.came, self.room = [], 0, int(self._allowance)
        return kept


class Stream:
    """Runs in the event loop. `offer` is on the path of every event, `read` on that of viewers."""

    def __init__(self, wanted: ArrivalFilter, row_of: RowOf, now: float, earlier: Iterator[Entry]) -> None:
        """`earlier` are entries of another stream, of which this one begins with those that its filter selects."""
        self.token = secrets.token_hex(4)
        """Distinguishes the numbers of this stream from those of others."""
        self.came = 0
        """The number of events that the filter has selected. It is the number of the newest one."""
        self.left = 0
        """The number of viewers that have left."""
        self._selects = None if wanted == ArrivalFilter() else wanted.selects
        self._row_of = row_of
        self._others, self._refused = _Sample(), _Sample()
        self._taken_at = now
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        for entry in earlier:
            if wanted.selects_arrival(entry.arrival):
                self.came += 1
                self._append(self.came, entry.arrival)

    def draw(self, endpoint: Endpoint, key: str, outcome: Outcome, record: bytes | None, sent: Sent) -> int | None:
        """Count an event if the filter selects it, and draw its place in the sample. None: it gets no place."""
        if self._selects is not None and not self._selects(endpoint, key, outcome, record, sent):
            return None
        self.came += 1
        sample = self._others if outcome in _ANSWERED_200 else self._refused
        sample.came += 1
        if sample.came <= sample.room:
            return len(sample.kept)
        place = int(random() * sample.came)  # noqa: S311 - no secret
        return place if place < sample.room else None

    def keep(self, place: int, arrival: Arrival) -> None:
        """Give an event the place that was just drawn for it."""
        kept = (self._others if arrival.outcome in _ANSWERED_200 else self._refused).kept
        if place < len(kept):
            kept[place] = self.came, arrival.trimmed()
        else:
            kept.append((self.came, arrival.trimmed()))

    def offer(self, arrival: Arrival) -> None:
        """Draw and keep. Where many events come, `draw` alone is faster, as most get no place."""
        place = self.draw(arrival.endpoint, arrival.key, arrival.outcome, arrival.record, arrival.sent)
        if place is not None:
            self.keep(place, arrival)

    def take_sample(self, now: float) -> None:
        """Make rows of the sample."""
        seconds, self._taken_at = now - self._taken_at, now
        sample = [*self._others.take(seconds), *self._refused.take(seconds)]
        for number, arrival in sorted(sample, key=lambda each: each[0]):
            self._append(number, arrival)

    def _append(self, number: int, arrival: Arrival) -> None:
        entry = Entry(number, arrival, self._row_of(number, arrival))
        self._entries.append(entry)
        self._bytes += entry.size
        while len(self._entries) > _KEPT or self._bytes > _KEPT_BYTES:
            self._bytes -= self._entries.popleft().size

    def entries(self) -> Iterator[Entry]:
        """The entries, oldest first."""
        return iter(self._entries)

    def read(self, after: int, most: int) -> list[Entry]:
        """The oldest entries behind a number, at most so many."""
        return [*islice((entry for entry in self._entries if entry.number > after), most)]
