"""Reads the journal for a consumer, from its cursor on: waits for records, lingers for more, and reads ahead."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ingestd.api.consumer import Consumer
from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor, Journal
from ingestd.api.store import State
from ingestd.support.periodic import seconds_between_steps

from .status import ConsumerStatus

__all__ = ["JournalReader"]

_log = logging.getLogger("ingestd.consumers")

_PARTS = 2  # that are read ahead


class JournalReader:
    """Has the cursor of a consumer, reads the records that the consumer has not had yet, and tells `status` of them."""

    def __init__(self, consumer: Consumer, journal: Journal, status: ConsumerStatus, partitions: int) -> None:
        """`partitions` is the number of the store's partitions: with many of them, steps wait for each other."""
        self.has_cursor = False
        """Whether the durable cursor exists."""
        self.cursor = Cursor(consumer.name, 0)
        self.reached = 0
        """The position up to which the consumer has taken records. Between the cursor and it they are buffered."""
        self.is_hurried = False
        self._consumer = consumer
        self._journal = journal
        self._status = status
        self._ahead = _ReadAhead(journal, consumer.max_records)
        self._between_steps = seconds_between_steps(partitions)
        self._next_step = 0.0
        """The time before which a step waits for further records, by the loop's clock."""
        self._lingering: asyncio.Timeout | None = None

    async def ensure_cursor(self, label: str, begin: Callable[[], State]) -> None:
        """Create the durable cursor. One beyond the end of a journal that was replaced or restored is set back.

        New records get the positions of the lost records. `label` names the consumer, and `begin` begins the state of
        a step. Raises `Unavailable`.
        """
        position = await self._journal.ensure_cursor(self._consumer.name, self._consumer.start)
        last = await self._journal.last()
        if position > last:
            _log.warning(
                "%s: its cursor, %d, was beyond the journal's end, and is %d now, so that no record is skipped",
                label, position, last,
            )  # fmt: skip
            cursor = await self._journal.acquire_cursor(self._consumer.name, self._consumer.start)
            await self._journal.commit([], begin(), cursor._replace(position=last))
            await self._journal.release(cursor)
        self._status.position = self._status.last = min(position, last)
        self.has_cursor = True

    async def acquire_cursor(self) -> Cursor:
        """Acquire the cursor once no other daemon has it. Raises `Unavailable`."""
        cursor = await self._journal.acquire_cursor(self._consumer.name, self._consumer.start)
        # The earlier `status.last` does not count, because a failover may have lost the end of the journal.
        self._status.last = max(await self._journal.last(), cursor.position)
        return cursor

    async def release_cursor(self) -> None:
        """Release a held cursor, so that another daemon acquires it at once and need not wait for the lease to end."""
        if self._status.held:
            with suppress(Unavailable):
                await self._journal.release(self.cursor)

    def begin_after(self, cursor: Cursor) -> None:
        """Read from a cursor that was acquired."""
        self.cursor, self.reached = cursor, cursor.position
        self._status.position = cursor.position
        # A cursor is never before the removed records. If the journal was replaced, fewer records are removed.
        self._status.removed = min(self._status.removed, cursor.position)

    def move_cursor(self, position: int) -> None:
        """Note that the durable cursor is there now."""
        self.cursor = self.cursor._replace(position=position)
        self.reached = max(self.reached, position)
        self._status.position = position

    def hurry(self) -> None:
        """Linger no longer, now and from now on."""
        self.is_hurried = True
        if self._lingering is not None and not self._lingering.expired():
            self._lingering.reschedule(asyncio.get_running_loop().time())

    async def next(self, limit: float | None, *, may_pass: bool = True) -> Sequence[Record]:
        """The records of the next step, or nothing after `limit` seconds. Raises `LeaseLost` if the cursor passes."""
        while True:
            if not await self._wait(limit, self.cursor if may_pass else None):
                return ()
            records = await self._read(self.reached)
            if records:
                break
            await self._skip_removed()
        while self._consumer.wants_more(records):
            more = await self._read(records[-1].position)
            if not more:
                break
            records = [*records, *more]
        records = self._cut(records)
        status = self._status
        status.in_hand, status.reached = len(records), records[-1].position
        gap = status.reached - self.reached - len(records)
        status.lost += gap + max(0, status.removed - status.reached)
        if not status.buffered:
            status.oldest_at = records[0].at
        status.last = max(status.last, status.reached)
        return records

    async def ahead(self) -> Sequence[Record]:
        """The records that `next` will return, unless they are removed.

        Empty if their read has not begun or has failed, or if `next` would add further records.
        """
        records = await self._ahead.peek(removed=self._status.removed)
        return () if records and self._consumer.wants_more(records) else records

    async def rewind(self) -> None:
        """Read all records after the cursor again."""
        await self._ahead.forget()
        self.reached = self.cursor.position

    async def _wait(self, limit: float | None, cursor: Cursor | None) -> bool:
        consumer, after = self._consumer, self.reached
        try:
            async with asyncio.timeout(limit):
                await self._journal.wait(after, cursor)
        except TimeoutError:
            return False
        clock = asyncio.get_running_loop().time
        linger = max(consumer.linger, self._next_step - clock())
        if linger > 0 and not self.is_hurried and limit != 0.0:  # at a limit of 0 a command goes on
            self._lingering = asyncio.timeout(linger)
            try:
                async with self._lingering:
                    await self._journal.wait(after + consumer.max_records - 1, cursor)
            except TimeoutError:
                if cursor is not None:  # the time may have ended while the cursor was being released
                    await self._journal.wait(-1, cursor)
            finally:
                self._lingering = None
        self._next_step = clock() + self._between_steps
        return True

    async def _read(self, after: int) -> Sequence[Record]:
        return await self._ahead.read(after, removed=self._status.removed)

    async def _skip_removed(self) -> None:
        """Go on after the removed records if all records after the cursor were removed."""
        oldest = (await self._journal.extent()).first
        if oldest - 1 <= self.reached:  # none may be read yet: a failover has changed the journal's end
            return
        self._status.lost += oldest - 1 - self.reached
        if self._status.buffered:
            self.reached = self._status.reached = oldest - 1
        else:
            self.move_cursor(oldest - 1)  # the removal has moved the durable cursor too

    def _cut(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records of one step. The others begin the next step, which would otherwise have only these."""
        most = self._consumer.max_records
        if len(records) <= most or self._consumer.wants_more(records[:most]):
            return records
        self._ahead.put_back(records[most - 1].position, records[most:])
        return records[:most]


class _Part(NamedTuple):
    """A read in progress of the records after a position."""

    after: int
    reading: asyncio.Task[Sequence[Record]]


class _Rest(NamedTuple):
    """Records that were read, but not used yet. They follow a position."""

    after: int
    records: Sequence[Record]


class _ReadAhead:
    """Reads a journal in order, in parts of at most `limit` records. It reads two parts ahead if there are more."""

    def __init__(self, journal: Journal, limit: int) -> None:
        self._journal = journal
        self._limit = limit
        self._parts: deque[_Part] = deque()
        self._rest = _Rest(0, ())

    async def read(self, after: int, *, removed: int) -> Sequence[Record]:
        """The next records after a position. Parts that were read before the removal up to `removed` are read again."""
        rest, self._rest = self._rest, _Rest(0, ())
        if rest.records and rest.after == after >= removed:
            return [*rest.records, *await self._read_part(rest.records[-1].position, removed=removed)]
        return await self._read_part(after, removed=removed)

    def put_back(self, after: int, records: Sequence[Record]) -> None:
        """Put the last records of a read back. The next read begins with them, and they follow the position `after`."""
        self._rest = _Rest(after, records)

    async def _read_part(self, after: int, *, removed: int) -> Sequence[Record]:
        records: Sequence[Record] = ()
        if self._parts and self._parts[0].after == after >= removed:
            records = await self._parts.popleft().reading
        if not records:  # there was nothing to read ahead yet
            await self.forget()
            records = await self._journal.read(after, self._limit)
        if self._parts:
            self._read_on(self._parts[-1])
        else:
            self._begin(records)
        return records

    async def peek(self, *, removed: int) -> Sequence[Record]:
        """The records that `read` will probably return next. Empty if their read has not begun or has failed."""
        if self._rest.records or not self._parts or self._parts[0].after < removed:
            return ()
        reading = self._parts[0].reading
        if not reading.done():
            await asyncio.wait([reading])
        return reading.result() if _succeeded(reading) else ()

    async def forget(self) -> None:
        self._rest = _Rest(0, ())
        parts, self._parts = self._parts, deque()
        for part in parts:
            part.reading.cancel()
        if parts:
            await asyncio.wait([part.reading for part in parts])

    def _begin(self, records: Sequence[Record]) -> None:
        """Begin to read the records after these, unless these were the last ones."""
        if len(records) == self._limit:
            after = records[-1].position
            part = _Part(after, asyncio.create_task(self._journal.read(after, self._limit)))
            self._parts.append(part)
            part.reading.add_done_callback(lambda _: self._read_on(part))

    def _read_on(self, part: _Part) -> None:
        """Begin the next part if this part is complete, it is the last one, and fewer than two are ahead."""
        if _succeeded(part.reading) and self._parts and self._parts[-1] is part and len(self._parts) < _PARTS:
            self._begin(part.reading.result())


def _succeeded(reading: asyncio.Task[Sequence[Record]]) -> bool:
    """Whether a read has succeeded. Looking at the exception here also keeps asyncio from logging it as unretrieved.

    `read` raises the exception of a failed part.
    """
    return reading.done() and not reading.cancelled() and reading.exception() is None
