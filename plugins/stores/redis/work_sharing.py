"""How daemons share the work on the partitions of a store: each consumer of each partition has one daemon."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

from ingestd.support.periodic import TIMING, seconds_between_looks

__all__ = ["DaemonReport", "WorkSharing"]


_MOST_REST = 10.0  # seconds between two beats of one of many partitions


class DaemonReport(NamedTuple):
    """What a running daemon reports to the store, as one text without further spaces."""

    name: str
    pid: int
    host: str
    consumers: tuple[str, ...] = ()
    """The consumers that it runs or would run. Only reported to a store with several partitions."""

    def __str__(self) -> str:
        text = f"{self.name} {self.pid} {self.host}"
        return f"{text} {','.join(map(quote, self.consumers))}" if self.consumers else text

    @classmethod
    def parse(cls, text: str) -> DaemonReport:
        name, pid, host, *rest = text.split(" ")
        return cls(name, int(pid), host, tuple(map(unquote, rest[0].split(","))) if rest else ())


class WorkSharing:
    """The daemons of the consumers of one partition.

    All daemons compute the same from the same reports. The daemons of a consumer are in the order of their names, and
    the next partition has the next daemon. Different consumers begin with different daemons.
    """

    def __init__(self, partition: int, changed: asyncio.Event, partitions: int) -> None:
        """`changed` is set as soon as there is something new to report. `partitions` is the number of all."""
        self.name = ""
        """The name of this daemon; empty if this process does not serve."""
        self._partition = partition
        self._partitions = partitions
        self._wanted: set[str] = set()
        self._reports: set[str] = set()
        self._daemons: dict[str, list[str]] = {}
        self._learned = asyncio.Event()
        self.is_due = False
        """Whether there is something new to report."""
        self._changed = changed

    @property
    def rest(self) -> float:
        """The seconds by which a beat of an idle partition may be later than a heartbeat. A command has no beats."""
        if not self.name:
            return 0.0
        between = seconds_between_looks(TIMING.redis_heartbeat, self._partitions, _MOST_REST)
        return between - TIMING.redis_heartbeat

    @property
    def wanted(self) -> Sequence[str]:
        """The consumers that this daemon runs or would run."""
        return sorted(self._wanted)

    def want(self, consumer: str) -> None:
        if consumer not in self._wanted:
            self._wanted.add(consumer)
            self._report()

    def forgo(self, consumer: str) -> None:
        if consumer in self._wanted:
            self._wanted.remove(consumer)
            self._report()

    def _report(self) -> None:
        self.is_due = True
        self._changed.set()

    def learn(self, reports: Sequence[str]) -> None:
        """Note the reports of all running daemons. One that has just changed its report may have two."""
        if {*reports} != self._reports:
            self._reports = {*reports}
            daemons: defaultdict[str, set[str]] = defaultdict(set)
            for report in map(DaemonReport.parse, reports):
                for consumer in report.consumers:
                    daemons[consumer].add(report.name)
            self._daemons = {consumer: sorted(names) for consumer, names in daemons.items()}
        self._learned.set()
        self._learned = asyncio.Event()

    async def learned(self) -> None:
        """Return after the next reports."""
        await self._learned.wait()

    def has(self, consumer: str) -> bool:
        """Whether this daemon is to run a consumer. A command, which has no name, takes what no daemon holds."""
        return not self.name or self._daemon_of(consumer) == self.name

    def passes(self, consumer: str) -> bool:
        """Whether another daemon is to run a consumer."""
        return self._daemon_of(consumer) not in (None, self.name)

    def _daemon_of(self, consumer: str) -> str | None:
        names = self._daemons.get(consumer)
        return names[(self._partition + crc32(consumer.encode())) % len(names)] if names else None
