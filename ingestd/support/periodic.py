"""Periodic work of a daemon, and its times. `make docs` makes a page of the comments."""

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

    clocks: float = 1.0  # compares the daemon's clock with the system's and the store's
    consumers: float = 0.25  # reads the journal's end and other daemons' cursors; without new records every 2 s
    erasures: float = 1.0  # drops texts from memory after `ingestd forget`; with many partitions up to 10 s
    http_timeouts: float = 0.25  # refuses or closes connections that have taken too long
    keys: float = 0.5  # reads keys that commands have changed
    loop_monitor: float = 0.05  # measures the delay of the event loop
    losses: float = 0.25  # looks for a loss of data in the store
    memory: float = 0.25  # returns free memory to the system
    overview: float = 5.0  # adds a sample to the charts of the operators' page
    ownership: float = 3.0  # renews the mark that a state belongs to this journal, if both have different URLs
    placements: float = 2.0  # reads which tenants `partitions place` has moved; every 0.2 s while one moves
    redis_follow: float = 0.05  # waits up to 1 s for records of other daemons; with many partitions every 0.2 s
    retention: float = 1.0  # removes records of the journal; with `max_size` every 0.1 s
    sqlite_checkpoints: float = 0.05  # moves commits from the write-ahead log into the file
    sqlite_clean: float = 2.0  # empties the write-ahead log some seconds after a removal
    sqlite_control: float = 0.25  # applies the requests of commands
    sqlite_presence: float = 1.0  # makes the filter of absent keys, if there is none or it is full
    sqlite_probe: float = 0.5  # tries a commit while commits fail
    sqlite_renewals: float = 1.0  # writes renewed lives of entries
    sqlite_shrinking: float = 0.5  # returns free pages of the file to the system
    sqlite_sweep: float = 0.1  # removes entries whose life has ended
    state_sizes: float = 5.0  # measures the state; with many partitions up to 30 s, unchanged every sixth time
    systemd: float = 5.0  # updates the service's status; feeds the watchdog three times in its period

    # Further times
    http_head: float = 10.0  # in which the headers of a request must arrive
    next_action: float = 0.8  # until a sink is asked for its next action; with many partitions up to 5 s
    plugin_shutdown: float = 10.0  # that the `shutdown` of a plugin may take
    plugin_startup: float = 120.0  # that the `startup` of a plugin may take
    ownership_silence: float = 10.0  # of silence after which the daemon of another journal takes a state over
    redis_cursor: float = 0.5  # between two attempts to acquire the cursor of a consumer
    redis_heartbeat: float = 1.5  # between two beats, which renew leases; in all but one partition of a node up to 10 s
    redis_lease: float = 5.0  # of silence, and the pause between beats, after which a cursor is taken over
    redis_report: float = 10.0  # of silence in which a daemon counts as running
    redis_report_shared: float = 6.0  # the same in a cluster; in partitions with rare beats up to 15 s
    redis_slot_repair: float = 60.0  # of waiting for the rest of a slot before a loss is reported
    shutdown_grace: float = 1.0  # that a stop keeps quiet connections open, so that a request on its way is answered
    sink_commands: float = 0.4  # between two looks for commands of operators
    viewer_lingers: float = 10.0  # that live events are kept for a browser that connects again
    wait_told: float = 2.0  # of waiting after which a start or a stop tells of it, and every 10 s again


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
