"""Group commit: while one batch is written, the next one gathers. So batches grow with the load."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from functools import partial

from ingestd.api.errors import Failed, IngestdError, Refused, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Cursor
from ingestd.support.distribution import Distribution

from ..cache import Entries
from ..cached_state import CachedState
from ..entry import KeyState, is_renewal, not_renewed
from ..recent_records import Tail
from .batch import DEPENDS, Written, write_batch
from .bloom_filter import BloomFilter
from .connection import Connection
from .pending import Pending
from .ttl_log import TtlLog

__all__ = ["CommitStatistics", "Commits"]

_log = logging.getLogger("ingestd.sqlite")

_MANY = 1000  # transactions of one commit: with more, the first would wait for the last
_ENOUGH = 64  # transactions that start a commit at once when the previous one has ended
_TURNS = 4  # of the event loop: the longest wait for so many
_DEFERRED = 0.1  # seconds for which repeatable steps need no sync

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_UNITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class CommitStatistics:
    """Commits that were tried since the file was opened."""

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0
        self.seconds = Distribution(_SECONDS)
        self.units = Distribution(_UNITS)

    def add(self, seconds: float, units: int, *, stored: bool) -> None:
        """Count a commit of `units` transactions."""
        if stored:
            self.stored += 1
        else:
            self.failed += 1
        self.seconds.add(seconds)
        self.units.add(units)


class Commits:
    """Writes transactions in their order. One commit holds all that have gathered."""

    def __init__(
        self,
        connection: Connection,
        entries: Entries,
        last: int,
        statistics: CommitStatistics,
        *,
        renewals: TtlLog,
        presence: BloomFilter,
    ) -> None:
        self.last = last
        """The newest durable position."""
        self.tail = Tail()
        self.problem: str | None = None
        """Reason why the last commit failed; None after a success."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Positions, with the futures of callers that wait for records after them."""
        self._connection = connection
        self._entries = entries
        self._statistics = statistics
        self._renewals = renewals
        self._presence = presence
        self._sure = True  # whether `last` is the file's last position; a failed commit makes it unknown
        self._synced = float("-inf")
        """Start of the last synced commit."""
        self._gathering: list[Pending] = []
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def commit(
        self,
        state: CachedState | None = None,
        records: Sequence[Record] = (),
        cursor: Cursor | None = None,
        also: Callable[[sqlite3.Connection, int], object] | None = None,
        first: Callable[[sqlite3.Connection], object] | None = None,
    ) -> int:
        """Commit a transaction. Returns the last position once its writes and all that it has read are durable.

        `also` runs on the connection's thread, in the same commit; `first` runs before all other writes of the commit.
        Raises `Unavailable`, and `Failed` if the transaction can never be stored.
        """
        entries = [] if state is None else state.seen
        try:
            _check(entries)
            if not (records or cursor or also or first or any(each.dirty or each.in_flight for each in entries)):
                return self.last  # nothing to wait for
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._gather(Pending(entries, partial(_settle_future, done), records, cursor, also, first=first))
            return await done  # a cancelled caller does not stop the write
        except Refused:
            if state is not None:
                state.undo()
            raise

    def begin(self, pending: Pending) -> None:
        """As `commit`, without waiting. Raises `Unavailable`.

        Transactions that begin one after the other without a pause are in one commit. After an error, raised or not,
        the caller must undo the writes of the transaction.
        """
        _check(pending.entries)
        self._gather(pending)

    async def wait(self, after: int) -> None:
        """Returns once there are durable records after a position."""
        while self.last <= after:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((after, future))
            await future

    def _wake(self) -> None:
        """Wake only the callers whose records have come; most callers wait for many records."""
        waiting, self._waiting = self._waiting, []
        for after, future in waiting:
            if future.done():  # cancelled
                continue
            if self.last > after:
                future.set_result(None)
            else:
                self._waiting.append((after, future))

    async def finish(self) -> None:
        """Take no more transactions, and wait until all gathered ones are written."""
        self._closing = True
        await self._idle.wait()

    def report(self, reason: str) -> None:
        """Report that events cannot be stored, until a commit succeeds."""
        if self.problem is None:
            _log.warning("events cannot be stored: %s", reason)
        self.problem = reason

    def _gather(self, each: Pending) -> None:
        if self._closing:
            raise Unavailable("The store is closed.")
        self._gathering.append(each)
        if self._idle.is_set():
            self._idle.clear()
            # Without a context: a batch does not belong to the request that began it.
            asyncio.get_running_loop().call_soon(self._write, context=Context())

    def _write(self) -> None:
        """Hand the gathered transactions to the writer's thread."""
        batch, self._gathering = self._gathering[:_MANY], self._gathering[_MANY:]
        in_flight: dict[str, KeyState] = {}
        live: list[Pending] = []
        late: list[Pending] = []
        for each in batch:
            for entry in each.entries:
                if entry.invalidated:
                    each.error = Unavailable(DEPENDS)
                    late.append(each)
                    break
            else:
                self._take_off(each, in_flight)
                live.append(each)
        loop = asyncio.get_running_loop()
        if late:
            loop.call_soon(_tell, late)
        if any(each.rows or each.records or each.cursor or each.also or each.first for each in live):
            begun = time.perf_counter()
            synced = begun - self._synced > _DEFERRED or not all(_is_deferrable(each) for each in live)
            if synced:
                self._synced = begun
            written = partial(self._written, live, in_flight, begun)
            last = self.last if self._sure else None
            try:
                self._connection.submit_then(written, write_batch, live, last, self._renewals.end, synced=synced)
            except ValueError as error:  # the connection is closed
                loop.call_soon(written, error)
        else:  # no writes: they waited only for writes of others, which are durable now
            loop.call_soon(self._settle, live, in_flight, {})

    def _take_off(self, each: Pending, in_flight: dict[str, KeyState]) -> None:
        """Take the unwritten entries that a transaction has seen. It depends on them, whoever wrote them."""
        for entry in each.entries:
            if entry.dirty:
                key = entry.key
                if not entry.is_renewed:
                    self._presence.add(key)
                    self._entries.weigh(entry)
                row = entry.row(early=self._renewals.has_room)
                each.rows.append(row)
                if entry.absent and self._renewals.names(key):
                    each.cleared |= {key}
                elif not is_renewal(row) and key in self._renewals:
                    each.rows.append(not_renewed(key))
                entry.dirty = False
                entry.in_flight = True
                in_flight[key] = entry

    def _written(
        self, live: list[Pending], in_flight: dict[str, KeyState], begun: float, written: Written | BaseException
    ) -> None:
        seconds = time.perf_counter() - begun
        self._statistics.add(seconds, len(live), stored=isinstance(written, Written))
        if isinstance(written, Written):
            self._recovered()
            self._renewals.end = written.log_end
            self._settle(written.batch, in_flight, written.failed)
        else:
            reason = self._failed(written)
            failed = {each: Unavailable(f"Events cannot be stored at the moment: {reason}.") for each in live}
            self._settle(live, in_flight, failed)

    def _settle(self, live: list[Pending], in_flight: dict[str, KeyState], failed: Mapping[Pending, Exception]) -> None:
        records: list[Record] = []
        size = 0
        self._entries.end_commit(in_flight.values())
        for each in live:
            if each in failed:
                for key, *_ in each.rows:
                    self._entries.invalidate(in_flight[key])
                each.error = _for_the_caller(failed[each])
                continue
            # Each entry is in one transaction of a commit. So no other one renews a key that this one clears.
            self._renewals.add(each.rows)
            if each.cleared:
                self._renewals.forget(each.cleared)
            if each.records:
                self.last = each.position
                records += each.records
                size += each.size
        if records:
            self.tail.add(records, self.last, size)
            self._wake()
        if self._gathering:
            self._write_soon(_TURNS)
        else:
            self._idle.set()
        _tell(live)

    def _write_soon(self, turns: int) -> None:
        """Write once there is enough, or after `turns` turns of the loop.

        Callers that get their answers now send their next events at once, and other events wait to be read. A commit
        that began now would have few of these events, and take as long.
        """
        if turns and len(self._gathering) < _ENOUGH:
            asyncio.get_running_loop().call_soon(self._write_soon, turns - 1)
        else:
            self._write()

    def _recovered(self) -> None:
        if self.problem is not None:
            _log.info("events can be stored again")
        self.problem = None
        self._sure = True

    def _failed(self, error: BaseException) -> str:
        self._sure = False
        if isinstance(error, sqlite3.Error):
            self.report(str(error))
            return str(error)
        _log.error("a commit failed", exc_info=error)
        self.report(f"internal error: {error!r}")
        return "internal error"


def _tell(batch: list[Pending]) -> None:
    """Call `settled` of each transaction, and drop the transaction at once instead of with the next commit.

    The connection's thread keeps its last work until it gets new work.
    """
    batch.reverse()
    while batch:
        each = batch.pop()
        try:
            each.settled(each)
        except Exception:  # noqa: BLE001 - the other transactions must be settled too
            _log.exception("a callback of a commit failed")


def _check(entries: Iterable[KeyState]) -> None:
    """Raises `Unavailable` if a transaction has read a state that was never stored."""
    for entry in entries:
        if entry.invalidated:
            raise Unavailable(DEPENDS)


def _settle_future(future: asyncio.Future[int], each: Pending) -> None:
    if future.done():
        return
    if each.error is None:
        future.set_result(each.position)
    else:
        future.set_exception(each.error)
        future.exception()  # the caller may be cancelled


def _is_deferrable(each: Pending) -> bool:
    """Whether a power failure may undo the transaction, because its work is repeated then."""
    return each.cursor is not None and each.cursor.deferrable and not (each.records or each.also or each.first)


def _for_the_caller(error: Exception) -> Exception:
    """The error for the caller. If the transaction is at fault and not the file, a retry cannot help."""
    if isinstance(error, IngestdError):
        return error
    _log.error("one event could not be stored because of its content: %r", error)
    return Failed("The event could not be stored.")
