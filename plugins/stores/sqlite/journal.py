"""The journal in the SQLite file: appending, reading, waiting, cursors."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from ingestd.api.errors import CommandError, DuplicateMessage, Refused, Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Append, Cursor, IdempotencyKey, Journal, JournalStats, RecordInfo, Start
from ingestd.api.store import State

from ..cached_state import CachedState
from .batch import last_position, read_records
from .commits import Commits
from .database import Database
from .removal import make_replacement
from .trim import next_bound, read_extent, read_outlines, remove
from .unit import Unit

__all__ = ["SqliteJournal"]


async def _make(claim: IdempotencyKey, state: State) -> None:
    earlier = await state.get(claim.key)
    if earlier is None and not await state.swap(claim.key, None, claim.value, claim.ttl):
        earlier = await state.get(claim.key)
    if earlier is not None:
        raise DuplicateMessage(earlier)


def _take_back(state: CachedState, error: Exception | None, part: int | None = None) -> None:
    """Undo the writes of a refused transaction, or of a refused part."""
    if isinstance(error, Refused):
        state.undo(part)


def _ours(state: State) -> CachedState:
    assert isinstance(state, CachedState)
    return state


def _unit(
    state: CachedState, records: Sequence[Record], then: Callable[[Exception | None], None], part: int | None = None
) -> Unit:
    """A transaction for the writer, or one part as a separate transaction."""
    seen = state.seen if part is None else state.part(part)[0]
    return Unit(seen, partial(_settle, state, part, then), records)


def _settle(state: CachedState, part: int | None, then: Callable[[Exception | None], None], unit: Unit) -> None:
    _take_back(state, unit.error, part)
    then(unit.error)


def _nobody(error: Exception | None) -> None:
    """The callback of a transaction whose caller learns of errors elsewhere."""


class _Landing:
    """Several appends in one transaction. They are separated if one of them cannot be stored."""

    def __init__(self, appends: Sequence[Append]) -> None:
        self._appends = appends
        self._claims = [
            (place, _ours(each.state), each.claim) for place, each in enumerate(appends) if each.claim is not None
        ]
        # Claims are made after all parts. With several parts, the claim of a refused record could be stored.
        assert all(state.parts == 1 for _, state, _ in self._claims)
        self._errors: list[Exception | None] = [None] * len(appends)
        self._under_way = len(appends)
        self._landed: asyncio.Future[None] | None = None
        self.places = [*range(len(appends))]
        """Indexes of the appends to be stored."""

    def has_claims_at_hand(self) -> bool:
        """Whether `make_claims` runs without a pause: all its entries are in memory."""
        return all(state.entries.known(claim.key) is not None for _, state, claim in self._claims)

    async def make_claims(self) -> None:
        for place, state, claim in self._claims:
            try:
                await _make(claim, state)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                self.places.remove(place)
                self._end(place, error)

    def begin(self, commits: Commits) -> None:
        """Begin all appends to be stored, in one transaction."""
        appends = [self._appends[place] for place in self.places]
        if not appends:
            return
        states = dict.fromkeys([each.state for each in appends])
        seen = [entry for state in states for entry in _ours(state).seen]
        unit = Unit(seen, self._end_all, [each.record for each in appends], parts=self._parts)
        try:
            commits.begin(unit)
        except Unavailable as error:
            unit.error = error
            self._end_all(unit)

    def begin_alone(self, commits: Commits, place: int) -> None:
        """Begin one append, in a separate transaction."""
        unit = self._part(place)
        try:
            commits.begin(unit)
        except Unavailable as error:
            unit.error = error
            unit.settled(unit)

    def _parts(self) -> list[Unit]:
        """Each append as a separate transaction, with the parts without a record in between, for their writes."""
        units: list[Unit] = []
        done: dict[CachedState, int] = {}
        for place in self.places:
            state, part = _ours(self._appends[place].state), self._appends[place].part
            units += [_unit(state, (), _nobody, number) for number in range(done.get(state, 0), part)]
            units.append(self._part(place))
            done[state] = part + 1
        for state, number in done.items():
            units += [_unit(state, (), _nobody, rest) for rest in range(number, state.parts)]
        return units

    def _part(self, place: int) -> Unit:
        each = self._appends[place]
        return _unit(_ours(each.state), [each.record], partial(self.tell, place), each.part)

    def _end_all(self, unit: Unit) -> None:
        if unit.error is None:
            self._count_off(len(self.places))
        else:
            for place in self.places:
                self._end(place, unit.error)

    def _end(self, place: int, error: Exception | None) -> None:
        each = self._appends[place]
        _take_back(_ours(each.state), error, each.part)
        self.tell(place, error)

    def tell(self, place: int, error: Exception | None) -> None:
        self._errors[place] = error
        self._count_off(1)

    def _count_off(self, count: int) -> None:
        self._under_way -= count
        if not self._under_way and self._landed is not None and not self._landed.done():
            self._landed.set_result(None)

    async def wait(self) -> list[Exception | None]:
        """The error of each append; None for a durable one."""
        if self._under_way:
            self._landed = asyncio.get_running_loop().create_future()
            await self._landed
        return self._errors


class SqliteJournal(Journal):
    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(
        self, records: Sequence[Record], state: State, cursor: Cursor | None = None, claim: IdempotencyKey | None = None
    ) -> int:
        if claim is not None:
            await _make(claim, state)
        return await self._database.commit(_ours(state), records, cursor)

    async def begin(
        self,
        record: Record,
        state: State,
        then: Callable[[Exception | None], None],
        claim: IdempotencyKey | None = None,
    ) -> None:
        commits = self._database.commits
        if commits is None:
            await super().begin(record, state, then, claim)
            return
        ours = _ours(state)
        try:
            if claim is not None:
                await _make(claim, state)
            commits.begin(_unit(ours, [record], then))
        except Exception as error:  # noqa: BLE001 - the callback gets it
            _take_back(ours, error)
            then(error)

    def begin_part(self, state: State) -> int | None:
        assert isinstance(state, CachedState)
        return None if self._database.commits is None else state.begin_part()

    async def append_each(self, appends: Sequence[Append]) -> list[Exception | None]:
        commits = self._database.commits
        if commits is None:
            return await super().append_each(appends)
        landing = _Landing(appends)
        # No pause between the first claim and the records: another transaction could store a claim that it saw alone.
        if landing.has_claims_at_hand():
            await landing.make_claims()
            landing.begin(commits)
        else:
            for place, each in enumerate(appends):
                if each.claim is None:
                    landing.begin_alone(commits, place)
                else:
                    await self.begin(each.record, each.state, partial(landing.tell, place), each.claim)
        return await landing.wait()

    async def claimed(self, key: str, state: State) -> str | None:
        return await state.get(key)

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        commits = self._database.commits
        recent = commits.tail.read(after, limit) if commits is not None else None
        return recent if recent is not None else await self._database.connections.read(read_records, after, limit)

    async def wait(self, after: int, cursor: Cursor | None = None) -> None:
        await self._owned().wait(after)

    async def last(self) -> int:
        if self._database.commits is not None:
            return self._database.commits.last
        return await self._database.connections.read(last_position)

    async def ensure_cursor(self, name: str, start: Start) -> int:
        return (await self.acquire_cursor(name, start)).position

    async def acquire_cursor(self, name: str, start: Start) -> Cursor:
        commits = self._owned()  # a file has one owner, so no other daemon can hold the cursor

        def select(connection: sqlite3.Connection) -> tuple[int | None, int]:
            row = connection.execute("SELECT position FROM cursors WHERE name = ?", (name,)).fetchone()
            return (None if row is None else int(row[0])), read_extent(connection).first - 1

        position, removed = await self._database.connections.read(select)
        if position is not None:
            return Cursor(name, max(position, removed))
        cursor = Cursor(name, commits.last if start == "now" else removed)
        await commits.commit(cursor=cursor)
        return cursor

    async def release(self, cursor: Cursor) -> None:
        """Nothing to do: no other daemon can hold the cursor."""

    async def cursors(self) -> Sequence[Cursor]:
        def select(connection: sqlite3.Connection) -> list[Cursor]:
            return [Cursor(*row) for row in connection.execute("SELECT name, position FROM cursors ORDER BY name")]

        return await self._database.connections.read(select)

    async def extent(self) -> JournalStats:
        return await self._database.connections.read(read_extent)

    async def outlines(self, after: int, limit: int) -> Sequence[RecordInfo]:
        return await self._database.connections.read(read_outlines, after, limit)

    async def trim(self, up_to: int, limit: int) -> int:
        commits = self._owned()
        bound = await self._database.connections.read(next_bound, up_to, limit)
        if bound is None:
            return 0
        commits.tail.forget(bound)
        removed: list[int] = []
        await commits.commit(also=lambda connection, _: removed.append(remove(connection, bound)))
        return removed[-1]

    async def replace(self, changes: Sequence[tuple[Record, bytes]]) -> int:
        return await self._database.replace([make_replacement(record, body) for record, body in changes])

    def _owned(self) -> Commits:
        if self._database.commits is None:
            raise CommandError("only the daemon can consume or trim the journal")
        return self._database.commits
