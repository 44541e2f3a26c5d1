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
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import NamedTuple, Protocol

from ingestd.api.consumer import Consumer
from ingestd.api.sink import Sink
from ingestd.support.periodic import TIMING

__all__ = ["COLLECTOR", "CORE", "HELD", "HoldLog", "Holder", "LoopMonitor", "plugin_modules"]

_log = logging.getLogger("ingestd.loop")

HELD = 0.1  # seconds; a longer hold is reported
CORE = "ingestd"
"""The holder of the loop when no plugin holds it."""
COLLECTOR = "gc"
"""Python's garbage collector."""

_HOOKS = "ingestd.hooks.caller"
_LATE = 0.04  # seconds after a missed deadline until the thread looks
_LOOK = 0.02  # seconds between two looks
_OVERSLEPT = 0.01  # seconds by which the monitor's thread may be late
_BEFORE = 0.025  # seconds for which the loop had been held, on average, when a deadline passed
_JUDGED = HELD - _BEFORE
_QUIET = 600.0  # seconds without a hold after which a holder's count starts again at 1


class LoadedPlugin(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...


class Holder(NamedTuple):
    """`name` is a plugin's name, `sink:NAME`, or a consumer's name. `frame` distinguishes calls."""

    name: str
    text: str
    """The name in a log line."""
    function: str
    module: str
    line: int
    frame: FrameType


class _Reading(NamedTuple):
    """The scheduler's times of the loop's thread, in seconds."""

    at: float
    ran: float
    waited: float
    """The time spent waiting for a processor."""

    def worked(self, since: _Reading, pause: float) -> float:
        """The seconds in which the loop's thread worked, slept or waited for a system call since a reading.

        `pause` is the sleep that the monitor's thread intended in between. A late look has one of two reasons: the
        process was suspended, or the loop's thread let no other thread run, and so ran the whole time itself. Time in
        which it waited for a processor is no time of suspension.
        """
        elapsed = self.at - since.at
        awake = min(elapsed, pause + _OVERSLEPT) - (self.waited - since.waited)
        return min(elapsed, max(self.ran - since.ran, awake))


class _Delay(NamedTuple):
    """The looks at the loop's stack since a missed deadline."""

    deadline: float
    reading: _Reading
    """The reading of the last look."""
    holder: Holder | None = None
    """The holder in the last look."""
    seconds: float = 0.0
    """The time of its call so far."""
    longest: tuple[float, Holder | None] = (0.0, None)
    """The longest call of a holder that is no longer there."""
    worked: float = 0.0
    """The time of all calls."""

    def after(self, reading: _Reading, holder: Holder | None, pause: float) -> _Delay:
        """The time since the last look counts for the holder that this look finds."""
        worked = reading.worked(self.reading, pause)
        is_same = (holder and holder.frame) is (self.holder and self.holder.frame)
        return _Delay(
            self.deadline, reading, holder, (self.seconds if is_same else 0.0) + worked,
            self.longest if is_same else self.longest_call, self.worked + worked,
        )  # fmt: skip

    @property
    def longest_call(self) -> tuple[float, Holder | None]:
        return (self.seconds, self.holder) if self.holder and self.seconds > self.longest[0] else self.longest


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
        self._delay: _Delay | None = None
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
        late, delay = now - self._deadline, self._delay
        self._delay = None  # its frame keeps objects alive
        if delay is not None and delay.deadline == self._deadline and late >= _JUDGED:
            self._judge(delay, late, now)
        self._observe(max(0.0, late))
        self._collected = 0.0
        self._set = _read(self._statistics, now)
        self._deadline = now + TIMING.loop_monitor

    def _judge(self, delay: _Delay, late: float, now: float) -> None:
        """Report the longest call since the deadline if it is long enough, otherwise only count the time."""
        if self._collected >= late / 2:
            self._count(COLLECTOR, self._collected)
            return
        delay = delay.after(_read(self._statistics, now), delay.holder, _LOOK)
        longest, holder = delay.longest_call
        if holder is not None and longest >= _JUDGED:
            self._count(holder.name, longest + _BEFORE)
            self._holds.report(holder, longest + _BEFORE, now)
        elif delay.worked >= _JUDGED:
            self._count(CORE, delay.worked + _BEFORE)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self._collected += time.monotonic() - self._collecting_since

    def _watch(self, loop_thread: int) -> None:
        """The monitor's thread: look at the loop's stack after each missed deadline."""
        pause = _LATE
        while not self._ended.wait(pause):
            deadline, now = self._deadline, time.monotonic()
            if now - deadline < _LATE:
                pause = max(_LOOK, deadline + _LATE - now)
                continue
            holder = _find_holder(sys._current_frames().get(loop_thread), self._modules())
            delay, pause = self._delay, _LOOK
            if delay is None or delay.deadline != deadline:
                # The loop may have run from setting the deadline to the deadline, and waited ever since.
                delay = _Delay(deadline, _Reading(deadline, self._set.ran + TIMING.loop_monitor, self._set.waited))
                pause = _LATE
            self._delay = delay.after(_read(self._statistics, now), holder, pause)
            del holder, delay  # they would keep the objects on the loop's stack alive until the next look
            pause = _LOOK


class HoldLog:
    """Logs the 1st, 2nd, 4th, 8th … hold of each holder, like the failures of a sink."""

    def __init__(self) -> None:
        self._holds: dict[str, tuple[int, float]] = {}
        """The number of holds and the time of the last one, by holder."""

    def report(self, holder: Holder, seconds: float, now: float) -> None:
        """`now` is in seconds, by a monotonic clock."""
        count, last = self._holds.get(holder.name, (0, now))
        count = 1 if now - last >= _QUIET else count + 1
        self._holds[holder.name] = count, now
        if count & (count - 1) == 0:
            _log.warning(
                "%s held the event loop for %.2f s in %s (%s, line %d), and everything else waited; holds lately: %d",
                holder.text, seconds, holder.function, holder.module, holder.line, count,
            )  # fmt: skip


def plugin_modules(plugins: Iterable[LoadedPlugin]) -> Mapping[str, str]:
    """Plugin names by module and by top-level package."""
    found: dict[str, str] = {}
    for plugin in plugins:
        module = plugin.source.partition(":")[0]
        found[module] = plugin.name
        package = module.partition(".")[0]
        if package != "ingestd":
            found.setdefault(package, plugin.name)
    return found


def _find_holder(frame: FrameType | None, modules: Mapping[str, str]) -> Holder | None:
    """The holder in a thread's stack from its innermost frame, None for ingestd itself and libraries.

    A hook takes precedence over a sink or consumer. These take precedence over a plugin's other code, such as timers.
    """
    sink = consumer = other = called = None
    while frame is not None:
        module, names = frame.f_globals.get("__name__", ""), frame.f_locals
        if module == _HOOKS:
            plugin = names.get("plugin")
            if called is not None and isinstance(plugin, str):
                return _holder(called, plugin, f"plugin {plugin}", str(names.get("hook", frame.f_code.co_name)))
        else:
            called = frame
            is_method = frame.f_code.co_argcount > 0 and frame.f_code.co_varnames[0] == "self"
            owner = names.get("self") if is_method else None
            if isinstance(owner, Sink):
                sink = _holder(frame, f"sink:{owner.name}", f"sink:{owner.name}")
            elif isinstance(owner, Consumer):
                consumer = _holder(frame, owner.name, owner.name)
            elif (plugin := _plugin_of(module, modules)) is not None:
                other = _holder(frame, plugin, f"plugin {plugin}")
        frame = frame.f_back
    return sink or consumer or other


def _holder(frame: FrameType, name: str, text: str, function: str | None = None) -> Holder:
    module = frame.f_globals.get("__name__", "")
    return Holder(name, text, function or frame.f_code.co_name, module, frame.f_lineno, frame)


def _plugin_of(module: str, modules: Mapping[str, str]) -> str | None:
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return modules.get(module)


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
