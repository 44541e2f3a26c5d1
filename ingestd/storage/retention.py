"""Retention: removes the oldest records of the journal, and refuses events while the journal is full."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.api.journal import Journal, JournalStats
from ingestd.config import JournalOptions
from ingestd.consumers.group import Consumers
from ingestd.support.periodic import TIMING, every, seconds_between_looks

__all__ = ["Retention", "room_below"]

_log = logging.getLogger("ingestd.retention")

_STEP = 500  # records of one step, whose commit takes a few milliseconds at most
_PAUSE = 0.01  # seconds between two steps, for other commits
_MOST_LOOK = 10.0  # seconds between two looks at one of many partitions, when there is nothing to remove
_WATCH = 0.1  # seconds between two looks with `max_size`: records that arrive between two looks exceed the limit
_ROOM = 64 * 1024 * 1024  # bytes below the limit to which a full journal is trimmed; a twentieth of a small limit
_QUIET = 60.0  # seconds between two log lines about the losses of one consumer


class Retention:
    """Applies `[journal] keep_for`, `keep_size` and `max_size` to one journal, in steps too short to delay answers.

    The oldest records are removed first. So records that all consumers have processed are removed before others.
    `refuse` is called with the reason when events must be refused, and with None when they are accepted again.
    """

    def __init__(
        self,
        journal: Journal,
        options: JournalOptions,
        consumers: Consumers,
        *,
        refuse: Callable[[str | None], None],
        now: Callable[[], int] = times.now,
        place: Callable[[], str] = str,
        partitions: int = 1,
    ) -> None:
        """`place` describes the journal's partition for operators, and `partitions` is their number."""
        self.problem: str | None = None
        """Why events are refused, for operators; None while events are accepted."""
        self._journal = journal
        self._options = options
        self._consumers = consumers
        self._refuse = refuse
        self._now = now
        self._place = place
        self._pause = seconds_between_looks(TIMING.retention, partitions, _MOST_LOOK)
        self._is_waiting = False
        """Whether events are refused until the first measurement."""
        self._extent = JournalStats(1, 0, 0, 0, None)
        self._looked_at: Hashable = None
        """The version of the store at the last look; None if the next one must not rely on it."""
        self._full = False
        self._unplaced = False
        """Whether the journal was replaced, so that cursors may still belong to the journal before it."""
        self._removed = {"age": 0, "size": 0, "full": 0}
        self._old_to = 0  # the position of the last record known to be old
        self._looked_to = 0  # records up to this position need no further look
        self._young_at: int | None = None  # the time of the record after `_looked_to`, if it was not old yet
        self._still_to_come: int | None = None  # the earliest future time of a record after `_old_to`
        self._told: dict[str, tuple[int, float]] = {}  # the losses in the last log line about a consumer, and its time

    @property
    def records(self) -> int:
        return self._extent.records

    @property
    def bytes(self) -> int:
        return self._extent.bytes

    @property
    def max_bytes(self) -> float:
        """`max_size`, or infinity without it."""
        return math.inf if self._options.max_size is None else int(self._options.max_size)

    @property
    def oldest_seconds(self) -> float:
        """The age of the oldest record, or 0 in an empty journal."""
        at = self._extent.oldest_at
        return 0.0 if at is None else max(0, self._now() - at) / 1000

    @property
    def removed(self) -> Mapping[str, int]:
        """The number of records removed since the start of the daemon, by reason."""
        return self._removed

    @property
    def lost(self) -> Iterator[tuple[str, int]]:
        """The name of each consumer, and the number of records that were removed before it read them."""
        return ((status.name, status.lost) for status in self._consumers.statuses)

    @property
    def _in(self) -> str:
        return f" of {place}" if (place := self._place()) else ""

    def apply_options(self, options: JournalOptions) -> None:
        """Apply these options from the next step on."""
        self._options = options

    async def start(self) -> None:
        """Measure the journal for the first time, once all consumers have cursors. Raises `Unavailable`."""
        if not self._consumers.have_cursors:
            raise Unavailable("the consumers have no cursors yet")
        configured = {status.name for status in self._consumers.statuses}
        left = [cursor.name for cursor in await self._journal.cursors() if cursor.name not in configured]
        if left:
            _log.log(
                logging.DEBUG if self._in else logging.INFO,  # once and not for each partition, which have the same
                "the journal keeps nothing for consumers that are not configured any more: %s",
                ", ".join(left),
            )
        if self._is_waiting:
            self._is_waiting, self.problem = False, None
            self._refuse(None)
        self._judge(await self._measure())

    def begin_later(self) -> None:
        """Refuse events until `run` has measured the journal, whose partition is out of reach."""
        self._is_waiting, self.problem = True, f"the journal{self._in} is out of reach"
        self._refuse("The event cannot be stored now. Send the request again later.")

    async def run(self) -> None:
        """Keep the journal within its limits while the daemon runs."""
        await every("retention", self._step, first=0, pause=self._pause)

    async def _step(self) -> float | None:
        """Do a step, and return a shorter pause than usual. With `max_size` new records end the pause."""
        removed = 0
        with suppress(Unavailable):  # the back end logs its failure, and the next step tries again
            if self._is_waiting:
                await self.start()
            removed = await self.step()
        if removed:
            return _PAUSE
        if self._options.max_size is None and not self._is_waiting:
            return None
        # A journal that is over half full may have to be watched until its consumers have moved.
        if self._extent.bytes * 2 < self.max_bytes and not self._is_waiting:
            with suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(self._pause):
                    await self._journal.wait(self._extent.last)
        return _WATCH

    async def step(self) -> int:
        """Remove some of the oldest records, if they may be removed. Return their number. Raises `Unavailable`."""
        extent = await self._measure()
        removed = await self._remove_some(extent)
        if removed:
            self._looked_at = None
            extent = await self._measure()
        self._judge(extent)
        self._tell_losses()
        return removed

    async def _measure(self) -> JournalStats:
        version = self._consumers.store_version
        if version is not None and version == self._looked_at:
            return self._extent
        before, self._extent = self._extent, await self._journal.extent()
        # A version may be late, and a journal that is nearly full is watched.
        self._looked_at = version if self._extent.bytes * 2 < self.max_bytes else None
        if self._extent.last < before.last or self._extent.first < before.first:  # the journal was replaced
            self._old_to, self._looked_to, self._young_at, self._still_to_come = 0, 0, None, None
            self._unplaced = True
        return self._extent

    async def _remove_some(self, extent: JournalStats) -> int:
        options = self._options
        if self._unplaced:
            self._unplaced = any(status.position > extent.last for status in self._consumers.statuses)
            return 0
        done = min((status.position for status in self._consumers.statuses), default=extent.last)
        may_go = done if options.wait_for_consumers else extent.last
        if options.keep_for is not None:
            removed = await self._remove("age", extent, min(await self._old(extent, options.keep_for), may_go))
            if removed:
                return removed
        if options.keep_size is not None:
            removed = await self._shrink("size", extent, may_go, int(options.keep_size))
            if removed:
                return removed
        if options.max_size is not None:
            must_go = extent.last if self._full and options.on_full == "drop" else done
            return await self._shrink("full", extent, must_go, room_below(int(options.max_size)))
        return 0

    async def _shrink(self, reason: str, extent: JournalStats, may_go: int, size: int) -> int:
        """Remove the oldest records down to that size, at most one step of them."""
        excess = extent.bytes - size
        if excess <= 0 or may_go < extent.first:
            return 0
        up_to = 0
        for record in await self._journal.outlines(extent.first - 1, _STEP):
            up_to = record.position
            excess -= record.bytes
            if excess <= 0:
                break
        return await self._remove(reason, extent, min(up_to, may_go))

    async def _remove(self, reason: str, extent: JournalStats, up_to: int) -> int:
        if up_to < extent.first:
            return 0
        count = await self._journal.trim(up_to, _STEP)
        self._removed[reason] += count
        self._consumers.trimmed(extent.first + count - 1)
        return count

    async def _old(self, extent: JournalStats, keep_for: float) -> int:
        """The position up to which records are old. Each call looks one step further.

        Records are nearly in the order of their times, but a clock may have been wrong. A record with a future time has
        no known age. It counts as old once a record after it is old.
        """
        now = self._now()
        before = now - round(keep_for * 1000)
        if self._looked_to < extent.first - 1:  # at the first look, and after other removals
            self._looked_to, self._young_at, self._still_to_come = extent.first - 1, None, None
        if self._still_to_come is not None and self._still_to_come < before:  # that time has passed, and is old now
            self._looked_to, self._young_at, self._still_to_come = max(self._old_to, extent.first - 1), None, None
        if self._looked_to >= extent.last or (self._young_at is not None and before <= self._young_at <= now):
            return self._old_to
        for record in await self._journal.outlines(self._looked_to, _STEP):
            if before <= record.at <= now:
                self._young_at = record.at
                break
            self._looked_to = record.position
            if record.at < before:
                self._old_to, self._still_to_come = record.position, None
            else:
                self._still_to_come = min(record.at, self._still_to_come or record.at)
        return self._old_to

    def _judge(self, extent: JournalStats) -> None:
        """Decide whether the journal is full. It becomes full at the limit, and stays full until there is some room.

        Without this margin the daemon would refuse and accept events in quick alternation.
        """
        limit = self._options.max_size
        full = limit is not None and extent.bytes > (room_below(int(limit)) if self._full else int(limit) - 1)
        refused, self.problem = self.problem, None
        if full and self._options.on_full == "refuse":
            self.problem = self._full_of(extent)
        if self.problem is not None and refused is None:
            _log.warning("%s; events are refused", self.problem)
            self._refuse("The journal is full. Send the request again later.")
        elif self.problem is None and refused is not None:
            _log.info("the journal%s has room again; events are accepted", self._in)
            self._refuse(None)
        self._full = full

    def _full_of(self, extent: JournalStats) -> str:
        problem = f"the journal{self._in} is full ([journal] max_size = {self._options.max_size})"
        slowest = min(self._consumers.statuses, key=lambda status: status.position, default=None)
        if slowest is not None and slowest.position < extent.last:
            problem += f" and waits for {slowest.name}"
        return problem

    def _tell_losses(self) -> None:
        clock = asyncio.get_running_loop().time()
        for name, lost in self.lost:
            told, at = self._told.get(name, (0, -_QUIET))
            if lost > told and clock - at >= _QUIET:
                _log.warning(
                    "%s: %d records were removed from the journal%s before it read them (%d since the start)",
                    name,
                    lost - told,
                    self._in,
                    lost,
                )
                self._told[name] = lost, clock


def room_below(limit: int) -> int:
    """The size to which a full journal with that limit is trimmed."""
    return limit - min(limit // 20, _ROOM)
