"""The consumers of a daemon. Each has one task, one cursor and its own retries; none waits for another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ingestd.api import times
from ingestd.api.consumer import Consumer
from ingestd.api.errors import ConfigError, Unavailable
from ingestd.api.journal import Cursor, Journal
from ingestd.api.store import Store
from ingestd.support.backoff import Backoff
from ingestd.support.periodic import every, seconds_between_looks

from .failure_log import FailureLog, FailureLogs
from .retry import Attempts
from .runner import Runner, Shared
from .status import ConsumerStatus

__all__ = ["ConsumerStatus", "Consumers", "Died", "log_left"]

_log = logging.getLogger("ingestd.consumers")

Died = Callable[[str, BaseException], None]
"""Called with the name of a consumer and the error that ended its task: a bug in ingestd. The daemon must stop."""

_IDLE = 2.0  # seconds after which the cursors of other daemons are read again, even without new records
_MOST_IDLE = 10.0  # the same at most, with many partitions
_STEP = 1.0  # seconds for the step that a consumer has begun when the daemon stops
_FORCED = 0.5  # seconds


class Consumers:
    """All consumers of a daemon. `now` gives the time of their steps. `died` is called if a task ends.

    If given, `backoff` replaces the backoff of every consumer. Steps call `give_way` for `Step.give_way`.

    `partition` is the name of the partition of journal and store. `failure_logs` has the logs of consumers by name,
    which the partitions share.

    `stop` waits at most a second for the steps that consumers have begun, `grace` seconds until they have ended, and
    again until they are closed. Once `forced` is set, each wait lasts half a second more at most.
    """

    def __init__(
        self,
        journal: Journal,
        store: Store,
        consumers: Iterable[Consumer],
        *,
        died: Died,
        now: Callable[[], int] = times.now,
        backoff: Backoff | None = None,
        grace: float = 5.0,
        forced: asyncio.Event | None = None,
        give_way: Callable[[float], Awaitable[None]] = asyncio.sleep,
        partition: str = "",
        partitions: int = 1,
        failure_logs: FailureLogs | None = None,
    ) -> None:
        self._journal, self._store, self._moved = journal, store, asyncio.Event()
        self._shared = Shared(
            journal, store, now, backoff, grace, self._moved, give_way,
            FailureLogs() if failure_logs is None else failure_logs, partition, partitions,
        )  # fmt: skip
        self._died = died
        self._forced = forced or asyncio.Event()
        self._last = -1
        self._read_at: Hashable = None
        """The version of the store when the positions were read."""
        self._runners = [Runner(each, self._shared) for each in consumers]
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        _check_names(self._runners)

    @property
    def statuses(self) -> tuple[ConsumerStatus, ...]:
        """The status of each consumer, in their order."""
        return tuple(runner.status for runner in self._runners)

    @property
    def consumers(self) -> Sequence[Consumer]:
        return [runner.consumer for runner in self._runners]

    def consumer(self, name: str) -> Consumer:
        """The consumer of that name."""
        return next(runner.consumer for runner in self._runners if runner.name == name)

    @property
    def store_version(self) -> Hashable:
        """`Store.version` of the partition."""
        return self._store.version

    @property
    def have_cursors(self) -> bool:
        """Whether all consumers have durable cursors."""
        return all(runner.reader.has_cursor for runner in self._runners)

    def trimmed(self, up_to: int) -> None:
        """Called after the removal of all records up to that position."""
        for status in self.statuses:
            status.trimmed(up_to)

    def person_forgotten(self) -> None:
        """Called after a person's records were blanked in the journal."""
        for runner in self._runners:
            runner.person_forgotten()

    async def start(self) -> None:
        """Return once every consumer has a durable cursor, so that it misses no later record. Raises `Unavailable`."""
        await self.ensure_cursors()
        self.start_tasks()

    async def ensure_cursors(self, runners: Sequence[Runner] | None = None) -> None:
        """Create the durable cursors of these consumers, or of all. Raises `Unavailable`."""
        for runner in self._runners if runners is None else runners:
            await runner.ensure_cursor()

    def start_tasks(self) -> None:
        """Start the tasks of the consumers, which acquire the cursors, open the consumers and process records.

        A task creates its cursor if that has failed before.
        """
        for runner in self._runners:
            self._tasks[runner.name] = self._run(runner.name, runner.run())
        self._tasks[""] = self._run("journal", self._follow())  # a consumer may be named "journal"

    def make_runners(self, consumers: Iterable[Consumer], leaving: Collection[str] = ()) -> list[Runner]:
        """The runners of further consumers for `exchange`, once `ensure_cursors` has created their cursors.

        `leaving` names the consumers that `exchange` will end. Raises `ConfigError` for a name that is taken.
        """
        runners = [Runner(each, self._shared) for each in consumers]
        _check_names([*(each for each in self._runners if each.name not in leaving), *runners])
        return runners

    async def exchange(self, leaving: Collection[str], coming: Sequence[Runner], limit: float) -> None:
        """End some consumers and start others, which may continue from the same cursors. All others keep running.

        A consumer ends after its present step, or after `limit` seconds.
        """
        async with self._changing:
            going = {each.name: each for each in self._runners if each.name in leaving}
            await asyncio.gather(*(self._end(each, limit) for each in going.values()))
            self._runners = [each for each in self._runners if each.name not in going]
            for runner in coming:
                if runner.name in going:
                    runner.status.count_on(going[runner.name].status)
                self._runners.append(runner)
                self._tasks[runner.name] = self._run(runner.name, runner.run())

    async def _end(self, runner: Runner, limit: float) -> None:
        """End a consumer after its present step, which a sink would get again, or after `limit` seconds."""
        ending = asyncio.create_task(runner.end())
        await _ended_in_time([ending], limit, self._forced)
        ending.cancel()
        await self._cancel(runner.name)
        await self._ends(asyncio.create_task(runner.close(), name=runner.name), self._shared.grace + 1)
        await runner.reader.release_cursor()

    async def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.remove_done_callback(self._ended)
        task.cancel()
        await self._ends(task, self._shared.grace)

    async def stop(self, limit: float) -> dict[str, int]:
        """Let every consumer catch up for at most `limit` seconds, then end and close all of them.

        Return the number of records left for the next start, by consumer, without consumers that have none.
        """
        async with self._changing:
            return await self._stop(limit)

    async def _stop(self, limit: float) -> dict[str, int]:
        for runner in self._runners:
            runner.hurry()
        catching_up = asyncio.create_task(self._caught_up())
        await _ended_in_time([catching_up], limit, self._forced)
        catching_up.cancel()
        # Records that a broken journal leaves unprocessed or uncounted are still there at the next start.
        with suppress(asyncio.CancelledError, Unavailable):
            await catching_up
        if self._tasks:
            for runner in self._runners:
                runner.consumer.end()
            await asyncio.gather(*(self._end(each, _STEP) for each in self._runners), self._cancel(""))
        with suppress(Unavailable):
            await self._read_positions()
        left = {status.name: status.pending for status in self.statuses if status.pending and status.held}
        if not self._shared.partition:
            log_left(left)
        return left

    async def _caught_up(self) -> None:
        while self._tasks:
            await self._read_positions()
            self._moved.clear()
            if not any(each.is_behind for each in self._runners):
                return
            await self._moved.wait()  # and look again, because a consumer may have appended records for others

    async def _read_positions(self) -> None:
        others = {status.name: status for status in self.statuses if not status.held}
        # Other daemons may have acquired their cursors. Both questions leave in one round trip.
        last, cursors = await asyncio.gather(self._journal.last(), self._cursors_of(others))
        shorter = last < self._last  # a failover of a shared journal may have lost its end
        self._last = last
        for status in self.statuses:
            status.last = last if shorter else max(status.last, last)
        for cursor in cursors:
            if not others[cursor.name].held:
                others[cursor.name].position = cursor.position

    async def _cursors_of(self, names: Collection[str]) -> Sequence[Cursor]:
        return [cursor for cursor in await self._journal.cursors() if cursor.name in names] if names else ()

    async def _ends(self, task: asyncio.Task[None], limit: float) -> None:
        """Wait until the task has ended, but only for a limited time if it is stuck."""
        if not await _ended_in_time([task], limit, self._forced):
            _log.error("%s: does not end; it is left behind", task.get_name())

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError("cancelled unexpectedly") if task.cancelled() else task.exception()
        self._died(task.get_name(), error or RuntimeError("ended unexpectedly"))

    async def _follow(self) -> None:
        """Keep `last` of every status up to date, four times a second under load."""
        shared = self._shared
        log = shared.failure_logs.setdefault("", FailureLog("journal"))
        attempts = Attempts(log, shared.backoff or Backoff(), place=shared.place)
        idle = seconds_between_looks(_IDLE, shared.partitions, _MOST_IDLE)

        async def look() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(idle):
                    await attempts.until_done(self._journal.wait, self._last)
                    self._read_at = None
            version = self._store.version
            if version is None or version != self._read_at:
                await attempts.until_done(self._read_positions)
                self._read_at = version

        await every("consumers", look, first=0)


def log_left(left: Mapping[str, int]) -> None:
    for name, count in left.items():
        _log.info("%s: %d records left for the next start", name, count)


def _check_names(runners: Sequence[Runner]) -> None:
    names = [runner.name for runner in runners]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"there are two consumers named {name}; they would share one cursor of the journal")


async def _ended_in_time(tasks: Collection[asyncio.Task[Any]], limit: float, forced: asyncio.Event) -> bool:
    """Wait for tasks for at most `limit` seconds. Return whether all have ended.

    Once `forced` is set, it waits half a second more at most.
    """
    if tasks:
        ending = asyncio.ensure_future(asyncio.wait(tasks, timeout=limit))
        hurrying = asyncio.ensure_future(forced.wait())
        await asyncio.wait([ending, hurrying], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([ending], timeout=_FORCED)
        ending.cancel()
        hurrying.cancel()
    return all(task.done() for task in tasks)
