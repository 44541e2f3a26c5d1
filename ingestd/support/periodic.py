"""Periodic work of a daemon, and its times. docs/periodic-work.md lists both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

__all__ = ["TIMING", "Timing", "every", "seconds_between_looks", "seconds_between_steps"]

_log = logging.getLogger("ingestd.periodic")

_LOOKS = 20  # a second, of one kind, in all partitions together
_STEPS = 125  # a second, of one consumer, in all partitions together, while its steps are not full
_MOST_STEP = 1.0  # seconds


@dataclass
class Timing:
    """The times of a daemon in seconds. No option changes them; tests make them shorter."""

    clocks: float = 1.0
    consumers: float = 0.25
    erasures: float = 1.0
    http_timeouts: float = 0.25
    keys: float = 0.5
    loop_monitor: float = 0.05
    losses: float = 0.25
    memory: float = 0.25
    overview: float = 5.0
    ownership: float = 3.0
    placements: float = 2.0
    redis_follow: float = 0.05
    retention: float = 1.0
    sqlite_checkpoints: float = 0.05
    sqlite_clean: float = 2.0
    sqlite_control: float = 0.25
    sqlite_presence: float = 1.0
    sqlite_probe: float = 0.5
    sqlite_renewals: float = 1.0
    sqlite_shrinking: float = 0.5
    sqlite_sweep: float = 0.1
    state_sizes: float = 5.0
    systemd: float = 5.0

    # Further times, by which others wait for a daemon
    next_action: float = 0.8
    plugin_shutdown: float = 10.0
    plugin_startup: float = 120.0
    ownership_silence: float = 10.0
    redis_cursor: float = 0.5
    redis_heartbeat: float = 1.5
    redis_lease: float = 5.0
    redis_report: float = 10.0
    redis_report_shared: float = 6.0
    redis_slot_repair: float = 60.0
    sink_commands: float = 0.4
    viewer_lingers: float = 10.0
    wait_told: float = 2.0


TIMING = Timing()
"""The times of this process."""


async def every(
    name: str,
    step: Callable[[], Awaitable[float | None] | float | None],
    *,
    first: float | None = None,
    pause: float | None = None,
    may_fail: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Do a step again and again, until cancelled, with `pause` seconds after each: by default those of `Timing`.

    The first step comes after `first` seconds, or after a pause. A step that returns a number replaces the next pause
    by so many seconds. Errors of `may_fail` are expected, and the next step tries again. Any other ends the work.
    """
    usual: float = getattr(TIMING, name) if pause is None else pause
    await asyncio.sleep(usual if first is None else first)
    while True:
        following = None
        try:
            done = step()
            following = await done if isinstance(done, Awaitable) else done
        except may_fail as error:
            _log.debug("%s: %s", name, error)
        await asyncio.sleep(usual if following is None else following)


def seconds_between_looks(seconds: float, partitions: int, most: float) -> float:
    """The pause between two looks of one kind at one of so many partitions.

    It is `seconds` for one partition. For many it grows with their number, so that the looks at all of them cost no
    more, until it is `most` seconds.
    """
    return max(seconds, min((partitions - 1) / _LOOKS, most))


def seconds_between_steps(partitions: int) -> float:
    """The pause between the starts of two steps of a consumer in one of so many partitions.

    The records of many partitions come one by one: a step for each of them would cost more than the events.
    """
    return min((partitions - 1) / _STEPS, _MOST_STEP)
