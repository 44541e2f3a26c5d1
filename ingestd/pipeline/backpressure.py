"""Limits on the events in progress: on all until they are durable, and on those of batches that are worked on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from ingestd.api.errors import Unavailable

from .turns import Turns

__all__ = ["Backpressure"]

_FULL_RETRY = 10  # seconds: a full journal does not empty in one second
_IN_HAND = 2000  # events of batches: one commit's worth is written while the next one gathers
_USUAL_SIZE = 1024  # bytes of an event in a batch; parsed, it takes up to forty times as many
_PARSED = 1 << 20  # bytes of single events that are parsed and wait for the store; there may be thousands
_LARGE_RECORDS = 8 << 20  # bytes
_IN_A_FLOOD = 200  # events of batches, once batches have wanted more than this for longer than a burst
_BURST = 10.0  # seconds; a flood is over when batches have wanted no more than that for as long
_LONGEST_REST = 0.05  # seconds: work behind the answer continues slowly in a burst


class Backpressure:
    """Keeps at most `most` events in progress, of all generations of the configuration together.

    A burst of batches is processed as fast as possible, in long turns of the event loop. All other work waits for these
    turns: single events for one or two, sinks and other consumers for many. A flood lasts longer than a burst. In it
    consumers would fall ever further behind, and the journal would fill up with records that they have not read. So
    fewer events of batches are in progress in a flood: turns stay short, and all work gets its share.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.waiting = 0
        self.refusing: str | None = None
        """The reason why no more events are stored; None: they are stored."""
        self._clock = clock
        self._looked = clock()
        self._pressed = 0.0
        """Seconds in which batches wanted more than `_IN_A_FLOOD` events, less the seconds in which they did not."""
        self._flood = False
        """Whether there is a flood. A short pause does not end it: a few connections pause after each commit."""
        self._wanted = 0
        """Events of batches that are in progress or wait for their turn."""
        self._calm = asyncio.Event()
        """Set while there is no burst of batches."""
        self._calm.set()
        self._batches = Turns(self._most_of_batches)
        self.parsing = Turns(lambda: _PARSED)
        """Bytes of single events from their parsing until their record."""
        self.large_records = Turns(lambda: _LARGE_RECORDS)
        """Bytes of large records until they are durable. A record may be four times as long as its request."""

    def refuse(self, reason: str | None) -> None:
        """Store no more events, and give callers this reason; None: store events again."""
        self.refusing = reason

    def check(self) -> None:
        """Raise `Unavailable` while no more events are stored."""
        if self.refusing is not None:
            raise Unavailable(self.refusing, retry_after=_FULL_RETRY)

    def acquire(self, count: int) -> None:
        """Take room for so many events, until `release`. Raises `Unavailable` if there is none."""
        # A batch of more than `most` events is taken while no other event is in progress.
        if self.waiting and self.waiting + count > self.most:
            raise Unavailable("Too many events are waiting to be stored. Send the request again.")
        self.waiting += count

    def release(self, count: int) -> None:
        self.waiting -= count

    async def give_way(self, seconds: float) -> None:
        """Sleep for so long, and then until a burst of batches is over, but for at most 50 ms more.

        This is for work that does a little in each turn of the event loop. In the long turns of a burst that work
        would achieve next to nothing, at a cost.
        """
        await asyncio.sleep(seconds)
        if not self._calm.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_REST):
                    await self._calm.wait()

    @contextlib.asynccontextmanager
    async def batch_slot(self, count: int, size: int = 0) -> AsyncIterator[None]:
        """Take room for the events of a batch, and wait for its turn. Batches get their turns in order of arrival.

        `size` is how many of its bytes are processed at a time. A batch of a few large events counts by its bytes.

        Many batches at once would not end sooner. Each is thousands of objects: together they would push each other out
        of the processor's cache, and the garbage collector would scan them again and again. Raises `Unavailable` if
        there is no room.
        """
        self.acquire(count)
        self._want(count)
        weight = max(count, size // _USUAL_SIZE)
        try:
            await self._batches.begin(weight)
            try:
                yield
            finally:
                self._batches.end(weight)
        finally:
            self._want(-count)
            self.release(count)

    def _want(self, change: int) -> None:
        self._look()
        self._wanted += change
        self._note_calm()

    def _most_of_batches(self) -> int:
        self._look()
        return _IN_A_FLOOD if self._flood else _IN_HAND

    def _look(self) -> None:
        """Update for how long batches have wanted more events than `_IN_A_FLOOD`."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        change = passed if self._wanted > _IN_A_FLOOD else -passed
        self._pressed = min(max(0.0, self._pressed + change), _BURST)
        if self._pressed in {0.0, _BURST}:
            self._flood = self._pressed == _BURST
            self._note_calm()

    def _note_calm(self) -> None:
        if self._wanted > _IN_A_FLOOD and not self._flood:
            self._calm.clear()
        else:
            self._calm.set()
