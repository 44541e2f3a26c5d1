"""What batches and single events want of the event loop, and how long work shares it with them and with consumers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from ingestd.support.pace import Pace

__all__ = ["FEW", "Demand", "Steps"]

FEW = 32
"""The most events of a batch that are handled without a pause beside single events."""

_IN_HAND = 2000  # events of batches: one commit's worth is written while the next one gathers
_IN_A_FLOOD = 200  # events of batches, once batches have wanted more than this for longer than a burst
_BESIDE_SINGLES = 64  # events of batches: single events wait for their commit
_BURST = 10.0  # seconds; a flood is over when batches have wanted no more than that for as long
_LONGEST_REST = 0.05  # seconds: work behind the answer continues slowly in a burst
_SINGLES = 1.0  # seconds after a single event in which long work expects another one
_STEP = 0.005  # seconds of long work without a pause
_SHORT_STEP = 0.001  # seconds, beside single events
_REST = 2.0  # times as long as a short step: the part of the event loop that single events find free


class Demand:
    """Tells how much long work the event loop does at once. Long work is that of batches and large events.

    Without single events, a burst of batches is processed as fast as possible, in long turns of the event loop. All
    other work waits for these turns: sinks and other consumers for many. A flood lasts longer than a burst. In it
    consumers would fall ever further behind, and the journal would fill up with records that they have not read. So
    fewer events of batches are in progress in a flood: turns stay short, and all work gets its share.

    Beside single events, long work has a third of the event loop, in short steps with a rest behind each. So most
    single events find the loop free, whatever else callers send.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.single_at = float("-inf")
        """When the latest single event came."""
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
        self._owed = 0.0
        """Seconds of rest that short pieces have not taken yet."""

    def want(self, change: int) -> None:
        """Note so many more events of batches that are in progress or wait for their turn."""
        self._note_pressure()
        self._wanted += change
        self._note_calm()

    def is_beside_singles(self) -> bool:
        return self.clock() - self.single_at < _SINGLES

    def most_of_batches(self) -> int:
        """The most events of batches that may be in progress now."""
        self._note_pressure()
        if self.is_beside_singles():
            return _BESIDE_SINGLES
        return _IN_A_FLOOD if self._flood else _IN_HAND

    def most_pieces(self) -> int:
        """The most pieces of long work that may use the event loop now."""
        return 1 if self.is_beside_singles() else _IN_HAND

    def rest(self, took: float) -> float:
        """The seconds that single events need the loop behind a step that took so many."""
        if not self.is_beside_singles():
            self._owed = 0.0
            return 0.0
        self._owed += _REST * took
        if self._owed < _SHORT_STEP:  # a timer has no shorter time
            return 0.0
        rest, self._owed = self._owed, 0.0
        return rest

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

    def _note_pressure(self) -> None:
        """Update for how long batches have wanted more events than `_IN_A_FLOOD`."""
        now = self.clock()
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


_NONE = Demand()


class Steps(Pace):
    """The steps of one piece of long work on the event loop. A context manager, which ends the piece."""

    __slots__ = ("_demand", "_release", "share")

    def __init__(self, demand: Demand = _NONE, release: Callable[[], None] | None = None) -> None:
        """`release` is called when the piece has ended and single events have had the loop."""
        self._demand = demand
        self._since = demand.clock()
        self._release = release
        self.share = 1.0
        """The part of the work that these steps see: on some stores, the rest of it follows a round trip."""

    def is_over(self) -> bool:
        demand = self._demand
        now = demand.clock()
        took = now - self._since
        return took > _SHORT_STEP and (took > _STEP or now - demand.single_at < _SINGLES)

    async def pause(self) -> None:
        demand = self._demand
        await asyncio.sleep(_REST * (demand.clock() - self._since) if demand.is_beside_singles() else 0)
        self._since = demand.clock()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the piece of work, if it has not ended yet."""
        release, self._release = self._release, None
        if release is not None:
            rest = self._demand.rest((self._demand.clock() - self._since) / self.share)
            if rest:
                asyncio.get_running_loop().call_later(rest, release)
            else:
                release()
