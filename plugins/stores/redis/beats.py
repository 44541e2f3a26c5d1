"""Beats: a daemon renews its leases, reports that it runs, and learns the journal's end, in every partition.

The first partition of each node beats every heartbeat, which tells the daemons of each other. The others may rest until
something changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.api.options import Address
from ingestd.support.pace import Pace
from ingestd.support.periodic import TIMING

from .database import Database
from .journal import RedisJournal
from .operations import Operation, Then
from .scripts import BATCH
from .server_clock import ServerClock, clock_ahead, monotonic
from .store import RedisStore
from .work_sharing import DaemonReport, WorkSharing

__all__ = ["Beats", "PartitionBeat"]

_log = logging.getLogger("ingestd.redis")

_GATHER = 0.02  # seconds in which further partitions get something to report
_BEATS_UNUSED = 400  # beats between two looks for unused entries: they stay for ten to twenty minutes
_END = 0.5  # seconds for which the end waits for beats in progress


class _Before(NamedTuple):
    """What was known when a beat left."""

    at: int
    monotonic: int
    """Milliseconds, of the same instant."""
    position: int
    """The newest of the journal."""
    store_id: str
    address: str | None


class PartitionBeat:
    """The beat of one partition."""

    def __init__(
        self, database: Database, journal: RedisJournal, store: RedisStore, sharing: WorkSharing | None
    ) -> None:
        self.database = database
        self.runs = False
        """Whether the partition is open."""
        self._journal = journal
        self._store = store
        self._sharing = sharing
        self._report: DaemonReport | None = None
        """The last report of this daemon."""
        self._clock = ServerClock()
        self.reports: frozenset[str] = frozenset()
        """Those of all daemons, in the answer to the last beat."""
        self.was_missing = False
        """Whether the report of this daemon was not there before the last beat."""
        self.rests_until = 0.0
        """The time of the next beat without a reason, by the loop's clock."""
        self.is_wanted = False
        """Whether other daemons have come or gone, so that a beat is due."""

    def begin(self) -> None:
        self.runs, self._report, self.rests_until = True, None, 0.0

    async def end(self) -> None:
        """Raises `Unavailable`: the report expires then."""
        self.runs = False
        if self._report is not None:
            await self.database.link.ask("gone", 0, str(self._report))

    @property
    def is_due(self) -> bool:
        """Whether there is something new to report or to learn."""
        return self.is_wanted or (self._sharing is not None and self._sharing.is_due)

    @property
    def rest(self) -> float:
        """The seconds by which a beat may be later than a heartbeat."""
        return 0.0 if self._sharing is None else self._sharing.rest

    def make(self, running: Iterable[str] | None, *, rests: bool) -> tuple[Operation, Then]:
        """The operation, and what is to be called with its answer.

        `running` are the names of all daemons with beats on the node of the partition: others have no leases any more.
        None: not known. Unless the partition `rests`, the next beat comes with the next heartbeat, so the report lives
        shorter.

        A daemon without cursors beats too. So it notices when Redis is away, and when the store has lost data.
        """
        sharing, life, silence = self._sharing, TIMING.redis_report, 0.0
        wanted: tuple[str, ...] = ()
        self.is_wanted = False
        if sharing is not None:
            sharing.is_due, wanted = False, tuple(sharing.wanted)
            life = TIMING.redis_report_shared + (self.rest if rests else 0.0)
            silence = life - TIMING.redis_lease if rests else 0.0
        name, former = self.database.name, self._report
        self._report = DaemonReport(name, os.getpid(), socket.gethostname(), wanted)
        changed = "" if former in (None, self._report) else str(former)
        asked = [
            "beat", 0, str(self._report), changed, round(life * 1000), [*self._journal.held], name, self._journal.lease,
            None if running is None else [*running], round(silence * 1000),
        ]  # fmt: skip
        link = self.database.link
        return asked, partial(
            self._heard, _Before(times.now(), monotonic(), self._journal.known, link.store_id, link.address)
        )

    async def by_link(self) -> None:
        """Beat on the link of the partition, which handles every failure."""
        with suppress(Unavailable):  # the link reports it
            self.rests_until = 0.0
            operation, then = self.make(None if self._sharing is None else (), rests=False)
            await self.database.link.ask(*operation, first=then)

    def _heard(self, before: _Before, answer: Any, error: Exception | None) -> None:
        link = self.database.link
        # An answer on another connection than the link's may be older than what the link has learned meanwhile.
        if error is not None or link.store_id != before.store_id:
            return
        last, version, piece, heartbeats, clock, lost, reports, changes, is_new = answer
        link.last, link.heartbeats = max(link.last, last), max(link.heartbeats, heartbeats)
        self._store.clock_ahead = clock_ahead(clock, before.at)
        self._store.clock_jump += self._clock.jump(clock, before.monotonic)
        self.reports, self.was_missing = frozenset(reports), is_new
        if self._sharing is not None:
            self._store.beaten = link.store_id, link.connected_at, version, changes
            self._sharing.learn(reports)
        known = before.position if link.address == before.address else 0
        self._journal.beaten(known, last, version, piece, lost)


class _Node:
    """What the partitions of one node share."""

    def __init__(self) -> None:
        self.connection: AbstractConnection | None = None
        self.first: PartitionBeat | None = None
        """The partition with a beat every heartbeat; None if its last one was not answered."""
        self.reports: frozenset[str] = frozenset()
        """Those of all daemons, in the last answer to it."""
        self.known_since = 0.0
        """Since when `first` is the same, by the loop's clock. Other daemons may learn of it some seconds later."""
        self.stirs_until = 0.0
        """Until then no partition rests, by the loop's clock."""


class Beats:
    """The beats of all partitions of a daemon.

    The beats of the partitions on one node leave as one write, on one connection that they share. A partition whose
    beat fails there, for whatever reason, beats on its link. So it holds up no other.

    The first partition of a node never rests. If its answer tells that a daemon has come, gone or changed, all beat at
    once. Then, and after a beat without an answer, none rests for some seconds.
    """

    def __init__(
        self,
        partitions: Sequence[PartitionBeat],
        connection_to: Callable[[Address], AbstractConnection] | None = None,
        due: asyncio.Event | None = None,
    ) -> None:
        """Without `connection_to`, partitions beat on their links. `due` is set when one has something to report."""
        self._partitions = partitions
        self._connection_to = connection_to
        self._due = due or asyncio.Event()
        self._nodes: defaultdict[str, _Node] = defaultdict(_Node)
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        """The beats in progress, by node or partition."""

    async def run(self) -> None:
        """Runs until cancelled."""
        clock = asyncio.get_running_loop().time
        try:
            for number in count():
                if number % _BEATS_UNUSED == 0:  # `ingestd forget` cannot reach them in the caches of other processes
                    for each in self._partitions:
                        each.database.entries.forget_unused()
                self._begin(clock(), is_heartbeat=True)
                until = clock() + TIMING.redis_heartbeat
                while (left := until - clock()) > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._due.wait()
                            await asyncio.sleep(_GATHER)
                            self._due.clear()
                            self._begin(clock(), is_heartbeat=False)
        finally:
            await self._end()

    async def _end(self) -> None:
        tasks = [*self._tasks.values()]
        if tasks:  # Redis must not do one after it has been told that this daemon stops
            await asyncio.wait(tasks, timeout=_END)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes.values():
            await self._leave(node)

    def _begin(self, now: float, *, is_heartbeat: bool) -> None:
        """Begin the beats of the partitions that have a reason, and at a heartbeat of those that have rested."""
        nodes: defaultdict[str, list[PartitionBeat]] = defaultdict(list)
        for each in self._partitions:
            link = each.database.link
            if not each.runs or each in self._tasks:
                continue
            if self._connection_to is not None and link.address is not None and link.may_share:
                nodes[link.address].append(each)
            elif is_heartbeat or each.is_due:
                self._start(each, each.by_link())
        soon = now + TIMING.redis_heartbeat / 2
        for address, all_ in nodes.items():
            if address in self._tasks:
                continue
            stirs = is_heartbeat and now < self._nodes[address].stirs_until
            some = []
            for number, each in enumerate(all_):
                rested = is_heartbeat and (number == 0 or each.rests_until < soon)
                if stirs or rested or each.is_due:
                    some.append(each)
                    # Beats that fall together are spread over the rest from then on.
                    share = number / len(all_) if stirs else min(number, 1)
                    each.rests_until = now + TIMING.redis_heartbeat + share * each.rest
            if some:
                self._start(address, self._beat_node(address, some, all_))

    def _start(self, key: Hashable, beat: Coroutine[Any, Any, None]) -> None:
        self._tasks[key] = task = asyncio.create_task(beat, name="redis: beat")
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a beat failed", exc_info=error)

    async def _beat_node(self, address: str, some: Sequence[PartitionBeat], all_: Sequence[PartitionBeat]) -> None:
        """Let some of all partitions of a node beat."""
        node, first, done = self._nodes[address], all_[0], set[PartitionBeat]()
        try:
            async with asyncio.timeout(first.database.options.timeout):
                done = await self._ask(address, some, first)
        except (RedisError, OSError, TimeoutError) as error:
            _log.debug("beats on %s: %s", address, error)
            await self._leave(node)
        except BaseException:  # unread answers may be left on the connection
            await self._leave(node)
            raise
        for each in some:
            if each not in done and each not in self._tasks:
                self._start(each, each.by_link())
        if some[0] is first:
            self._compare(node, first if first in done else None, all_)

    def _compare(self, node: _Node, first: PartitionBeat | None, all_: Sequence[PartitionBeat]) -> None:
        """Notice from the answer to the first partition of a node which daemons run."""
        now, is_other = asyncio.get_running_loop().time(), first is None or first is not node.first
        if is_other:
            node.known_since = now
        if first is None or is_other or first.was_missing or first.reports != node.reports:
            node.stirs_until = now + TIMING.redis_lease
            for each in all_[1:] if first is not None else ():
                each.is_wanted = True
                self._due.set()
        node.first, node.reports = first, frozenset() if first is None else first.reports

    async def _ask(self, address: str, partitions: Sequence[PartitionBeat], first: PartitionBeat) -> set[PartitionBeat]:
        """Beat, and return the partitions that have. Raises `RedisError` or `OSError`."""
        node = self._nodes[address]
        connection = node.connection or await self._connect(address)
        running, now = None, asyncio.get_running_loop().time()
        if node.first is first and node.known_since + TIMING.redis_report_shared <= now < node.stirs_until:
            running = {DaemonReport.parse(each).name for each in node.reports}
        made = [(each, *each.make(() if each is first else running, rests=each is not first)) for each in partitions]
        packed = [part for each, asked, _ in made for part in each.database.link.pack(connection, asked)]
        options = partitions[0].database.options
        if options.replicas:
            # It covers all writes of this connection, and with them all earlier writes.
            packed += connection.pack_command("WAIT", options.replicas, round(options.timeout * 500))
        await connection.send_packed_command(packed, check_health=False)
        answers = []
        for _ in made:
            try:
                answers.append(await connection.read_response())
            except ResponseError as error:  # the slot has moved, or the store has lost data
                answers.append(error)
        if options.replicas and await connection.read_response() < options.replicas:
            return set()
        done = set()
        pace = Pace(0.001)
        for (each, _, then), answer in zip(made, answers, strict=True):
            await pace.give_way()
            if isinstance(answer, ResponseError):
                _log.debug("a beat of partition %s on %s: %s", each.database.options.name, address, answer)
                continue
            with suppress(ResponseError):  # the link tells it
                then(each.database.link.unpack(answer), None)
                done.add(each)
        return done

    async def _connect(self, address: str) -> AbstractConnection:
        assert self._connection_to is not None
        host, _, port = address.rpartition(":")
        self._nodes[address].connection = connection = self._connection_to(Address(host, int(port)))
        await connection.connect()
        await connection.send_command("SCRIPT", "LOAD", BATCH)
        await connection.read_response()
        return connection

    async def _leave(self, node: _Node) -> None:
        connection, node.connection = node.connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
