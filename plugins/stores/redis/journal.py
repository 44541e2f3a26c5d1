"""The journal as a chain of Redis streams. Several daemons append; each cursor has one holder at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.exceptions import RedisError

from ingestd.api.errors import LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, Journal, JournalStats, RecordInfo, Start, size_of_all
from ingestd.api.store import State
from ingestd.support.periodic import TIMING, every

from ..recent_records import READ_BYTES, Tail, count_to_read
from .appending import Appending, failure_of, packed
from .database import Database
from .operations import raw
from .page import Page, decode_page, decode_page_of_piece, read_on, read_page
from .refusals import LOST
from .state import ANY_PLACEMENT, StepState, Transaction, has_writes, pairs
from .work_sharing import WorkSharing

__all__ = ["RedisJournal"]

_log = logging.getLogger("ingestd.redis")

_FOLLOW_SHARED = 0.2  # seconds between two looks for records of other daemons in one of many partitions
_BLOCK = 1000  # milliseconds for which one look waits
_BLOCK_SHARED = 30_000  # the same with many partitions; each beat learns the newest position too
_PAGE = 64  # records of one read
_READERS = 64  # whose pieces are remembered
_HEAD = 45  # bytes at the start of a record that hold its id, also in a blanked record
_TRIM_BYTES = 1 << 20  # bytes that one step of trimming removes; Redis does nothing else meanwhile


class RedisJournal(Journal):
    def __init__(self, database: Database, sharing: WorkSharing | None = None) -> None:
        """With `sharing`, a daemon acquires its cursors only, and gives up those of others."""
        self._database = database
        self._sharing = sharing
        self.known = 0
        """The newest position this daemon knows."""
        self._followed = 0
        """The newest position at the last look for records of other daemons."""
        self._was_busy = False
        """Whether this daemon has appended since the last look at Redis."""
        self._replicated = 0
        """The newest position that enough replicas are known to have: consumers that read further could deliver records
        which a failover takes back.
        """
        self._waiting: dict[asyncio.Future[None], int] = {}
        """Waiting consumers, each with the position beyond which it needs a record."""
        self._newest_piece = 0
        """Its number, as far as this daemon knows."""
        self._pieces: dict[int, int] = {}
        """The numbers of the pieces in which readers go on, by the positions of the last records they have read."""
        self._unlearned = 0
        """How often a failover has lost the journal's end."""
        self._tail = Tail()
        self._tail_since = 0.0
        """Connect time of the tail's connection. A later connection may lead to another server."""
        self._version = 0
        """The version of the journal at the last look. Each replacement of bodies makes a new version."""
        self.held: dict[str, int] = {}
        """Cursors that this daemon holds: their last known positions, by name."""
        self._starts: dict[str, Start] = {}
        """Start of each cursor that this daemon has asked for, by name."""

    async def append(self, appends: Sequence[Append], then: Callable[[Sequence[Exception | None]], None]) -> None:
        link = self._database.link
        Appending(link, appends, then, self._appended).begin()
        if link.is_pressed:
            try:
                await link.push()
            except Exception:  # noqa: BLE001 - each event gets its result from its own answer, once
                _log.exception("sending failed")

    async def commit(self, records: Sequence[Record], state: State, cursor: Cursor | None = None) -> int:
        position = await self._commit(records, state, cursor)
        return await self.last() if position is None else position

    async def commit_state(self, state: State) -> None:
        """As `commit`, without records. A transaction that has only read costs no round trip."""
        await self._commit((), state, None)

    async def _commit(self, records: Sequence[Record], state: State, cursor: Cursor | None) -> int | None:
        """Returns as `commit`, or None if there was nothing to commit."""
        transaction, link = cast("Transaction", state), self._database.link
        store_id = link.store_id
        log = transaction.log()
        # Reads alone need no check, unless the daemon's cache has served them.
        is_cached = transaction.entries is self._database.entries
        if not (records or cursor or has_writes(log) or (is_cached and any(log))):
            transaction.committed()
            return None

        # Only a step with a cursor touches the state of tenants; the others are a sink's own.
        placement = ANY_PLACEMENT if cursor is None and isinstance(transaction, StepState) else transaction.placement

        def note(answer: Any, error: Exception | None) -> None:
            if error is None and answer[0] == "done":
                self._appended(records, answer[2], answer[3], store_id)

        try:
            operation = ("commit", state.now, [*map(packed, records)], self.known, self._move(cursor), *log, placement)
            # Noted before the answers to later operations, because the tail takes records in their order only.
            answer = await link.ask(*operation, first=note)
            if (failure := failure_of(answer)) is not None:
                raise failure
        except BaseException:
            transaction.undo()
            raise
        if answer[0] == "not holder":
            assert cursor is not None
            self.held.pop(cursor.name, None)
            self.known, self._replicated = 0, self._passed_before()
            self._tail.forget()  # a failover may have lost these records
            raise _passed()
        if cursor is not None:
            self.held[cursor.name] = cursor.position
        transaction.committed()
        transaction.go_on()
        return int(answer[1])

    def _move(self, cursor: Cursor | None) -> dict[str, Any] | None:
        """The move of a cursor, as batch.lua takes it."""
        if cursor is None:
            return None
        before = self.held.get(cursor.name, cursor.position)
        move = {
            "name": cursor.name, "position": cursor.position, "fence": cursor.fence, "before": before,
            "lease": self.lease,
        }  # fmt: skip
        if cursor.record is not None:
            move["read"], move["head"] = cursor.record.position, raw(cursor.record.body[:_HEAD])
        return move

    def _appended(self, records: Sequence[Record], last: int, version: int, store_id: str) -> None:
        """`store_id` is the store at the time of the request. After a loss, the answer is about another store."""
        link = self._database.link
        if link.store_id == store_id:
            link.last = max(link.last, last)
        if records and link.is_replicated:
            if self._tail_since != link.connected_at:
                self._tail_since = link.connected_at
                self._tail.forget()
            self._tail.add(records, last, size_of_all(records))
        self._learn(last, version)

    async def find_duplicate(self, key: str, state: State) -> str | None:
        return None

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        recent = self._tail.read(after, limit)
        if recent is not None:
            return recent
        if not self._database.link.limits_consumers:
            records = await self._look_up(after, limit)
        elif (most := self._replicated) > after:
            # Positions are consecutive, but the oldest records may have been removed.
            records = await self._look_up(after, min(limit, most - after))
            records = [record for record in records if record.position <= most]
        else:
            records = ()
        if not records and after > await self.last():
            raise LeaseLost("the journal ends before the cursor: later records were lost")
        return records

    async def _look_up(self, after: int, limit: int) -> Sequence[Record]:
        records: list[Record] = []
        size, large = 0, 0
        while len(records) < limit and size < READ_BYTES:
            wanted = min(limit - len(records), _PAGE, count_to_read(len(records), size))
            # After small records, a page may have dozens of records of four megabytes.
            most = READ_BYTES - size if large > after else None
            some, _, large = await self._look_up_page(after, wanted, most)
            records += some
            size += sum([len(record.body) for record in some])
            if len(some) < wanted:
                break
            after = some[-1].position
        return records

    async def _look_up_page(self, after: int, limit: int, size: int | None) -> Page:
        """At most `limit` records; fewer, if there are no more or if they have `size` bytes."""
        database, piece = self._database, self._pieces.pop(after, 0)
        page = None
        try:
            if piece and size is None:
                answers = await database.pipeline(*read_on(database.prefix, piece, after, limit))
                page = decode_page_of_piece(answers, piece, limit)
            if page is None:
                page = decode_page(*await database.pipeline(read_page(database.prefix, after, limit, size)))
        except Unavailable as error:
            if str(error.__cause__).startswith(LOST):
                await database.link.leave()  # the next batch looks for all parts of the store
            raise
        if page.piece:
            if len(self._pieces) >= _READERS:
                self._pieces.clear()
            self._pieces[page.records[-1].position if page.records else after] = page.piece
        return page

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        unlearned = self._unlearned
        while True:
            if cursor is not None:
                if cursor.name not in self.held:
                    raise _passed()
                if self._sharing is not None and self._sharing.passes(cursor.name):
                    await self._release([cursor.name])
                    raise LeaseLost("another daemon runs it from now on")
            if self._readable > after or self._unlearned != unlearned:
                return
            changed = asyncio.get_running_loop().create_future()
            self._waiting[changed] = after
            try:
                await changed
            finally:
                del self._waiting[changed]

    def _wake(self, readable: int | None = None) -> None:
        """Let waiting consumers look again: all of them, or those that need no more than what is `readable`."""
        for waiting, after in self._waiting.items():
            if (readable is None or readable > after) and not waiting.done():
                waiting.set_result(None)

    async def last(self) -> int:
        def learn(answer: Any, error: Exception | None) -> None:
            if error is None:
                last, version, self._newest_piece = answer
                if last < self.known:
                    self._unlearn(last)
                self._learn(last, version)

        link = self._database.link
        operation = "replicated_last" if link.limits_consumers else "last"
        last, *_ = await link.ask(operation, 0, first=learn)
        return int(last)

    async def ensure_cursor(self, name: str, start: Start) -> int:
        self._starts[name] = start
        return int(await self._database.link.ask("ensure_cursor", 0, name, start == "beginning"))

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        holder, lease = self._database.name, self.lease
        self._starts[name] = start
        sharing = self._sharing
        if sharing is not None:
            sharing.want(name)
        try:
            while True:
                while sharing is not None and not sharing.has(name):
                    await sharing.learned()
                got = await self._database.link.ask("acquire_cursor", 0, name, start == "beginning", holder, lease)
                if got:
                    position, fence = got
                    self.held[name] = position
                    self._replicated = max(self._replicated, position)
                    return Cursor(name, position, fence)
                await asyncio.sleep(TIMING.redis_cursor)
        except asyncio.CancelledError:
            if sharing is not None:
                sharing.forgo(name)
            raise

    async def release(self, cursor: Cursor) -> None:
        if self._sharing is not None:
            self._sharing.forgo(cursor.name)
        if cursor.name in self.held:
            await self._release([cursor.name])

    async def release_all(self) -> None:
        if self.held:
            await self._release([*self.held])

    async def _release(self, names: Sequence[str]) -> None:
        for name in names:
            del self.held[name]
        await self._database.link.ask("release", 0, names, self._database.name)

    async def cursors(self) -> Sequence[Cursor]:
        rows = pairs(await self._database.link.ask("cursors", 0))
        return sorted(Cursor(name, position, fence) for name, (position, fence) in rows)

    async def extent(self) -> JournalStats:
        first, last, records, held, at = await self._database.link.ask("extent", 0)
        return JournalStats(first, last, records, held, at if at is not False else None)

    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        return [RecordInfo(*outline) for outline in await self._database.link.ask("outlines", 0, after, limit)]

    async def trim(self, up_to: int, limit: int) -> int:
        self._tail.forget(up_to)
        return int(await self._database.link.ask("trim", 0, up_to, limit, _TRIM_BYTES))

    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        self._tail.forget()
        given = [(record.position, record.type, record.at, raw(record.body), raw(body)) for record, body in changes]
        return int(await self._database.link.ask("replace", 0, given)) if given else 0

    @property
    def lease(self) -> int:
        """The milliseconds of silence after which a cursor of this daemon is free."""
        rest = 0.0 if self._sharing is None else self._sharing.rest
        return round((TIMING.redis_lease + rest) * 1000)

    def beaten(self, known: int, last: int, version: int, piece: int, lost: Sequence[str]) -> None:
        """Note the answer to a beat: the journal's end, and the cursors that this daemon has lost.

        `known` is the newest position that was known before the beat. It may have been sent on another connection than
        appends, whose answers tell of newer records.
        """
        for name in lost:
            self._lose(name)
        if last < known:
            self._unlearn(last)
        if last >= self.known:
            self._newest_piece = piece
        self._learn(last, version)
        sharing = self._sharing
        if sharing is not None and any(map(sharing.passes, self.held)):
            self._wake()

    async def follow(self) -> None:
        """Notice records of other daemons, until cancelled."""
        pause = None if self._sharing is None else _FOLLOW_SHARED
        await every("redis_follow", self._follow, pause=pause)

    async def _follow(self) -> float | None:
        known, self._followed = self._followed, self.known
        if self._followed > known:  # answers to this daemon's appends have told of all records
            self._was_busy = True
            return None
        try:
            if self._was_busy:  # the newest piece may be another
                self._was_busy = False
                await self.last()
            pieces = self._newest_piece, self._newest_piece + 1
            newest = [f"{self._database.prefix}journal:{number}" for number in pieces]
            if await self._database.block(newest, self.known, _BLOCK if self._sharing is None else _BLOCK_SHARED):
                await self.last()
                self._followed = self.known
        except (RedisError, OSError, Unavailable, TimeoutError) as error:
            _log.debug("following the journal: %s", error)
            return TIMING.redis_cursor
        return None

    def _learn(self, last: int, version: int) -> None:
        if version != self._version:
            self._version = version
            self._tail.forget()
        grows = last > self.known
        self.known = max(self.known, last)
        if self._database.link.is_replicated and last > self._replicated:
            self._replicated, grows = last, True
        if grows:
            self._wake(self._readable)

    def _unlearn(self, last: int) -> None:
        """A failover has lost the journal's end: wake all waiting consumers, so that they notice."""
        self.known, self._replicated = last, min(last, self._passed_before())
        self._unlearned += 1
        self._tail.forget()
        self._pieces.clear()
        self._wake()

    @property
    def unreplicated(self) -> int:
        """The number of records that too few replicas have, as far as this daemon knows. Consumers wait for those."""
        return max(0, self.known - self._readable)

    @property
    def _readable(self) -> int:
        """The newest position that consumers may read."""
        return self._replicated if self._database.link.limits_consumers else self.known

    def _passed_before(self) -> int:
        """The position up to which a consumer of this daemon is done with records: a replay may read them again."""
        return max(self.held.values(), default=0)

    @property
    def needed_cursors(self) -> list[tuple[str, bool]]:
        """The cursors that this daemon needs, each with whether a new one starts at the beginning."""
        return [(name, start == "beginning") for name, start in self._starts.items()]

    def begin_anew(self, last: int, version: int) -> None:
        """Continue with another journal, or with an older state of this one."""
        for name in [*self.held]:
            self._lose(name)
        self._unlearn(last)
        self._version = version

    def _lose(self, name: str) -> None:
        self.held.pop(name, None)
        self._wake()


def _passed() -> LeaseLost:
    return LeaseLost("its cursor has passed to another daemon")
