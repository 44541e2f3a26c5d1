"""Limits on the events in progress: on all until they are durable, and on those of batches that are worked on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from ingestd.api.errors import Unavailable
from ingestd.api.events import Request

from .pace import Pace
from .room import Place, Room
from .turns import Sender, Turns

__all__ = ["Backpressure"]

_FULL_RETRY = 10  # seconds: a full journal does not empty in one second
_MOST_BUFFERED = 24 << 20  # bytes
_PARSED = 1 << 20  # bytes of single events that are parsed and wait for the store; there may be thousands
_LARGE_RECORDS = 8 << 20  # bytes


class Backpressure:
    """Limits the events in progress of one partition, of all generations of the configuration together.

    All partitions of a daemon share its limits: each further one is made `beside` the first. But a partition whose
    store hangs must not take the room of the others. So each may have its fair part of a limit, even if the others have
    used the limit up. In each kind of turns, that is one piece of work.
    """

    def __init__(
        self,
        most: int = 0,
        most_buffered: int = _MOST_BUFFERED,
        *,
        pace: Pace | None = None,
        beside: Backpressure | None = None,
    ) -> None:
        """`most` and `most_buffered` are those of `Room`."""
        self._singles = 0
        self._refusing: str | None = None
        """The reason why no more events of the partition are stored; None: they are stored."""
        self.room: Room = Room(most, most_buffered) if beside is None else beside.room
        self.room.partitions += 1
        self.pace: Pace = (pace or Pace()) if beside is None else beside.pace
        self._batches: Turns = Turns(self.pace.most_of_batches, None if beside is None else beside._batches)
        self.parsing: Turns = Turns(lambda: _PARSED, None if beside is None else beside.parsing)
        """Bytes of single events from their parsing until their record."""
        self.large_records: Turns = Turns(lambda: _LARGE_RECORDS, None if beside is None else beside.large_records)
        """Bytes of large records until they are durable. A record may be four times as long as its request."""

    @property
    def waiting(self) -> int:
        """The number of events in progress, of all partitions."""
        return self.room.singles + self.room.events

    def refuse(self, reason: str | None) -> None:
        """Store no more events of the partition, and give callers this reason; None: store events again."""
        self._refusing = reason

    def check(self) -> None:
        """Raise `Unavailable` while no more events of the partition are stored."""
        if self._refusing is not None:
            raise Unavailable(self._refusing, retry_after=_FULL_RETRY)

    def acquire(self, *, signed: bool = False) -> None:
        """Take room for a single event, until `release`. Raises `Unavailable` if there is none."""
        room = self.room
        most = room.most_signed if signed else room.most
        if room.singles >= most and self._singles and self._singles >= most // room.partitions:
            raise Unavailable("Too many events are waiting to be stored. Send the request again.")
        self._singles += 1
        room.singles += 1

    def release(self) -> None:
        self._singles -= 1
        self.room.singles -= 1

    @contextlib.contextmanager
    def place(self, request: Request) -> Iterator[Place]:
        """A place in the room for a batch or large event."""
        place = Place(self.room, request)
        try:
            yield place
        finally:
            place.leave()

    @contextlib.asynccontextmanager
    async def turn(self, weight: int, sender: Sender) -> AsyncIterator[None]:
        """Wait until so many events of a batch may be in progress.

        Many batches at once would not end sooner. Each is thousands of objects: together they would push each other out
        of the processor's cache, and the garbage collector would scan them again and again.
        """
        await self._batches.begin(weight, sender)
        try:
            yield
        finally:
            self._batches.end(weight)
