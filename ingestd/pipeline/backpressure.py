"""How many events may be on their way to the disk, and how many of those in batches are in hand at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from ingestd.api.errors import Unavailable

from .turns import Turns

__all__ = ["Backpressure"]

_FULL_RETRY = 10  # seconds: what is full does not empty in one
_IN_HAND = 2000  # of batches: one commit's worth is written while the next one gathers
_USUAL_SIZE = 1024  # bytes of an event in a batch, which become up to forty times as many when it is parsed
_PARSED = 1 << 20  # bytes likewise: single events that wait for the store are parsed, and may be thousands
_LARGE_RECORDS = 8 << 20  # bytes
_IN_A_FLOOD = 200  # likewise, once batches have wanted more than this for as long as a burst may last
_BURST = 10.0  # seconds; and for as long they are to want no more, for the flood to be over
_LONGEST_REST = 0.05  # seconds: what is done behind the answer goes on, if slowly, also in a burst


class Backpressure:
    """At most `most` events are on their way to the disk at a time, whichever configuration they came under.

    A burst of batches is taken as fast as can be, and all else waits for the long turns of the event loop that this
    takes: single events for one or two, sinks and other consumers for many. In a flood, which goes on and on, these
    would fall ever further behind, and the journal fill up with what they have not read. So fewer events of batches are
    in hand then: turns are short, and all have theirs.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.waiting = 0
        self.refusing: str | None = None
        """Why no more events are stored; None: they are."""
        self._clock = clock
        self._looked = clock()
        self._pressed = 0.0
        """Seconds in which batches wanted more than a flood has in hand, less those in which they did not."""
        self._flood = False
        """Not whether they are so many now: few connections want nothing for a moment after each of their commits."""
        self._wanted = 0
        """Events of batches in hand, and of those that wait for their turn."""
        self._calm = asyncio.Event()
        """Set while there is no burst of batches."""
        self._calm.set()
        self._batches = Turns(self._most_of_batches)
        self.parsing = Turns(lambda: _PARSED)
        """Bytes of single events from when they are parsed until there is a record of them."""
        self.large_records = Turns(lambda: _LARGE_RECORDS)
        """Bytes of large records until they are durable: one may have four times the size of its request."""

    def refuse(self, reason: str | None) -> None:
        """Store no more events, and tell callers this reason; None: store them again."""
        self.refusing = reason

    def check(self) -> None:
        """Raises `Unavailable` while no more events are stored."""
        if self.refusing is not None:
            raise Unavailable(self.refusing, retry_after=_FULL_RETRY)

    def acquire(self, count: int) -> None:
        """Raises `Unavailable` where there is none; what was taken is to be given back."""
        # More than there is ever room for are taken when there is nothing else.
        if self.waiting and self.waiting + count > self.most:
            raise Unavailable("Too many events are waiting to be stored. Send it again.")
        self.waiting += count

    def release(self, count: int) -> None:
        self.waiting -= count

    async def give_way(self, seconds: float) -> None:
        """Sleep so long; and then until a burst of batches is over, for 50 ms at the most.

        For who does a little in each turn of the event loop: a burst would have it do next to nothing, and pay for it.
        """
        await asyncio.sleep(seconds)
        if not self._calm.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_REST):
                    await self._calm.wait()

    @contextlib.asynccontextmanager
    async def batch_slot(self, count: int, size: int = 0) -> AsyncIterator[None]:
        """Room for the events of a batch, and its turn: batches take turns in the order they come.

        `size` is how many bytes of it are worked on at a time. A batch of few large events counts by that.

        Many at once would not be done sooner: a batch in hand is thousands of objects, and all of them together would
        push one another out of the processor's cache and be looked through by the garbage collector again and again.
        Raises `Unavailable` where there is no room.
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
        """Learn for how long batches have wanted as much as they do."""
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
