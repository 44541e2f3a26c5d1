"""Bursts and floods of batches: how much of them is processed at once, and when other work must give way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

__all__ = ["Bursts"]

_IN_HAND = 2000  # events of batches: one commit's worth is written while the next one gathers
_IN_A_FLOOD = 200  # events of batches, once batches have wanted more than this for longer than a burst
_BURST = 10.0  # seconds; a flood is over when batches have wanted no more than that for as long
_LONGEST_REST = 0.05  # seconds: work behind the answer continues slowly in a burst


class Bursts:
    """Tells a burst of batches from a flood.

    A burst of batches is processed as fast as possible, in long turns of the event loop. All other work waits for these
    turns: single events for one or two, sinks and other consumers for many. A flood lasts longer than a burst. In it
    consumers would fall ever further behind, and the journal would fill up with records that they have not read. So
    fewer events of batches are in progress in a flood: turns stay short, and all work gets its share.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
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

    def want(self, change: int) -> None:
        """Note so many more events of batches that are in progress or wait for their turn."""
        self._look()
        self._wanted += change
        self._note_calm()

    def most_of_batches(self) -> int:
        """The most events of batches that may be in progress now."""
        self._look()
        return _IN_A_FLOOD if self._flood else _IN_HAND

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
