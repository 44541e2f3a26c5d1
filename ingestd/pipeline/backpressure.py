"""Limits on the events in progress: on all until they are durable, and on those of batches that are worked on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable

from ingestd.api.errors import Unavailable

from .bursts import Bursts
from .turns import Turns

__all__ = ["Backpressure"]

_FULL_RETRY = 10  # seconds: a full journal does not empty in one second
_USUAL_SIZE = 1024  # bytes of an event in a batch; parsed, it takes up to forty times as many
_PARSED = 1 << 20  # bytes of single events that are parsed and wait for the store; there may be thousands
_LARGE_RECORDS = 8 << 20  # bytes


class Backpressure:
    """Limits the events in progress of one partition, of all generations of the configuration together.

    All partitions of a daemon share its limits: each further one is made `beside` the first. But a partition whose
    store hangs must not take the room of the others. So each may have its fair part of `most` in progress, even if the
    others have used `most` up. The same holds for one piece of work in each kind of turns.
    """

    def __init__(
        self, most: int = 0, clock: Callable[[], float] = time.monotonic, *, beside: Backpressure | None = None
    ) -> None:
        self._waiting = 0
        self._refusing: str | None = None
        """The reason why no more events of the partition are stored; None: they are stored."""
        self._room: _Room = _Room(most) if beside is None else beside._room
        self._room.partitions += 1
        self._bursts: Bursts = Bursts(clock) if beside is None else beside._bursts
        self.give_way = self._bursts.give_way
        self._batches: Turns = Turns(self._bursts.most_of_batches, None if beside is None else beside._batches)
        self.parsing: Turns = Turns(lambda: _PARSED, None if beside is None else beside.parsing)
        """Bytes of single events from their parsing until their record."""
        self.large_records: Turns = Turns(lambda: _LARGE_RECORDS, None if beside is None else beside.large_records)
        """Bytes of large records until they are durable. A record may be four times as long as its request."""

    @property
    def waiting(self) -> int:
        """The number of events in progress, of all partitions."""
        return self._room.waiting

    def adopt(self, most: int) -> None:
        """Set the most events in progress, for all partitions."""
        self._room.most = most

    def refuse(self, reason: str | None) -> None:
        """Store no more events of the partition, and give callers this reason; None: store events again."""
        self._refusing = reason

    def check(self) -> None:
        """Raise `Unavailable` while no more events of the partition are stored."""
        if self._refusing is not None:
            raise Unavailable(self._refusing, retry_after=_FULL_RETRY)

    def acquire(self, count: int) -> None:
        """Take room for so many events, until `release`. Raises `Unavailable` if there is none."""
        # A batch of more than `most` events is taken while no other event is in progress.
        room = self._room
        if room.waiting + count > room.most and self._waiting and self._waiting + count > room.most // room.partitions:
            raise Unavailable("Too many events are waiting to be stored. Send the request again.")
        self._waiting += count
        room.waiting += count

    def release(self, count: int) -> None:
        self._waiting -= count
        self._room.waiting -= count

    @contextlib.asynccontextmanager
    async def batch_slot(self, count: int, size: int = 0) -> AsyncIterator[None]:
        """Take room for the events of a batch, and wait for its turn. Batches get their turns in order of arrival.

        `size` is how many of its bytes are processed at a time. A batch of a few large events counts by its bytes.

        Many batches at once would not end sooner. Each is thousands of objects: together they would push each other out
        of the processor's cache, and the garbage collector would scan them again and again. Raises `Unavailable` if
        there is no room.
        """
        self.acquire(count)
        self._bursts.want(count)
        weight = max(count, size // _USUAL_SIZE)
        try:
            await self._batches.begin(weight)
            try:
                yield
            finally:
                self._batches.end(weight)
        finally:
            self._bursts.want(-count)
            self.release(count)


class _Room:
    """The room for the events of all partitions."""

    __slots__ = ("most", "partitions", "waiting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.partitions = 0
        self.waiting = 0
