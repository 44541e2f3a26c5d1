"""The monitor of the event loop: it names the plugin, sink or consumer that holds the loop while all others wait.

The loop sets a deadline twenty times a second, and measures how late it is. A thread looks at the loop's stack when a
deadline is missed, so an event costs nothing more. Time in which the process was suspended, or had no processor, counts
for no holder.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ingestd.support.periodic import TIMING

from .loop_holder import Holder, find_holder

__all__ = ["COLLECTOR", "CORE", "HELD", "HoldLog", "LoopMonitor"]

_log = logging.getLogger("ingestd.loop")

HELD = 0.1  # seconds; a longer hold is reported
CORE = "ingestd"
"""The holder of the loop when no plugin holds it."""
COLLECTOR = "gc"
"""Python's garbage collector."""

_LATE = 0.04  # seconds after a missed deadline until the thread looks
_LOOK = 0.02  # seconds between two looks
_OVERSLEPT = 0.01  # seconds by which the monitor's thread may be late
_BEFORE = 0.025  # seconds for which the loop had been held, on average, when a deadline passed
_JUDGED = HELD - _BEFORE
_QUIET = 600.0  # seconds without a hold after which a holder's count starts again at 1


class _Reading(NamedTuple):
    """The scheduler's times of the loop's thread, in seconds."""

    at: float
    ran: float
    waited: float
    """The time spent waiting for a processor."""


class _Look(NamedTuple):
    deadline: float
    before: _Reading
    now: _Reading
    pause: float
    """The sleep that the monitor's thread intended between these two readings."""
    holder: Holder | None


class LoopMonitor:
    """`modules` returns plugin names by module. Each hold calls `count` with the holder's name and seconds.

    `observe` gets the delay of the loop in seconds at each deadline. A longer delay than between two is always seen.
    """

    def __init__(
        self,
        modules: Callable[[], Mapping[str, str]],
        count: Callable[[str, float], None],
        observe: Callable[[float], None],
    ) -> None:
        self._modules = modules
        self._count = count
        self._observe = observe
        self._holds = HoldLog()
        self._deadline = 0.0
        self._set = _Reading(0.0, 0.0, 0.0)
        """The reading at the moment when the deadline was set."""
        self._looks: list[_Look] = []
        self._collecting_since = self._collected = 0.0
        self._ended = threading.Event()
        self._statistics = -1

    async def run(self) -> None:
        """Watch the running loop. Never returns."""
        loop = asyncio.get_running_loop()
        beat = loop.call_later(0, lambda: None)

        def go_on() -> None:  # not `every`: its task would see each deadline a turn of the loop later
            nonlocal beat
            self._beat(loop.time())
            beat = loop.call_later(TIMING.loop_monitor, go_on)

        self._statistics = _open_statistics()
        self._deadline = loop.time()
        go_on()
        thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="loop monitor", daemon=True)
        gc.callbacks.append(self._collecting)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            beat.cancel()
            gc.callbacks.remove(self._collecting)
            self._ended.set()
            thread.join()
            if self._statistics >= 0:
                os.close(self._statistics)

    def _beat(self, now: float) -> None:
        if self._looks:
            taken, self._looks = self._looks, []  # looks keep frames alive, with all their objects
            looks = [look for look in taken if look.deadline == self._deadline]
            late = now - self._deadline
            if looks and late >= _JUDGED:
                self._judge(looks, late, now)
        self._observe(max(0.0, now - self._deadline))
        self._collected = 0.0
        self._set = _read(self._statistics, now)
        self._deadline = now + TIMING.loop_monitor

    def _judge(self, looks: Sequence[_Look], late: float, now: float) -> None:
        """Report the longest call since the deadline if it is long enough, otherwise only count the time."""
        if self._collected >= late / 2:
            self._count(COLLECTOR, self._collected)
            return
        end = _read(self._statistics, now)
        longest, holder = 0.0, None
        for frame, group in groupby(looks, lambda look: look.holder and look.holder.frame):
            during = [*group]
            seconds = _spent(during, end if during[-1] is looks[-1] else during[-1].now)
            if frame is not None and seconds > longest:
                longest, holder = seconds, during[-1].holder
        if holder is not None and longest >= _JUDGED:
            self._count(holder.name, longest + _BEFORE)
            self._holds.report(holder, longest + _BEFORE, now)
        elif (spent := _spent(looks, end)) >= _JUDGED:
            self._count(CORE, spent + _BEFORE)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self._collected += time.monotonic() - self._collecting_since

    def _watch(self, loop_thread: int) -> None:
        """The monitor's thread: look at the loop's stack after each missed deadline."""
        pause, reading = _LATE, _Reading(0.0, 0.0, 0.0)
        while not self._ended.wait(pause):
            deadline, now = self._deadline, time.monotonic()
            if now - deadline < _LATE:
                pause = max(_LOOK, deadline + _LATE - now)
                continue
            frame = sys._current_frames().get(loop_thread)
            holder = find_holder(frame, self._modules())
            del frame  # it would keep the objects on the loop's stack alive until the next look
            before, reading = reading, _read(self._statistics, now)
            if before.at < deadline:
                # The loop may have run from setting the deadline to the deadline, and waited ever since.
                before, pause = _Reading(deadline, self._set.ran + TIMING.loop_monitor, self._set.waited), _LATE
            self._looks.append(_Look(deadline, before, reading, pause, holder))
            pause = _LOOK


class HoldLog:
    """Logs the 1st, 2nd, 4th, 8th … hold of each holder, like the failures of a sink."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def report(self, holder: Holder, seconds: float, now: float) -> None:
        """`now` is in seconds, by a monotonic clock."""
        name = holder.name
        if now - self._last.get(name, now) >= _QUIET:
            self._counts[name] = 0
        self._last[name] = now
        count = self._counts[name] = self._counts.get(name, 0) + 1
        if count & (count - 1) == 0:
            _log.warning(
                "%s held the event loop for %.2f s in %s (%s, line %d), and everything else waited; holds lately: %d",
                holder.text, seconds, holder.function, holder.module, holder.line, count,
            )  # fmt: skip


def _spent(looks: Sequence[_Look], end: _Reading) -> float:
    """The seconds in which the loop's thread worked, slept or waited for a system call during these looks.

    A late look has one of two reasons: the process was suspended, or the loop's thread let no other thread run. In the
    second case the loop's thread ran the whole time. Time in which it waited for a processor is no time of suspension,
    so it counts against the time that the looks allow.
    """
    begin = looks[0].before
    elapsed = end.at - begin.at
    most = sum(look.pause + _OVERSLEPT for look in looks)
    if end is not looks[-1].now:
        most += _LOOK + _OVERSLEPT
    return min(elapsed, max(end.ran - begin.ran, min(elapsed, most) - (end.waited - begin.waited)))


def _open_statistics() -> int:
    """A descriptor of this thread's scheduler statistics, -1 on a system without them."""
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(statistics: int, at: float) -> _Reading:
    """The times for which a thread has run and waited, 0 on a system without statistics."""
    if statistics < 0:
        return _Reading(at, 0.0, 0.0)
    ran, waited, _ = os.pread(statistics, 100, 0).split()
    return _Reading(at, int(ran) / 1e9, int(waited) / 1e9)
