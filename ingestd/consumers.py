"""Runs the consumers: each one task, one place in the journal, its own retries; none waits for another."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar

from . import times
from .consumer import Consumer, Step
from .errors import ConfigError, IngestdError, NotHolder, SinkRetry, Unavailable
from .events import Record
from .journal import Cursor, Journal
from .store import Store

__all__ = ["Backoff", "ConsumerStatus", "Consumers", "Died"]

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

Died = Callable[[str, BaseException], None]
"""Called with a consumer's name and what its task died of: a bug in ingestd, the daemon must stop."""


class Backoff(NamedTuple):
    """How long to pause before a failed attempt is made again, in seconds.

    Exponential with full jitter: anything from 0 to a limit that doubles from `initial` to `maximum`.
    """

    initial: float = 0.2
    maximum: float = 30.0
    jitter: Callable[[], float] = random.random
    """Gives a number from 0 to 1, at random."""

    def pause(self, failures: int) -> float:
        """The pause after so many failures in a row (from 1)."""
        limit = self.initial * 2.0 ** min(failures - 1, 60)  # 2.0 ** 1024 overflows
        return self.jitter() * min(self.maximum, limit)


_BACKOFF = Backoff()

_FREE = 1.0  # seconds in which a place that is free is had
_STORE_PAUSE = 1.0  # seconds at the most after which a store that failed is asked again
_LOOK = 2.0  # seconds after which it is looked how far others are, though no records come


@dataclass
class ConsumerStatus:
    """How far a consumer is; kept up to date, to be read at any time."""

    name: str
    now: Callable[[], int]
    held: bool = False
    """Whether it is this daemon that goes on with it."""
    position: int = 0
    """Of the last record it has durably done with."""
    last: int = 0
    """Of the newest record in the journal, at most a quarter of a second old."""
    processed: int = 0
    """Records durably done with since the start of the daemon."""
    failures: int = 0
    """Attempts to open it or to do a step that failed and were, or will be, made again."""
    last_error: str | None = None
    """Why it does not get on at the moment; None when it does."""
    oldest_at: int | None = None
    """When the oldest record that waits was received, in milliseconds; None where it is not known yet."""
    in_hand: int = 0
    """Records it was given and has not done with yet. It gets done with them even if they are removed meanwhile."""
    reached: int = 0
    """The position of the last one in hand."""
    removed: int = 0
    """Up to this position the journal's records have been removed, as far as it is known here."""
    lost: int = 0
    """Records removed before it was given them, since the start of the daemon.

    Those removed while it has nothing in hand count as pending until it comes upon the gap. So at any
    time what it has done with, what is pending and what is lost are all the records behind the place it
    started from.
    """

    @property
    def pending(self) -> int:
        """Records that it has not done with, and still can."""
        if self.in_hand:
            return self.in_hand + max(0, self.last - max(self.reached, self.removed))
        return max(0, self.last - self.position)

    def trimmed(self, up_to: int) -> None:
        """The journal's records up to that position have been removed."""
        if self.in_hand and self.held:
            self.lost += max(0, up_to - max(self.reached, self.removed))
        self.removed = max(self.removed, up_to)

    @property
    def oldest_pending_seconds(self) -> float:
        """The age of the oldest of them, 0 if there are none."""
        oldest_at = self.oldest_at  # once: it is read on other threads too, and may be None the next time
        if oldest_at is None or not self.pending:
            return 0.0
        return max(0, self.now() - oldest_at) / 1000


class Consumers:
    """All consumers of a daemon. `now` gives the time of their steps, `died` is told of a dead task.

    `grace`: how many seconds `stop` waits at the most for consumers to obey, and again for them to close.
    """

    def __init__(
        self,
        journal: Journal,
        store: Store,
        consumers: Iterable[Consumer],
        *,
        died: Died,
        now: Callable[[], int] = times.now,
        backoff: Backoff = _BACKOFF,
        grace: float = 5.0,
    ) -> None:
        self._journal = journal
        self._died = died
        self._backoff = backoff
        self._grace = grace
        self._moved = asyncio.Event()
        self._last = 0
        self._runners = [
            _Runner(each, journal=journal, store=store, now=now, backoff=backoff, grace=grace, moved=self._moved)
            for each in consumers
        ]
        self._tasks: list[asyncio.Task[None]] = []
        names = [runner.name for runner in self._runners]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"there are two consumers named {name}; they would share one place in the journal")

    @property
    def statuses(self) -> tuple[ConsumerStatus, ...]:
        """One for each consumer, in their order."""
        return tuple(runner.status for runner in self._runners)

    def trimmed(self, up_to: int) -> None:
        """The journal's records up to that position have been removed."""
        for status in self.statuses:
            status.trimmed(up_to)

    async def start(self) -> None:
        """Returns when every consumer has a durable place: from then on nothing passes it by.

        Becoming its holder, opening and feeding it goes on in the background. Raises `Unavailable`.
        """
        for runner in self._runners:
            await runner.place()
        for runner in self._runners:
            self._run(runner.name, runner.run())
        self._run("journal", self._follow())

    async def stop(self, patience: float) -> dict[str, int]:
        """Let every consumer catch up for at most `patience` seconds, then end and close them all.

        Returns how many records are left for the next start, by name, of those that have any.
        """
        # What a broken journal keeps from being done or counted is there at the next start, like the rest.
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(patience):
                await self._caught_up()
        for task in self._tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await self._ends(self._tasks)
        await self._ends([asyncio.create_task(each.close(self._grace), name=each.name) for each in self._runners])
        for runner in self._runners:
            await runner.release()
        with suppress(Unavailable):
            await self._look()
        left = {status.name: status.pending for status in self.statuses if status.pending and status.held}
        for name, count in left.items():
            _log.info("%s: %d records left for the next start", name, count)
        return left

    async def _caught_up(self) -> None:
        while self._tasks:
            await self._look()
            self._moved.clear()
            if not any(each.status.pending for each in self._runners if each.status.held or not each.tried):
                return
            await self._moved.wait()  # then look again: a consumer may have appended records for others

    async def _look(self) -> int:
        last = await self._journal.last()
        shorter = last < self._last  # where several daemons share it, a failover may have lost its end
        self._last = last
        for status in self.statuses:
            status.last = last if shorter else max(status.last, last)
        others = {status.name: status for status in self.statuses if not status.held}
        if others:  # are held by other daemons, if by any
            for cursor in await self._journal.cursors():
                if cursor.name in others and not others[cursor.name].held:
                    others[cursor.name].position = cursor.position
        return last

    async def _ends(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all tasks have ended, but no longer than a stuck one is worth."""
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=self._grace + 1)
            for task in stuck:
                _log.error("%s: does not end; it is left behind", task.get_name())

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError("cancelled by nobody") if task.cancelled() else task.exception()
        self._died(task.get_name(), error or RuntimeError("ended by itself"))

    async def _follow(self) -> None:
        """Keep `last` of every status for who reads it without waiting; under load, four times a second."""
        attempts = _Attempts("journal", self._backoff)
        while True:
            last = await attempts.until_done(self._look)
            await asyncio.sleep(0.25)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await attempts.until_done(self._journal.wait, last)


class _Runner:
    """One consumer at its work."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        journal: Journal,
        store: Store,
        now: Callable[[], int],
        backoff: Backoff,
        grace: float,
        moved: asyncio.Event,
    ) -> None:
        self._grace = grace
        self.name = consumer.name
        self.status = ConsumerStatus(consumer.name, now)
        self.tried = False
        """Whether it is known if the place is free: else it is soon this daemon's."""
        self._consumer = consumer
        self._journal = journal
        self._store = store
        self._now = now
        self._moved = moved
        self._cursor = Cursor(consumer.name, 0)
        self._refused = (-1, 0)
        """Where a step that was refused would have moved the place to, and how many records it did."""
        self._attempts = _Attempts(consumer.name, backoff, self.status)
        self._opening = _Attempts(consumer.name, backoff, self.status)

    async def place(self) -> None:
        position = await self._journal.place(self._consumer.name, self._consumer.start)
        self.status.position = self.status.last = position

    async def run(self) -> None:
        while True:
            self._cursor = await self._become_holder()
            if self._cursor.position == self._refused[0]:  # it was done all the same
                self.status.processed += self._refused[1]
            self._refused = (-1, 0)
            self.status.position, self.status.held = self._cursor.position, True
            self.status.last = max(self.status.last, self._cursor.position)
            try:
                await self._work()
            except NotHolder as error:
                _log.info("%s: %s", self.name, error)
                self.status.held, self.status.in_hand, self.status.oldest_at = False, 0, None
                await self.close(self._grace)  # opened again once this daemon holds it again

    async def _become_holder(self) -> Cursor:
        holding = asyncio.create_task(self._attempts.until_done(self._hold))
        try:
            await asyncio.wait([holding], timeout=_FREE)
            self.tried = True
            self._moved.set()
            return await holding
        finally:
            holding.cancel()

    async def _hold(self) -> Cursor:
        return await self._journal.hold(self._consumer.name, self._consumer.start)

    async def _work(self) -> None:
        """Go on with the journal until another daemon does."""
        # Beside the first read, so that the age of what waits is known also where it cannot be opened.
        opening = asyncio.create_task(self._opening.until_done(self._consumer.open))
        try:
            while True:
                records = await self._attempts.until_done(self._next)
                await opening
                await self._attempts.until_done(self._step, records)
        finally:
            opening.cancel()
            await asyncio.wait([opening])

    async def release(self) -> None:
        """Let another daemon go on at once, rather than when the hold runs out."""
        if self.status.held:
            with suppress(Unavailable):
                await self._journal.release(self._cursor)

    async def close(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._consumer.close()
        except Exception:  # noqa: BLE001 - a plugin may raise anything, and the others are to be closed too
            _log.exception("%s: could not be closed", self.name)

    async def _next(self) -> Sequence[Record]:
        while not (records := await self._read()):  # all that was there behind its place has been removed
            oldest = (await self._journal.extent()).first
            self.status.lost += oldest - 1 - self._cursor.position
            self._go_to(oldest - 1)  # the durable place has moved with the removal
        status = self.status
        status.in_hand, status.reached = len(records), records[-1].position
        gap = status.reached - self._cursor.position - len(records)
        status.lost += gap + max(0, status.removed - status.reached)
        status.oldest_at = records[0].at
        status.last = max(status.last, status.reached)
        return records

    async def _read(self) -> Sequence[Record]:
        consumer, after = self._consumer, self._cursor.position
        await self._journal.wait(after, self._cursor)
        if consumer.linger:
            with suppress(TimeoutError):
                async with asyncio.timeout(consumer.linger):
                    await self._journal.wait(after + consumer.max_records - 1, self._cursor)
        return await self._journal.read(after, consumer.max_records)

    def _go_to(self, position: int) -> None:
        self._cursor = self._cursor._replace(position=position)
        self.status.position = position

    async def _step(self, records: Sequence[Record]) -> None:
        step = Step(self._store.begin(self._now(), step=True))
        try:
            await self._consumer.process(records, step)
        except BaseException:
            self._store.discard(step.state)
            raise
        await _to_the_end(self._commit(step, records))

    async def _commit(self, step: Step, records: Sequence[Record]) -> None:
        # Never back behind what has been removed while the step was under way.
        cursor = self._cursor._replace(position=max(records[-1].position, self.status.removed), record=records[-1])
        try:
            await self._journal.append(step.records, step.state, cursor)
        except BaseException as error:
            if isinstance(error, NotHolder):
                self._refused = cursor.position, len(records)
            self._store.discard(step.state)
            raise
        self.status.processed += len(records)
        self.status.in_hand = 0
        self._go_to(max(records[-1].position, self.status.removed))
        # Not the next one's time, but as good while many wait; of one that comes later nothing is known.
        self.status.oldest_at = records[-1].at if self.status.pending else None
        self._moved.set()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that must not be cut in two: being cancelled ends it afterwards."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@dataclass
class _Attempts:
    """Does something again until it succeeds, with growing pauses, and logs without making a din.

    Only that a place is another's is told at once.
    """

    name: str
    backoff: Backoff
    status: ConsumerStatus | None = None
    _failures: int = field(default=0, init=False)
    _reason: str = field(default="", init=False)

    async def until_done(self, attempt: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                result = await attempt(*args, **kwargs)
            except NotHolder:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if task.cancelling():
                    raise asyncio.CancelledError from error
                # Else a CancelledError came from inside the attempt, and is a failure like another.
                self._failed(error)
                await asyncio.sleep(self._pause(error))
            else:
                self._succeeded()
                if task.cancelling():  # and the attempt kept it to itself
                    raise asyncio.CancelledError
                return result

    def _pause(self, error: BaseException) -> float:
        pause = self.backoff.pause(self._failures)
        if isinstance(error, Unavailable):  # it is the store: to ask it costs little, and once it is back all wait
            return min(pause, _STORE_PAUSE)
        after = error.after if isinstance(error, SinkRetry) else None
        return pause if after is None else max(pause, after)

    def _failed(self, error: BaseException) -> None:
        reason = str(error) if isinstance(error, IngestdError) else f"{type(error).__name__}: {error}"
        self._failures += 1
        rare = self._failures & (self._failures - 1) == 0  # the 1st, 2nd, 4th, 8th …
        if rare or reason != self._reason:
            expected = isinstance(error, IngestdError | OSError)
            _log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s: %s; it is tried again (failure %d in a row)",
                self.name,
                reason,
                self._failures,
                exc_info=None if expected else error,
            )
        self._reason = reason
        if self.status is not None:
            self.status.failures += 1
            self.status.last_error = reason

    def _succeeded(self) -> None:
        if self._failures:
            _log.info("%s: goes on after %d failures", self.name, self._failures)
            self._failures = 0
            self._reason = ""
            if self.status is not None:
                self.status.last_error = None
