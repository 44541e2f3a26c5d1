"""Group commit: while one batch is being written the next one gathers, so batches grow with the load."""

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

_MANY = 1000  # units of one transaction: more would make the first wait for the last
_ENOUGH = 64  # units for which a commit begins at once when another one has landed
_TURNS = 4  # of the event loop, for which it waits for so many
_DEFERRED = 0.1  # seconds for which steps that may be done again need not be synced


class Commits:
    """Writes units in the order they come, as many at a time as have gathered."""

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
        """Why the last commit failed, None if it did not."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits for records behind a position."""
        self._connection = connection
        self._entries = entries
        self._statistics = statistics
        self._renewals = renewals
        self._presence = presence
        self._sure = True  # whether `last` is what the file says; after a failed commit nobody knows
        self._synced = float("-inf")
        """When the last commit that was synced began."""
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
        """Returns the last position once all the unit wrote, and all it has seen, is durable.

        `also` is run on the connection's thread, in the same transaction, and `first` before all else in it. Raises
        `Unavailable`, and `Failed` for what can never be stored.
        """
        entries = [] if state is None else state.seen
        try:
            _check(entries)
            if not (records or cursor or also or first or any(each.dirty or each.in_flight for each in entries)):
                return self.last  # there is nothing to wait for
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._gather(Unit(entries, partial(_settle_future, done), records, cursor, also, first=first))
            return await done  # it is written whatever becomes of who waits here
        except Refused:
            if state is not None:
                state.undo()
            raise

    def begin(self, unit: Unit) -> None:
        """As `commit`, without waiting, of a unit with records. Raises `Unavailable`.

        Those that are begun one after the other without a pause are in one commit. Where there is an error, also one
        that is raised here, what the unit has written is still to be undone.
        """
        if unit.parts is None:  # else who is refused is found out when they are written
            _check(unit.entries)
        self._gather(unit)

    async def wait(self, after: int) -> None:
        """Returns when there are durable records behind that position."""
        while self.last <= after:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((after, future))
            await future

    def _wake(self) -> None:
        """Wake those whose records have come, and nobody else: most wait for many of them."""
        waiting, self._waiting = self._waiting, []
        for after, future in waiting:
            if future.done():  # nobody waits any more
                continue
            if self.last > after:
                future.set_result(None)
            else:
                self._waiting.append((after, future))

    async def finish(self) -> None:
        """Take no more, and wait until all that was asked for is written."""
        self._closing = True
        await self._idle.wait()

    def report(self, reason: str) -> None:
        """Events cannot be stored; until a commit succeeds."""
        if self.problem is None:
            _log.warning("events cannot be stored: %s", reason)
        self.problem = reason

    def _gather(self, unit: Unit) -> None:
        if self._closing:
            raise Unavailable("The store is closed.")
        self._gathering.append(unit)
        if self._idle.is_set():
            self._idle.clear()
            # In no context: what becomes of the batch is not the story of the request that began it.
            asyncio.get_running_loop().call_soon(self._write, context=Context())

    def _write(self) -> None:
        """Hand what has gathered to the writer's thread."""
        units = self._take()
        flown: dict[str, Entry] = {}
        live: list[Unit] = []
        late: list[Unit] = []
        for place, unit in enumerate(units):
            for entry in unit.entries:
                if entry.invalidated:
                    if unit.parts is not None:
                        units[place + 1 : place + 1] = unit.parts()  # which come next
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
            except ValueError as error:  # closed
                loop.call_soon(written, error)
        else:  # nothing of their own: they have waited for what others had written, and that has landed
            loop.call_soon(self._settle, live, flown, {})

    def _take(self) -> list[Unit]:
        """What the next transaction is to have of what has gathered."""
        taken = count = 0
        while taken < len(self._gathering) and count < _MANY:
            count += self._gathering[taken].count
            taken += 1
        units, self._gathering = self._gathering[:taken], self._gathering[taken:]
        return units

    def _take_off(self, unit: Unit, flown: dict[str, Entry]) -> None:
        """Take what it has seen and is not on its way to the disk: also what others wrote, for it depends on it."""
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
            # An entry is in one unit of a commit, so what one clears no other renews.
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
        """Write once there is enough, or after so many turns of the loop.

        Those who get their answers now send the next events at once, and what others have sent meanwhile waits to be
        read: a commit that began now would have few of all these, and take as long.
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
    """Tell who waits for each what came of it; and let go of it, or all would be kept until the next commit begins.

    (The connection's thread lets go of what it has worked on when it is given something else.)
    """
    units.reverse()
    while units:
        unit = units.pop()
        try:
            unit.settled(unit)
        except Exception:  # noqa: BLE001 - the others are to know all the same
            _log.exception("what waited for a commit failed")


def _check(entries: Iterable[Entry]) -> None:
    """Raises `Unavailable` where a unit has seen what never was stored."""
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
        future.exception()  # who asked may have gone


def _is_deferrable(unit: Unit) -> bool:
    """Whether it may be lost with the power: what it does is done again then."""
    return unit.cursor is not None and unit.cursor.deferrable and not (unit.records or unit.also or unit.first)


def _for_the_caller(error: Exception) -> Exception:
    """A unit that failed for reasons of its own fails every time, so its caller is not to try again."""
    if isinstance(error, IngestdError):
        return error
    _log.error("one event could not be stored, for what is in it: %r", error)
    return Failed("The event could not be stored.")
