"""Runs one consumer: acquires its cursor, reads its records and commits its steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from ingestd.api.consumer import Consumer, NextAction, Step
from ingestd.api.errors import LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal
from ingestd.api.store import Store
from ingestd.support.backoff import Backoff
from ingestd.support.periodic import TIMING, seconds_between_looks, seconds_between_steps

from .erasures import REMOVED
from .failure_log import FailureLog
from .read_ahead import ReadAhead
from .retry import Attempts
from .status import ConsumerStatus

__all__ = ["Runner"]

_log = logging.getLogger("ingestd.consumers")

_FREE = 1.0  # seconds within which a free cursor can be acquired
_MOST_IDLE = 5.0  # seconds after which a consumer of many partitions is asked for its next action at the latest
_ATTEND_FORCED = 0.02  # seconds until then while the daemon stops and records are buffered


_NEVER: tuple[int, int, Callable[[], None]] = (-1, 0, lambda: None)


class Runner:
    """Runs one consumer."""

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
        give_way: Callable[[float], Awaitable[None]],
        failure_log: FailureLog,
        partition: str = "",
        partitions: int = 1,
    ) -> None:
        """`partition` is the name of the partition of journal and store, and `partitions` is their number."""
        self._grace = grace
        self._attend_idle = seconds_between_looks(TIMING.next_action, partitions, _MOST_IDLE)
        self._between_steps = seconds_between_steps(partitions)
        self._next_step = 0.0
        """The time before which a step waits for further records, by the loop's clock."""
        self._label = f"{consumer.name} (partition {partition})" if partition else consumer.name
        self.name = consumer.name
        self.status = ConsumerStatus(consumer.name, now)
        self.has_cursor = False
        """Whether the durable cursor exists."""
        self.tried = False
        """Whether this daemon had the time to acquire a free cursor since it lost or released it. Until then the cursor
        is probably free.
        """
        self.consumer = consumer
        self._journal = journal
        self._store = store
        self._now = now
        self._moved = moved
        self._give_way = give_way
        self._cursor = Cursor(consumer.name, 0)
        self._reached = 0
        """The position up to which records were read. Only buffered records are between the cursor and it."""
        self._in_hand: Sequence[Record] = ()
        """Records that were read and not processed yet."""
        self._ahead = ReadAhead(journal, consumer.max_records)
        self._lingering: asyncio.Timeout | None = None
        self._forced = False
        self._ending = False
        self._prepared = False
        """Whether `prepare` has begun the next step, so that this step must be done before the consumer ends."""
        self._quiet = asyncio.Event()
        """Set while no work is in progress that would have to be repeated after a cancellation."""
        self._quiet.set()
        self._outdated = False
        """Whether records in hand may have been blanked in the journal."""
        self._refused = _NEVER
        """A step whose commit raised `LeaseLost`: its cursor position, its number of records, and its `committed`."""
        rest = self._rest if consumer.polls_commands else asyncio.sleep
        self._attempts = Attempts(failure_log, backoff, self.status, rest, partition)
        self._opening = Attempts(failure_log, backoff, self.status, partition=partition)

    @property
    def is_behind(self) -> bool:
        """Whether this daemon has pending records to process, or will have them soon."""
        return bool(self.status.pending) and not self.status.paused and (self.status.held or not self.tried)

    async def ensure_cursor(self) -> None:
        position = await self._journal.ensure_cursor(self.name, self.consumer.start)
        last = await self._journal.last()
        if position > last:
            await self._set_back(position, last)
        self.status.position = self.status.last = min(position, last)
        self.has_cursor = True

    async def _set_back(self, position: int, last: int) -> None:
        """Move the cursor back to the end of a journal that was replaced or restored.

        New records get the positions of the lost records.
        """
        _log.warning(
            "%s: its cursor, %d, was beyond the journal's end, and is %d now, so that no record is skipped",
            self._label, position, last,
        )  # fmt: skip
        cursor = await self._journal.acquire_cursor(self.name, self.consumer.start)
        await self._journal.commit([], self._store.begin(self._now(), step=True), cursor._replace(position=last))
        await self._journal.release(cursor)

    async def run(self) -> None:
        if not self.has_cursor:
            await self._attempts.until_done(self.ensure_cursor)
            self._moved.set()
        while True:
            self._cursor = await self._become_holder()
            if self._cursor.position == self._refused[0]:  # the refused step was committed after all
                self.status.processed += self._refused[1]
                self._refused[2]()
            self._refused = _NEVER
            self._reached = self._cursor.position
            self.status.position, self.status.held = self._cursor.position, True
            # A cursor is never before the removed records. If the journal was replaced, fewer records are removed.
            self.status.removed = min(self.status.removed, self._cursor.position)
            try:
                await self._work()
            except LeaseLost as error:
                # All consumers of many partitions move when a daemon comes or goes.
                _log.log(logging.INFO if self._label == self.name else logging.DEBUG, "%s: %s", self._label, error)
                # The cursor is probably free: a step that is not in the journal yet also ends the lease.
                self.tried = False
                self.status.held, self.status.in_hand, self.status.oldest_at = False, 0, None
                self.status.buffered = 0
                await self.close(self._grace)  # opened again when this daemon acquires the cursor again

    def person_forgotten(self) -> None:
        """Drop the text of the last error, and read the records in hand again, because they may be blanked now.

        Records that are in a buffer, or whose step has begun, are used as they are.
        """
        self._outdated = True
        if self.status.last_error is not None:
            self.status.last_error = REMOVED

    def hurry(self) -> None:
        """Stop lingering, because the daemon stops and waits for the pending records."""
        self._forced = True
        self.consumer.hurry()
        if self._lingering is not None and not self._lingering.expired():
            self._lingering.reschedule(asyncio.get_running_loop().time())

    async def end(self) -> None:
        """Return once the work in progress is done. No further work begins, so a cancellation costs nothing."""
        self._ending = True
        self.hurry()
        await self._quiet.wait()

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
        cursor = await self._journal.acquire_cursor(self.consumer.name, self.consumer.start)
        # The earlier `status.last` does not count, because a failover may have lost the end of the journal.
        self.status.last = max(await self._journal.last(), cursor.position)
        return cursor

    async def _work(self) -> None:
        """Process the journal until another daemon acquires the cursor."""
        # The first read runs beside `open`, so that the age of pending records is known even if `open` fails.
        opening = asyncio.create_task(self._opening.until_done(self.consumer.open))
        try:
            while True:
                await self._attempts.until_done(self._go_on, opening)
        finally:
            self._in_hand = ()
            self._prepared = False
            self._quiet.set()
            opening.cancel()
            await asyncio.wait([opening])
            await self._ahead.forget()

    async def _go_on(self, opening: asyncio.Task[None]) -> None:
        """Do one step, after a command if there is one. A failed command does not delay the records."""
        if self._is_outdated:
            self._outdated = False
            await self._rewind()
        failure, limit = None, None
        if self.consumer.polls_commands:
            action = await self._next_action()
            # Records wake the consumer. Only those in its buffer become old without new ones.
            idle = TIMING.next_action if self.status.buffered else self._attend_idle
            limit = idle if action == "records" else 0.0
            if self._forced and self.status.buffered:  # the consumer flushes as soon as no more records come
                limit = min(limit, _ATTEND_FORCED)
            if action == "flush":
                if await self._is_open(opening):
                    async with self._at_work():
                        await self._flush()
                return
            if action == "command" and await self._is_open(opening):
                async with self._at_work():
                    failure = await self._do_command()
        if not self._in_hand:
            clock = asyncio.get_running_loop().time
            since = clock()
            self._in_hand = await self._next(limit)
            if self.consumer.polls_commands and clock() - since > TIMING.next_action:
                return  # an operator may have given a command meanwhile, such as a pause, which comes first
        # A person may have been forgotten during a pause of the sink, or while it was opened.
        if self._in_hand and await self._is_open(opening) and not self._is_outdated:
            async with self._at_work():
                await self._step()
        if failure is not None:
            raise failure

    @property
    def _is_outdated(self) -> bool:
        """Whether records in hand must be read again, and nothing has been done with them."""
        return self._outdated and not self._prepared and not self.status.buffered

    async def _is_open(self, opening: asyncio.Task[None]) -> bool:
        """Wait for `open`, and return whether it is done. With `polls_commands`, wait `next_action` seconds at most."""
        if not opening.done():
            await asyncio.wait([opening], timeout=TIMING.next_action if self.consumer.polls_commands else None)
        if opening.done():
            await opening
        return opening.done()

    async def _next_action(self) -> NextAction:
        """Return the next action, once it is not "nothing"."""
        while (action := await self._ask_for_action()) == "nothing":
            await self._learn_age()
            self._moved.set()
            await asyncio.sleep(TIMING.next_action)
        return action

    async def _ask_for_action(self) -> NextAction:
        state = self._store.begin(self._now(), step=True)
        action = await self.consumer.next_action(state)
        await self._store.commit(state)
        self.status.paused = action == "nothing"
        return action

    async def _learn_age(self) -> None:
        """Learn the age of the oldest pending record while the consumer reads nothing."""
        if self.status.pending and not self._in_hand and not self.status.buffered:
            for outline in await self._journal.outlines(self._cursor.position, 1):
                self.status.oldest_at = outline.at

    async def _rest(self, seconds: float) -> None:
        """Pause after a failure. Meanwhile ask for the next action, so that the consumer can read operators' commands
        and store its failure.
        """
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > TIMING.next_action:
            await asyncio.sleep(TIMING.next_action)
            with suppress(Exception):  # an error here occurs again before the next step
                await self._ask_for_action()
        await asyncio.sleep(left)

    async def release(self) -> None:
        """Release the cursor, so that another daemon can acquire it at once and need not wait for the lease to end."""
        if self.status.held:
            with suppress(Unavailable):
                await self._journal.release(self._cursor)

    async def close(self, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await self.consumer.close()
        except Exception:  # noqa: BLE001 - a plugin may raise anything, and the others must be closed too
            _log.exception("%s: could not be closed", self._label)

    async def _next(self, limit: float | None) -> Sequence[Record]:
        """The next records, or nothing if none arrive within `limit` seconds."""
        while True:
            if not await self._wait(limit):
                return ()
            records = await self._ahead.read(self._reached, removed=self.status.removed)
            if records:
                break
            oldest = (await self._journal.extent()).first
            if oldest - 1 <= self._reached:  # none may be read yet: a failover has changed the journal's end
                continue
            # All records after the cursor were removed.
            self.status.lost += oldest - 1 - self._reached
            if self.status.buffered:
                self._reached = self.status.reached = oldest - 1
            else:
                self._go_to(oldest - 1)  # the removal has moved the durable cursor too
        while self.consumer.wants_more(records):
            more = await self._ahead.read(records[-1].position, removed=self.status.removed)
            if not more:
                break
            records = [*records, *more]
        records = self._cut(records)
        status = self.status
        status.in_hand, status.reached = len(records), records[-1].position
        gap = status.reached - self._reached - len(records)
        status.lost += gap + max(0, status.removed - status.reached)
        if not status.buffered:
            status.oldest_at = records[0].at
        status.last = max(status.last, status.reached)
        return records

    def _cut(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records of one step. The others begin the next step, which would otherwise have only these."""
        most = self.consumer.max_records
        if len(records) <= most or self.consumer.wants_more(records[:most]):
            return records
        self._ahead.put_back(records[most - 1].position, records[most:])
        return records[:most]

    async def _wait(self, limit: float | None) -> bool:
        consumer, after = self.consumer, self._reached
        try:
            async with asyncio.timeout(limit):
                await self._journal.wait(after, self._cursor)
        except TimeoutError:
            return False
        clock = asyncio.get_running_loop().time
        linger = max(consumer.linger, self._next_step - clock())
        if linger > 0 and not self._forced and limit != 0.0:  # at a limit of 0 a command goes on
            self._lingering = asyncio.timeout(linger)
            try:
                async with self._lingering:
                    await self._journal.wait(after + consumer.max_records - 1, self._cursor)
            except TimeoutError:
                pass
            finally:
                self._lingering = None
        self._next_step = clock() + self._between_steps
        return True

    def _go_to(self, position: int) -> None:
        self._cursor = self._cursor._replace(position=position)
        self._reached = max(self._reached, position)
        self.status.position = position

    async def _step(self) -> None:
        step = self._new_step()
        try:
            await self.consumer.process(self._in_hand, step)
        except BaseException:
            self._store.discard(step.state)
            raise
        finally:
            self._prepared = False
        count = len(self._in_hand) if step.done is None else step.done
        if step.buffered:
            self._store.discard(step.state)
            self._keep_buffered(count)
            return
        committing = asyncio.create_task(self._commit(step, count))
        try:  # disk or network work on the commit while the next step is prepared
            if (
                count == len(self._in_hand)
                and not self._ending
                and (ahead := await self._ahead.peek(removed=self.status.removed))
            ):
                self._prepared = True
                await self.consumer.prepare(ahead)
        finally:
            await _to_the_end(committing)

    def _new_step(self) -> Step:
        return Step(self._store.begin(self._now(), step=True), self._give_way, self._journal)

    def _keep_buffered(self, count: int) -> None:
        done, self._in_hand = self._in_hand[:count], self._in_hand[count:]
        self._reached = done[-1].position
        self.status.buffered += count
        self.status.in_hand = len(self._in_hand)
        if not self._in_hand:  # removed records were counted as lost while there were records in hand
            self._reached = self.status.reached = max(self._reached, self.status.removed)
        self._moved.set()

    async def _commit(self, step: Step, count: int) -> None:
        done, rest = self._in_hand[:count], self._in_hand[count:]
        if not done:
            await self._commit_command(step)
            return
        # Never before the records that were removed during the step.
        position = max(done[-1].position, self.status.removed)
        try:
            # A step without new records can be repeated after a power failure without any difference.
            cursor = self._cursor._replace(position=position, record=done[-1], deferrable=not step.records)
            await self._append(step, cursor)
        except LeaseLost:
            self._refused = position, count, step.committed
            raise
        self.status.processed += count
        self.status.in_hand, self._in_hand = len(rest), rest
        self._go_to(position)
        step.committed()
        # The next record is not read yet. While records are pending, the time of the last one is close enough.
        self.status.oldest_at = rest[0].at if rest else done[-1].at if self.status.pending else None
        self._moved.set()

    async def _do_command(self) -> Exception | None:
        """Carry out a part of a command, and return its failure. Raises errors that would make steps fail too."""
        step = self._new_step()
        try:
            await self.consumer.command(step, self._journal)
        except BaseException as error:
            self._store.discard(step.state)
            if isinstance(error, LeaseLost | Unavailable) or not isinstance(error, Exception):
                raise
            return error
        await _to_the_end(asyncio.create_task(self._commit_command(step)))
        return None

    async def _flush(self) -> None:
        step = self._new_step()
        try:
            await self.consumer.flush(step, self._journal)
        except BaseException:
            self._store.discard(step.state)
            raise
        await _to_the_end(asyncio.create_task(self._commit_flush(step)))

    async def _commit_flush(self, step: Step) -> None:
        last = step.flushed
        if last is None:
            await self._commit_command(step)
            if step.rewound:
                await self._rewind()
            return
        count, position = self.status.buffered, max(last.position, self.status.removed)
        try:
            await self._append(step, self._cursor._replace(position=position, record=last))
        except LeaseLost:
            self._refused = position, count, step.committed
            raise
        self.status.processed += count
        self.status.buffered = 0
        if not self._in_hand:
            self.status.lost += max(0, position - self.status.reached)
        self._go_to(position)
        step.committed()
        following = self._in_hand[0] if self._in_hand else last
        self.status.oldest_at = following.at if self.status.pending else None
        self._moved.set()

    async def _rewind(self) -> None:
        """Read all records after the cursor again."""
        await self._ahead.forget()
        self._in_hand, self._reached = (), self._cursor.position
        self.status.in_hand = self.status.buffered = 0

    async def _commit_command(self, step: Step) -> None:
        await self._append(step, self._cursor._replace(position=max(self._cursor.position, self.status.removed)))
        step.committed()

    async def _append(self, step: Step, cursor: Cursor) -> None:
        try:
            await self._journal.commit(step.records, step.state, cursor)
        except BaseException:
            self._store.discard(step.state)
            raise


async def _to_the_end(task: asyncio.Task[None]) -> None:
    """Await work that must be completed. A cancellation takes effect after the work."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the next holder of the cursor repeats failed work
        raise
