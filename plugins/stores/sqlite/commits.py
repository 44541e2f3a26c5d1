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

from ..cache import Entries, Entry, is_renewal, not_renewed
from ..cached_state import CachedState
from ..recent_records import Tail
from .batch import DEPENDS, Written, write_batch
from .bloom_filter import BloomFilter
from .connection import Connection
from .statistics import CommitStatistics
from .ttl_log import TtlLog
from .unit import Unit

__all__ = ["Commits"]

_log = logging.getLogger("ingestd.sqlite")

_MANY = 1000  # transactions of one commit: with more, the first would wait for the last
_ENOUGH = 64  # transactions that start a commit at once when the previous one has ended
_TURNS = 4  # of the event loop: the longest wait for so many
_DEFERRED = 0.1  # seconds for which repeatable steps need no sync


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
        self._gathering: list[Unit] = []
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
            self._gather(Unit(entries, partial(_settle_future, done), records, cursor, also, first=first))
            return await done  # a cancelled caller does not stop the write
        except Refused:
            if state is not None:
                state.undo()
            raise

    def begin(self, unit: Unit) -> None:
        """As `commit`, for a transaction with records, without waiting. Raises `Unavailable`.

        Transactions that begin one after the other without a pause are in one commit. After an error, raised or not,
        the caller must undo the writes of the transaction.
        """
        if unit.parts is None:  # otherwise the write finds the refused parts
            _check(unit.entries)
        self._gather(unit)

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

    def _gather(self, unit: Unit) -> None:
        if self._closing:
            raise Unavailable("The store is closed.")
        self._gathering.append(unit)
        if self._idle.is_set():
            self._idle.clear()
            # Without a context: a batch does not belong to the request that began it.
            asyncio.get_running_loop().call_soon(self._write, context=Context())

    def _write(self) -> None:
        """Hand the gathered transactions to the writer's thread."""
        units = self._take()
        flown: dict[str, Entry] = {}
        live: list[Unit] = []
        late: list[Unit] = []
        for place, unit in enumerate(units):
            for entry in unit.entries:
                if entry.invalidated:
                    if unit.parts is not None:
                        units[place + 1 : place + 1] = unit.parts()  # the parts are next
                    else:
                        unit.error = Unavailable(DEPENDS)
                        late.append(unit)
                    break
            else:
                self._take_off(unit, flown)
                live.append(unit)
        loop = asyncio.get_running_loop()
        if late:
            loop.call_soon(_tell, late)
        if any(unit.rows or unit.records or unit.cursor or unit.also or unit.first for unit in live):
            begun = time.perf_counter()
            synced = begun - self._synced > _DEFERRED or not all(_is_deferrable(unit) for unit in live)
            if synced:
                self._synced = begun
            written = partial(self._written, live, flown, begun)
            last = self.last if self._sure else None
            try:
                self._connection.submit_then(written, write_batch, live, last, self._renewals.end, synced=synced)
            except ValueError as error:  # the connection is closed
                loop.call_soon(written, error)
        else:  # no writes: they waited only for writes of others, which are durable now
            loop.call_soon(self._settle, live, flown, {})

    def _take(self) -> list[Unit]:
        """The transactions for the next commit."""
        taken = count = 0
        while taken < len(self._gathering) and count < _MANY:
            count += self._gathering[taken].count
            taken += 1
        units, self._gathering = self._gathering[:taken], self._gathering[taken:]
        return units

    def _take_off(self, unit: Unit, flown: dict[str, Entry]) -> None:
        """Take the unwritten entries that a transaction has seen. It depends on them, whoever wrote them."""
        for entry in unit.entries:
            if entry.dirty:
                key = entry.key
                if not entry.is_renewed:
                    self._presence.add(key)
                    self._entries.weigh(entry)
                row = entry.row(early=self._renewals.has_room)
                unit.rows.append(row)
                if entry.absent and self._renewals.names(key):
                    unit.cleared |= {key}
                elif not is_renewal(row) and key in self._renewals:
                    unit.rows.append(not_renewed(key))
                entry.dirty = False
                entry.in_flight = True
                flown[key] = entry

    def _written(
        self, live: list[Unit], flown: dict[str, Entry], begun: float, written: Written | BaseException
    ) -> None:
        seconds, units = time.perf_counter() - begun, sum([unit.count for unit in live])
        self._statistics.add(seconds, units, stored=isinstance(written, Written))
        if isinstance(written, Written):
            self._recovered()
            self._renewals.end = written.log_end
            self._settle(written.units, flown, written.failed)
        else:
            reason = self._failed(written)
            failed = {unit: Unavailable(f"Events cannot be stored at the moment: {reason}.") for unit in live}
            self._settle(live, flown, failed)

    def _settle(self, live: list[Unit], flown: dict[str, Entry], failed: Mapping[Unit, Exception]) -> None:
        records: list[Record] = []
        size = 0
        self._entries.land(flown.values())
        for unit in live:
            if unit in failed:
                for key, *_ in unit.rows:
                    self._entries.kill(flown[key])
                unit.error = _for_the_caller(failed[unit])
                continue
            # Each entry is in one transaction of a commit. So no other one renews a key that this one clears.
            self._renewals.add(unit.rows)
            if unit.cleared:
                self._renewals.forget(unit.cleared)
            if unit.records:
                self.last = unit.position
                records += unit.records
                size += unit.size
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
        if turns and sum([unit.count for unit in self._gathering]) < _ENOUGH:
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


def _tell(units: list[Unit]) -> None:
    """Call `settled` of each transaction, and drop the transaction at once instead of with the next commit.

    The connection's thread keeps its last work until it gets new work.
    """
    units.reverse()
    while units:
        unit = units.pop()
        try:
            unit.settled(unit)
        except Exception:  # noqa: BLE001 - the other transactions must be settled too
            _log.exception("a callback of a commit failed")


def _check(entries: Iterable[Entry]) -> None:
    """Raises `Unavailable` if a transaction has read a state that was never stored."""
    for entry in entries:
        if entry.invalidated:
            raise Unavailable(DEPENDS)


def _settle_future(future: asyncio.Future[int], unit: Unit) -> None:
    if future.done():
        return
    if unit.error is None:
        future.set_result(unit.position)
    else:
        future.set_exception(unit.error)
        future.exception()  # the caller may be cancelled


def _is_deferrable(unit: Unit) -> bool:
    """Whether a power failure may undo the transaction, because its work is repeated then."""
    return unit.cursor is not None and unit.cursor.deferrable and not (unit.records or unit.also or unit.first)


def _for_the_caller(error: Exception) -> Exception:
    """The error for the caller. If the transaction is at fault and not the file, a retry cannot help."""
    if isinstance(error, IngestdError):
        return error
    _log.error("one event could not be stored because of its content: %r", error)
    return Failed("The event could not be stored.")
