"""The events of a batch in parts. The records of a part share a commit, and are in memory together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Raw

from ingestd.api.events import Event

from .pace import FEW, Pace, Steps
from .request_events import RequestEvents

__all__ = ["Parts"]

_MOST = 1 << 20  # bytes
_USUAL_SIZE = 1024  # bytes of an event in a batch; parsed, it takes up to forty times as many


class Parts:
    """A part has about a megabyte of events at most. Beside single events, it has as many as one step handles."""

    def __init__(
        self, events: RequestEvents, bodies: Sequence[Raw | bytes], ids: Iterator[str], max_size: int, pace: Pace
    ) -> None:
        """`ids` are those of the records. `max_size` bounds each event."""
        self._events = events
        self._bodies = bodies
        self._ids = ids
        self._max_size = max_size
        self._pace = pace
        self._at = self._end = 0

    @property
    def left(self) -> int:
        """The number of events that are in no part yet."""
        return len(self._bodies) - self._at

    def next_weight(self) -> int:
        """Choose the events of the next part. Returns their number, or more if they are large."""
        most = FEW if self._pace.is_beside_singles() else len(self._bodies)
        size, end = 0, self._at
        for body in self._bodies[self._at : self._at + most]:
            length = len(memoryview(body))
            if size and size + length > _MOST:
                break
            size += length
            end += 1
        self._end = end
        return max(end - self._at, size // _USUAL_SIZE)

    def read(self, steps: Steps) -> Iterator[Event | None]:
        """The events of the next part, each read when the caller asks for it. Ends the steps with the last one."""
        while self._at < self._end:
            body, record_id = self._bodies[self._at], next(self._ids)
            self._at += 1
            yield self._events.read(bytes(body), record_id, max_size=self._max_size)
            if steps.is_over() and self._pace.is_beside_singles():
                break
        steps.end()
