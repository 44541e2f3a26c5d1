"""Runs one consumer: acquires its cursor, reads its records and commits its steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import NamedTuple

from ingestd.api.backend import describe_partition
from ingestd.api.consumer import Consumer, NextAction, Step
from ingestd.api.errors import LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal
from ingestd.api.store import State, Store
from ingestd.support.backoff import Backoff
from ingestd.support.periodic import TIMING, seconds_between_looks

from .erasures import REMOVED
from .failure_log import FailureLogs
from .journal_reader import JournalReader
from .retry import Attempts
from .status import ConsumerStatus

__all__ = ["Runner", "Shared"]

_log = logging.getLogger("ingestd.consumers")

_FREE = 1.0  # seconds within which a free cursor can be acquired
_MOST_IDLE = 5.0  # seconds after which a consumer of many partitions is asked for its next action at the latest
_PASSING = 1.0  # seconds of uninterrupted work after which the cursor may pass to another daemon
_HURRIED = 0.02  # seconds until then while the daemon stops and records are buffered

_NEVER: tuple[int, int, Callable[[], None]] = (-1, 0, lambda: None)


class Shared(NamedTuple):
    """What the consumers of a partition share."""

    journal: Journal
    store: Store
    now: Callable[[], int]
    backoff: Backoff | None
    """Replaces the backoff of every consumer."""
    grace: float
    moved: asyncio.Event
    """Set when a consumer has moved."""
    give_way: Callable[[float], Awaitable[None]]
    failure_logs: FailureLogs
    partition: str
    """The name of the partition of journal and store."""
    partitions: int

    def place(self) -> str:
        """Describes the partition for operators."""
        return describe_partition(self.partition, self.store.tenants)


class Runner:
    """Runs one consumer."""

    def __init__(self, consumer: Consumer, shared: Shared) -> None:
        self._shared = shared
        self._journal, self._store = shared.journal, shared.store
        self._idle = seconds_between_looks(TIMING.next_action, shared.partitions, _MOST_IDLE)
        self.name = consumer.name
        self.status = ConsumerStatus(consumer.name, shared.now)
        self.tried = False
        """Whether this daemon had the time to acquire a free cursor. Until then the cursor is probably free."""
        self.consumer = consumer
        self.reader = JournalReader(consumer, shared.journal, self.status, shared.partitions)
        self._in_hand: Sequence[Record] = ()
        """Records that were gathered and not processed yet."""
        self._ending = False
        self._prepared = False
        """Whether `prepare` has begun the next step, so that this step must be done before the consumer ends."""
        self._uncommitted = False
        """Whether the store failed to commit a step, whose records the next holder of the cursor would write again."""
        self._could_pass_at = 0.0  # when the cursor could last pass to another daemon, by the loop's clock
        self._quiet = asyncio.Event()
        """Set while no work is in progress that would have to be repeated after a cancellation."""
        self._quiet.set()
        self._outdated = False
        """Whether records in hand may have been blanked in the journal."""
        self._refused = _NEVER
        """A step whose commit raised `LeaseLost`: its cursor position, its number of records, and its `committed`."""
        log, backoff = shared.failure_logs[consumer.name], shared.backoff or consumer.backoff
        rest = self._rest if consumer.polls_commands else asyncio.sleep
        self._attempts = Attempts(log, backoff, self.status, rest, shared.place)
        self._opening = Attempts(log, backoff, self.status, place=shared.place)  # the cursor, and `open`

    @property
    def _label(self) -> str:
        return f"{self.name} in {self._shared.place()}" if self._shared.partition else self.name

    @property
    def is_behind(self) -> bool:
        """Whether this daemon has pending records to process, or will have them soon."""
        return bool(self.status.pending) and not self.status.paused and (self.status.held or not self.tried)

    async def ensure_cursor(self) -> None:
        """Create the durable cursor, so that the consumer misses no later record. Raises `Unavailable`."""
        await self.reader.ensure_cursor(self._label, self._begin_state)

    def person_forgotten(self) -> None:
        """Drop the text of the last error, and read the records in hand again, because they may be blanked now.

        Records that are in a buffer, or whose step has begun, are used as they are.
        """
        self._outdated = True
        if self.status.last_error is not None:
            self.status.last_error = REMOVED

    def hurry(self) -> None:
        """Stop lingering, because the daemon stops and waits for the pending records."""
        self.consumer.hurry()
        self.reader.hurry()

    async def end(self) -> None:
        """Return once the work in progress is done. No further work begins, so a cancellation costs nothing."""
        self._ending = True
        self.hurry()
        await self._quiet.wait()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(self._shared.grace):
                await self.consumer.close()
        except Exception:  # noqa: BLE001 - a plugin may raise anything, and the others must be closed too
            _log.exception("%s: could not be closed", self._label)

    async def run(self) -> None:
        if not self.reader.has_cursor:
            await self._opening.until_done(self.ensure_cursor)
            self._shared.moved.set()
        while True:
            cursor = await self._become_holder()
            self._count_refused(cursor)
            self.reader.begin_after(cursor)
            self.status.held = True
            try:
                await self._work()
            except LeaseLost as error:
                await self._lose_cursor(error)

    async def _become_holder(self) -> Cursor:
        holding = asyncio.create_task(self._opening.until_done(self.reader.acquire_cursor))
        try:
            await asyncio.wait([holding], timeout=_FREE)
            self.tried = True
            self._shared.moved.set()
            return await holding
        finally:
            holding.cancel()

    def _count_refused(self, cursor: Cursor) -> None:
        """Count the refused step if it was committed after all."""
        position, count, committed = self._refused
        self._refused = _NEVER
        if cursor.position == position:
            self.status.processed += count
            committed()

    async def _lose_cursor(self, error: LeaseLost) -> None:
        # All consumers of many partitions move when a daemon comes or goes.
        _log.log(logging.DEBUG if self._shared.partition else logging.INFO, "%s: %s", self._label, error)
        # The cursor is probably free: a step that is not in the journal yet also ends the lease.
        self.tried = False
        self.status.held = self.status.paused = False
        self.status.in_hand = self.status.buffered = 0
        self.status.oldest_at = self.status.last_error = None
        await self.close()  # opened again when this daemon acquires the cursor again

    async def _work(self) -> None:
        """Process the journal until another daemon acquires the cursor."""
        # The first read runs beside `open`, so that the age of pending records is known even if `open` fails.
        opening = asyncio.create_task(self._opening.until_done(self.consumer.open))
        try:
            while True:
                await self._attempts.until_done(self._do_next, opening)
        finally:
            self._in_hand = ()
            self._prepared = False
            self._quiet.set()
            opening.cancel()
            await asyncio.wait([opening])
            await self.reader.rewind()

    async def _do_next(self, opening: asyncio.Task[None]) -> None:
        """Do one step, after a command if there is one. A failed command does not delay the records."""
        if self._is_outdated:
            self._outdated = False
            await self._rewind()
        version = self._store.version
        action: NextAction = await self._next_action() if self.consumer.polls_commands else "records"
        failure = None
        if action != "records" and await self._is_open(opening):
            async with self._at_work():
                if action == "flush":
                    await self._flush()
                else:
                    failure = await self._do_command()
        if action == "flush":
            return
        if action != "records" or not opening.done():
            version = None
        if await self._gather(action, version) and await self._is_open(opening) and not self._is_outdated:
            async with self._at_work():
                await self._step()
        if failure is not None:
            raise failure

    async def _next_action(self) -> NextAction:
        """Return the next action, once it is not "nothing". A step that `prepare` has begun comes before a pause."""
        while (action := await self._ask_for_action()) == "nothing" and not self._prepared:
            await self._learn_age()
            self._shared.moved.set()
            await asyncio.sleep(TIMING.next_action)
        return "records" if action == "nothing" else action

    async def _ask_for_action(self) -> NextAction:
        """Raises `LeaseLost` if the cursor passes: this also happens while the consumer is paused or its sink fails."""
        if not (self._prepared or self._uncommitted):
            await self._journal.wait(-1, self.reader.cursor)  # waits for nothing, because a journal begins at 0
        state = self._begin_state()
        action = await self.consumer.next_action(state)
        await self._store.commit(state)
        self.status.paused = action == "nothing"
        return action

    async def _learn_age(self) -> None:
        """Learn the age of the oldest pending record while the consumer reads nothing."""
        if self.status.pending and not self._in_hand and not self.status.buffered:
            for outline in await self._journal.outlines(self.reader.cursor.position, 1):
                self.status.oldest_at = outline.at

    async def _is_open(self, opening: asyncio.Task[None]) -> bool:
        """Wait for `open`, and return whether it is done. With `polls_commands`, wait `next_action` seconds at most."""
        if not opening.done():
            await asyncio.wait([opening], timeout=TIMING.next_action if self.consumer.polls_commands else None)
        if opening.done():
            await opening
        return opening.done()

    async def _gather(self, action: NextAction, version: Hashable) -> bool:
        """Get records in hand, and return whether a step of them comes next.

        As long as the store has this version, it has no new command. None: it may have.
        """
        if not self._in_hand:
            clock = asyncio.get_running_loop().time
            since = clock()
            # The next holder of the cursor would repeat what `prepare` has done.
            may_pass = not self._prepared
            while not (in_hand := await self.reader.next(self._longest_wait(action), may_pass=may_pass)):
                if version is None or version != self._store.version or self.status.buffered:
                    break
            self._in_hand = in_hand
            self._could_pass_at = clock() if may_pass else self._could_pass_at
            if self.consumer.polls_commands and clock() - since > TIMING.next_action:
                return False  # an operator may have given a command meanwhile, such as a pause, which comes first
        return bool(self._in_hand)

    def _longest_wait(self, action: NextAction) -> float | None:
        """The seconds after which the consumer is asked for its next action even if no record comes."""
        if not self.consumer.polls_commands:
            return None
        if action == "command":  # more of it may follow
            return 0.0
        if not self.status.buffered:  # records wake the consumer
            return self._idle
        # Records in its buffer become old without new ones. When the daemon stops, they are flushed after the last one.
        return _HURRIED if self.reader.is_hurried else TIMING.next_action

    @property
    def _is_outdated(self) -> bool:
        """Whether records in hand may be a forgotten person's, and nothing has been done with them yet."""
        return self._outdated and not self._prepared and not self.status.buffered

    async def _step(self) -> None:
        try:
            step = await self._attempt_step(lambda step: self.consumer.process(self._in_hand, step))
        except BaseException as error:
            self._prepared = self._prepared and isinstance(error, Unavailable)
            raise
        self._prepared = False
        count = len(self._in_hand) if step.done is None else step.done
        if step.buffered:
            self._store.discard(step.state)
            self._keep_buffered(count)
            return
        committing = asyncio.create_task(self._commit(step, count))
        goes_on = asyncio.get_running_loop().time() - self._could_pass_at < _PASSING and not self.status.paused
        try:  # disk or network work on the commit while the next step is prepared
            goes_on = goes_on and count == len(self._in_hand) and not self._ending
            ahead = await self.reader.ahead() if goes_on else ()
            if ahead and not self._outdated:  # else the next step reads again what a forgotten person has sent
                await self.consumer.prepare(ahead)
                self._prepared = True
        finally:
            await _to_the_end(committing)

    async def _attempt_step(self, work: Callable[[Step], Awaitable[None]]) -> Step:
        """Let the consumer do its part of a step. The state of a failed one is discarded."""
        step = Step(self._begin_state(), self._shared.give_way, self._journal)
        try:
            await work(step)
        except BaseException:
            self._store.discard(step.state)
            raise
        return step

    def _keep_buffered(self, count: int) -> None:
        done, self._in_hand = self._in_hand[:count], self._in_hand[count:]
        reached = done[-1].position
        self.status.buffered += count
        self.status.in_hand = len(self._in_hand)
        if not self._in_hand:  # removed records were counted as lost while there were records in hand
            reached = self.status.reached = max(reached, self.status.removed)
        self.reader.reached = reached
        self._shared.moved.set()

    async def _commit(self, step: Step, count: int) -> None:
        done, rest = self._in_hand[:count], self._in_hand[count:]
        if not done:
            await self._commit_command(step)
            return
        # A step without new records can be repeated after a power failure without any difference.
        position = await self._commit_step(step, done[-1], count, deferrable=not step.records)
        self.status.in_hand, self._in_hand = len(rest), rest
        self._tell_committed(step, position, done[-1])

    async def _do_command(self) -> Exception | None:
        """Carry out a part of a command, and return its failure. Raises errors that would make steps fail too."""
        try:
            step = await self._attempt_step(lambda step: self.consumer.command(step, self._journal))
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 - the caller raises it after a step of records
            return error
        await _to_the_end(asyncio.create_task(self._commit_command(step)))
        return None

    async def _commit_command(self, step: Step) -> None:
        await self._commit_step(step)
        step.committed()

    async def _flush(self) -> None:
        step = await self._attempt_step(lambda step: self.consumer.flush(step, self._journal))
        await _to_the_end(asyncio.create_task(self._commit_flush(step)))

    async def _commit_flush(self, step: Step) -> None:
        last = step.flushed
        if last is None:
            await self._commit_command(step)
            if step.rewound:
                await self._rewind()
            return
        position = await self._commit_step(step, last, self.status.buffered)
        self.status.buffered = 0
        if not self._in_hand:
            self.status.lost += max(0, position - self.status.reached)
        self._tell_committed(step, position, last)

    async def _commit_step(
        self, step: Step, last: Record | None = None, count: int = 0, *, deferrable: bool = False
    ) -> int:
        """Commit a step with so many records up to `last`, and return the new position of the cursor."""
        cursor = self.reader.cursor
        # Never before records that were removed meanwhile.
        position = max(cursor.position if last is None else last.position, self.status.removed)
        cursor = cursor._replace(position=position, record=last, deferrable=deferrable)
        try:
            await self._journal.commit(step.records, step.state, cursor)
        except BaseException as error:
            self._store.discard(step.state)
            self._uncommitted = isinstance(error, Unavailable)
            if isinstance(error, LeaseLost) and last is not None:
                self._refused = position, count, step.committed
            raise
        self._uncommitted = False
        self.status.processed += count
        return position

    def _tell_committed(self, step: Step, position: int, last: Record) -> None:
        self.reader.move_cursor(position)
        step.committed()
        # The next record may not be read yet. While records are pending, the time of the last one is close enough.
        rest = self._in_hand
        self.status.oldest_at = rest[0].at if rest else last.at if self.status.pending else None
        self._shared.moved.set()

    async def _rewind(self) -> None:
        """Read all records after the cursor again."""
        await self.reader.rewind()
        self._in_hand = ()
        self.status.in_hand = self.status.buffered = 0

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        if self._ending and not self._prepared:
            await asyncio.Event().wait()  # waits until the cancellation
        self._quiet.clear()
        try:
            yield
        finally:
            if not self._prepared:
                self._quiet.set()

    async def _rest(self, seconds: float) -> None:
        """Pause after a failure. Meanwhile the consumer reads operators' commands and stores its failure."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > TIMING.next_action:
            await asyncio.sleep(TIMING.next_action)
            try:
                await self._ask_for_action()
            except LeaseLost:
                raise
            except Exception:  # noqa: BLE001, S112 - it occurs again before the next step
                continue
        await asyncio.sleep(left)

    def _begin_state(self) -> State:
        return self._store.begin(self._shared.now(), step=True)


async def _to_the_end(task: asyncio.Task[None]) -> None:
    """Await work that must be completed. A cancellation takes effect after the work."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the next holder of the cursor repeats failed work
        raise
