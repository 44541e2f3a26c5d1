"""Beats: a daemon renews its leases, reports that it runs, and learns the journal's end, in every partition."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from ingestd.api import times
from ingestd.api.errors import Unavailable
from ingestd.api.options import Address
from ingestd.support.periodic import TIMING

from .database import Database
from .journal import RedisJournal
from .link import Operation, Then
from .scripts import BATCH
from .store import RedisStore
from .work_sharing import DaemonReport, WorkSharing

__all__ = ["Beats", "PartitionBeat", "clock_ahead"]

_log = logging.getLogger("ingestd.redis")

_GATHER = 0.02  # seconds in which further partitions get something to report
_BEATS_UNUSED = 400  # beats between two looks for unused entries: they stay for ten to twenty minutes
_END = 0.5  # seconds for which the end waits for beats in progress
_AT_ONCE = 32  # answers between two turns of the loop


class _Before(NamedTuple):
    """What was known when a beat left."""

    at: int
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

    def begin(self) -> None:
        self.runs, self._report = True, None

    async def end(self) -> None:
        """Raises `Unavailable`: the report expires then."""
        self.runs = False
        if self._report is not None:
            await self.database.link.ask("gone", 0, str(self._report))

    @property
    def is_due(self) -> bool:
        """Whether there is something new to report."""
        return self._sharing is not None and self._sharing.is_due

    def make(self) -> tuple[Operation, Then]:
        """The operation, and what is to be called with its answer.

        A daemon without cursors beats too. So it notices when Redis is away, and when the store has lost data.
        """
        sharing, life = self._sharing, TIMING.redis_report
        wanted: tuple[str, ...] = ()
        if sharing is not None:
            sharing.is_due, wanted, life = False, tuple(sharing.wanted), TIMING.redis_report_shared
        name, former = self.database.name, self._report
        self._report = DaemonReport(name, os.getpid(), socket.gethostname(), wanted)
        changed = "" if former in (None, self._report) else str(former)
        held = self._journal.held
        lease = round(TIMING.redis_lease * 1000)
        asked = ["beat", 0, str(self._report), changed, round(life * 1000), held, name, lease]
        link = self.database.link
        return asked, partial(self._heard, _Before(times.now(), self._journal.known, link.store_id, link.address))

    async def by_link(self) -> None:
        """Beat on the link of the partition, which handles every failure."""
        with suppress(Unavailable):  # the link reports it
            operation, then = self.make()
            await self.database.link.ask(*operation, first=then)

    def _heard(self, before: _Before, answer: Any, error: Exception | None) -> None:
        link = self.database.link
        # An answer on another connection than the link's may be older than what the link has learned meanwhile.
        if error is not None or link.store_id != before.store_id:
            return
        last, version, piece, heartbeats, clock, lost, reports, changes = answer
        link.last, link.heartbeats = max(link.last, last), max(link.heartbeats, heartbeats)
        self._store.clock_ahead = clock_ahead(clock, before.at)
        if self._sharing is not None:
            self._store.beaten((link.store_id, link.connected_at, version, changes))
            self._sharing.learn(reports)
        known = before.position if link.address == before.address else 0
        self._journal.beaten(known, last, version, piece, lost)


class Beats:
    """The beats of all partitions of a daemon.

    The beats of the partitions on one node leave as one write, on one connection that they share. A partition whose
    beat fails there, for whatever reason, beats on its link. So it holds up no other.
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
        self._connections: dict[str, AbstractConnection] = {}
        """By node."""
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
                self._begin(self._partitions)
                until = clock() + TIMING.redis_heartbeat
                while (left := until - clock()) > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._due.wait()
                            await asyncio.sleep(_GATHER)
                            self._due.clear()
                            self._begin([each for each in self._partitions if each.is_due])
        finally:
            await self._end()

    async def _end(self) -> None:
        tasks = [*self._tasks.values()]
        if tasks:  # Redis must not do one after it has been told that this daemon stops
            await asyncio.wait(tasks, timeout=_END)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in [*self._connections]:
            await self._leave(node)

    def _begin(self, partitions: Sequence[PartitionBeat]) -> None:
        nodes: defaultdict[str, list[PartitionBeat]] = defaultdict(list)
        for each in partitions:
            link = each.database.link
            if not each.runs or each in self._tasks:
                continue
            if self._connection_to is not None and link.address is not None and link.may_share:
                nodes[link.address].append(each)
            else:
                self._start(each, each.by_link())
        for node, some in nodes.items():
            if node not in self._tasks:
                self._start(node, self._beat_node(node, some))

    def _start(self, key: Hashable, beat: Coroutine[Any, Any, None]) -> None:
        self._tasks[key] = task = asyncio.create_task(beat, name="redis: beat")
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: Hashable, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a beat failed", exc_info=error)

    async def _beat_node(self, node: str, partitions: Sequence[PartitionBeat]) -> None:
        done: set[PartitionBeat] = set()
        try:
            async with asyncio.timeout(partitions[0].database.options.timeout):
                done = await self._ask(node, partitions)
        except (RedisError, OSError, TimeoutError) as error:
            _log.debug("beats on %s: %s", node, error)
            await self._leave(node)
        except BaseException:  # unread answers may be left on the connection
            await self._leave(node)
            raise
        for each in partitions:
            if each not in done and each not in self._tasks:
                self._start(each, each.by_link())

    async def _ask(self, node: str, partitions: Sequence[PartitionBeat]) -> set[PartitionBeat]:
        """Beat, and return the partitions that have. Raises `RedisError` or `OSError`."""
        connection = self._connections.get(node) or await self._connect(node)
        made = [(each, *each.make()) for each in partitions]
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
        for number, ((each, _, then), answer) in enumerate(zip(made, answers, strict=True)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if isinstance(answer, ResponseError):
                _log.debug("a beat of partition %s on %s: %s", each.database.options.name, node, answer)
                continue
            with suppress(ResponseError):  # the link tells it
                then(each.database.link.unpack(answer), None)
                done.add(each)
        return done

    async def _connect(self, node: str) -> AbstractConnection:
        assert self._connection_to is not None
        host, _, port = node.rpartition(":")
        self._connections[node] = connection = self._connection_to(Address(host, int(port)))
        await connection.connect()
        await connection.send_command("SCRIPT", "LOAD", BATCH)
        await connection.read_response()
        return connection

    async def _leave(self, node: str) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            await connection.disconnect(nowait=True)


def clock_ahead(clock: int, asked_at: int) -> int:
    """Milliseconds by which Redis' clock is ahead of ours: it was read between our question and now."""
    return min(0, clock - asked_at) or max(0, clock - times.now())
