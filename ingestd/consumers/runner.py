"""One consumer at its work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from ingestd.api.backoff import Backoff
from ingestd.api.consumer import Consumer, NextAction, Step
from ingestd.api.errors import LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal
from ingestd.api.store import Store

from .read_ahead import ReadAhead
from .retry import Attempts
from .status import ConsumerStatus

__all__ = ["Runner"]

_log = logging.getLogger("ingestd.consumers")

_FREE = 1.0  # seconds in which a place that is free is had
_ATTEND = 0.5  # seconds after which it is looked what else there is to do, though no records come


_NEVER: tuple[int, int, Callable[[], None]] = (-1, 0, lambda: None)


class Runner:
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
        give_way: Callable[[float], Awaitable[None]],
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
        self._give_way = give_way
        self._cursor = Cursor(consumer.name, 0)
        self._in_hand: Sequence[Record] = ()
        """What has been read and not been done with."""
        self._ahead = ReadAhead(journal, consumer.max_records)
        self._lingering: asyncio.Timeout | None = None
        self._forced = False
        self._ending = False
        self._prepared = False
        """Whether the records of the next step have been begun on, so that it is to be done before it ends."""
        self._quiet = asyncio.Event()
        """Set while nothing is under way that would have to be done again if it were cut off."""
        self._quiet.set()
        self._refused = _NEVER
        """Where a step that was refused would have moved the place to, how many records it did, and whom to tell."""
        rest = self._rest if consumer.polls_commands else asyncio.sleep
        self._attempts = Attempts(consumer.name, backoff, self.status, rest)
        self._opening = Attempts(consumer.name, backoff, self.status)

    @property
    def is_behind(self) -> bool:
        """Whether this daemon has, or soon will have, something to do with it."""
        return bool(self.status.pending) and not self.status.paused and (self.status.held or not self.tried)

    async def place(self) -> None:
        position = await self._journal.ensure_cursor(self.name, self._consumer.start)
        last = await self._journal.last()
        if position > last:
            await self._set_back(position, last)
        self.status.position = self.status.last = min(position, last)

    async def _set_back(self, position: int, last: int) -> None:
        """The journal is another one, or an older state of it. Records to come have the positions of those it lost."""
        _log.warning(
            "%s: its place, %d, was beyond the journal's end, and is %d now, so that no record is skipped",
            self.name, position, last,
        )  # fmt: skip
        cursor = await self._journal.acquire_cursor(self.name, self._consumer.start)
        await self._journal.append([], self._store.begin(self._now(), step=True), cursor._replace(position=last))
        await self._journal.release(cursor)

    async def run(self) -> None:
        while True:
            self._cursor = await self._become_holder()
            if self._cursor.position == self._refused[0]:  # it was done all the same
                self.status.processed += self._refused[1]
                self._refused[2]()
            self._refused = _NEVER
            self.status.position, self.status.held = self._cursor.position, True
            # No place lies before what has been removed. In a journal that has come in place of another, less is.
            self.status.removed = min(self.status.removed, self._cursor.position)
            try:
                await self._work()
            except LeaseLost as error:
                _log.info("%s: %s", self.name, error)
                self.status.held, self.status.in_hand, self.status.oldest_at = False, 0, None
                await self.close(self._grace)  # opened again once this daemon holds it again

    def hurry(self) -> None:
        """Linger no more: the daemon stops, and waits for what is to be done yet."""
        self._forced = True
        if self._lingering is not None and not self._lingering.expired():
            self._lingering.reschedule(asyncio.get_running_loop().time())

    async def end(self) -> None:
        """Returns when what it is at has been done, and does nothing more: it can be cancelled at no cost."""
        self._ending = True
        self.hurry()
        await self._quiet.wait()

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        if self._ending and not self._prepared:
            await asyncio.Event().wait()  # until it is cancelled
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
        cursor = await self._journal.acquire_cursor(self._consumer.name, self._consumer.start)
        # Not what it has read: a failover may have lost the journal's end, and that with it.
        self.status.last = max(await self._journal.last(), cursor.position)
        return cursor

    async def _work(self) -> None:
        """Go on with the journal until another daemon does."""
        # Beside the first read, so that the age of what waits is known also where it cannot be opened.
        opening = asyncio.create_task(self._opening.until_done(self._consumer.open))
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
        """Do one step, and a command before it if there is one. One that fails keeps no records waiting."""
        failure, patience = None, None
        if self._consumer.polls_commands:
            turn = await self._attend()
            patience = _ATTEND if turn == "records" else 0.0
            if turn == "command" and await self._is_open(opening):
                async with self._at_work():
                    failure = await self._do_command()
        if not self._in_hand:
            self._in_hand = await self._next(patience)
        if self._in_hand and await self._is_open(opening):
            async with self._at_work():
                await self._step()
        if failure is not None:
            raise failure

    async def _is_open(self, opening: asyncio.Task[None]) -> bool:
        """Wait for it; where it is attended, no longer than it may be left alone."""
        if not opening.done():
            await asyncio.wait([opening], timeout=_ATTEND if self._consumer.polls_commands else None)
        if opening.done():
            await opening
        return opening.done()

    async def _attend(self) -> NextAction:
        """What is next, as soon as there may be anything."""
        while (turn := await self._ask_for_action()) == "nothing":
            await self._learn_age()
            self._moved.set()
            await asyncio.sleep(_ATTEND)
        return turn

    async def _ask_for_action(self) -> NextAction:
        state = self._store.begin(self._now())
        turn = await self._consumer.next_action(state)
        await self._store.commit(state)
        self.status.paused = turn == "nothing"
        return turn

    async def _learn_age(self) -> None:
        """Of what waits while nothing is read."""
        if self.status.pending and not self._in_hand:
            for outline in await self._journal.outlines(self._cursor.position, 1):
                self.status.oldest_at = outline.at

    async def _rest(self, seconds: float) -> None:
        """Pause after a failure, and ask for its turn meanwhile: it tells what fails, and learns what it is told."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > _ATTEND:
            await asyncio.sleep(_ATTEND)
            with suppress(Exception):  # what fails here fails again when it is asked before its step
                await self._ask_for_action()
        await asyncio.sleep(left)

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

    async def _next(self, patience: float | None) -> Sequence[Record]:
        """The next records; none if there are none within `patience` seconds."""
        while True:
            if not await self._wait(patience):
                return ()
            records = await self._ahead.read(self._cursor.position, removed=self.status.removed)
            if records:
                break
            oldest = (await self._journal.extent()).first  # all that was there behind its place has been removed
            self.status.lost += oldest - 1 - self._cursor.position
            self._go_to(oldest - 1)  # the durable place has moved with the removal
        status = self.status
        status.in_hand, status.reached = len(records), records[-1].position
        gap = status.reached - self._cursor.position - len(records)
        status.lost += gap + max(0, status.removed - status.reached)
        status.oldest_at = records[0].at
        status.last = max(status.last, status.reached)
        return records

    async def _wait(self, patience: float | None) -> bool:
        consumer, after = self._consumer, self._cursor.position
        try:
            async with asyncio.timeout(patience):
                await self._journal.wait(after, self._cursor)
        except TimeoutError:
            return False
        if consumer.linger and not self._forced:
            self._lingering = asyncio.timeout(consumer.linger)
            try:
                async with self._lingering:
                    await self._journal.wait(after + consumer.max_records - 1, self._cursor)
            except TimeoutError:
                pass
            finally:
                self._lingering = None
        return True

    def _go_to(self, position: int) -> None:
        self._cursor = self._cursor._replace(position=position)
        self.status.position = position

    async def _step(self) -> None:
        step = self._new_step()
        try:
            await self._consumer.process(self._in_hand, step)
        except BaseException:
            self._store.discard(step.state)
            raise
        finally:
            self._prepared = False
        count = len(self._in_hand) if step.done is None else step.done
        committing = asyncio.create_task(self._commit(step, count))
        try:  # the disk, or the network, has time for both
            if (
                count == len(self._in_hand)
                and not self._ending
                and (ahead := await self._ahead.peek(removed=self.status.removed))
            ):
                self._prepared = True
                await self._consumer.prepare(ahead)
        finally:
            await _to_the_end(committing)

    def _new_step(self) -> Step:
        return Step(self._store.begin(self._now(), step=True), self._give_way)

    async def _commit(self, step: Step, count: int) -> None:
        done, rest = self._in_hand[:count], self._in_hand[count:]
        # Never back behind what has been removed while the step was under way.
        position = max(done[-1].position, self.status.removed)
        try:
            # Without records of its own, nothing has come of the step that doing it again would not bring back.
            cursor = self._cursor._replace(position=position, record=done[-1], deferrable=not step.records)
            await self._append(step, cursor)
        except LeaseLost:
            self._refused = position, count, step.committed
            raise
        self.status.processed += count
        self.status.in_hand, self._in_hand = len(rest), rest
        self._go_to(position)
        step.committed()
        # Not the next one's time, but as good while many wait; of one that comes later nothing is known.
        self.status.oldest_at = rest[0].at if rest else done[-1].at if self.status.pending else None
        self._moved.set()

    async def _do_command(self) -> Exception | None:
        """Returns why it failed, unless nothing else could be done either."""
        step = self._new_step()
        try:
            await self._consumer.command(step, self._journal)
        except BaseException as error:
            self._store.discard(step.state)
            if isinstance(error, LeaseLost | Unavailable) or not isinstance(error, Exception):
                raise
            return error
        await _to_the_end(asyncio.create_task(self._commit_command(step)))
        return None

    async def _commit_command(self, step: Step) -> None:
        await self._append(step, self._cursor._replace(position=max(self._cursor.position, self.status.removed)))
        step.committed()

    async def _append(self, step: Step, cursor: Cursor) -> None:
        try:
            await self._journal.append(step.records, step.state, cursor)
        except BaseException:
            self._store.discard(step.state)
            raise


async def _to_the_end(task: asyncio.Task[None]) -> None:
    """Await work that must not be cut in two: being cancelled ends it afterwards."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # what failed in it is done again by who comes next
        raise
