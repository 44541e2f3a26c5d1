"""Group commit: while one batch is being written the next one gathers, so batches grow with the load."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingestd.errors import Unavailable
from ingestd.events import Record
from ingestd.journal import Cursor

from .connection import Connection
from .entries import Entries, Entry, Row

__all__ = ["Commits", "Unit"]

_log = logging.getLogger("ingestd.sqlite")

_APPEND = "INSERT INTO journal (position, at, type, body) VALUES (?, ?, ?, ?)"
_WRITE = (
    "INSERT INTO state (key, value, fields, expires) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE"
    " SET value = excluded.value, fields = excluded.fields, expires = excluded.expires"
)
_MOVE = (
    "INSERT INTO cursors (name, position) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET position = excluded.position"
)
_ANSWER = "UPDATE control SET answer = ? WHERE id = ?"

# What is wrong with one row, not with the file: a lone surrogate, an integer or a text too large.
_BAD_ROW = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, ValueError, OverflowError)

_DEPENDS = Unavailable("What this event depends on could not be stored.")


@dataclass(slots=True, eq=False)
class Unit:
    """What one commit is asked to write. `entries` are all it has seen; the dirty ones are written."""

    records: Sequence[Record]
    entries: dict[str, Entry]
    cursor: Cursor | None = None
    answer: tuple[str, int] | None = None
    done: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    position: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def dead(self) -> bool:
        return any(entry.dead for entry in self.entries.values())


class Commits:
    """Writes units in the order they come, as many at a time as have gathered."""

    def __init__(self, connection: Connection, entries: Entries, last: int) -> None:
        self.last = last
        """The newest durable position."""
        self.problem: str | None = None
        """Why the last commit failed, None if it did not."""
        self.committed = asyncio.Event()
        """Set, and replaced, when there are new records."""
        self._connection = connection
        self._entries = entries
        self._given = last
        self._gathering: list[Unit] = []
        self._idle = asyncio.Event()
        self._idle.set()

    async def commit(self, unit: Unit, *, dead: bool = False) -> int:
        """Returns the unit's last position once all of it, and all it has seen, is durable.

        `dead`: it is known already that it has seen what never came to be.
        """
        pending = False
        for entry in unit.entries.values():
            dead = dead or entry.dead
            pending = pending or entry.dirty or entry.flights > 0
        if dead:
            self._fail(unit, _DEPENDS)
        elif pending or unit.records or unit.cursor is not None or unit.answer is not None:
            self._gather(unit)
        else:
            return self.last
        return await unit.done  # it is written whatever becomes of who waits here

    async def finish(self) -> None:
        """Wait until all that was asked for is written."""
        await self._idle.wait()

    def _gather(self, unit: Unit) -> None:
        self._gathering.append(unit)
        if self._idle.is_set():
            self._idle.clear()
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Hand what has gathered to the writer's thread."""
        live: list[Unit] = []
        flying: dict[str, Entry] = {}
        batch, self._gathering = self._gathering, []
        self._given = self.last  # what a failed batch was given is free again
        for unit in batch:
            if unit.dead:
                self._fail(unit, _DEPENDS)
            else:
                live.append(unit)
                self._prepare(unit, flying)
        if not live:
            self._idle.set()
            return
        try:
            written = self._connection.submit(_writer(live))
        except ValueError as error:
            written = asyncio.get_running_loop().create_future()
            written.set_exception(error)
        written.add_done_callback(lambda done: self._written(done, live, flying))

    def _written(
        self, written: asyncio.Future[dict[Unit, Exception]], live: list[Unit], flying: dict[str, Entry]
    ) -> None:
        error = written.exception()
        failed = self._fail_all(error, live) if error is not None else written.result()
        for entry in flying.values():
            entry.flights -= 1
        news = False
        for unit in live:
            if unit in failed or unit.dead:
                self._fail(unit, failed.get(unit, _DEPENDS))
                continue
            if unit.records:
                self.last, news = unit.position, True
            if not unit.done.done():
                unit.done.set_result(unit.position)
        if news:
            self.committed.set()
            self.committed = asyncio.Event()
        if self._gathering:
            self._write()
        else:
            self._idle.set()

    def _fail_all(self, error: BaseException, live: list[Unit]) -> dict[Unit, Exception]:
        reason = str(error) if isinstance(error, sqlite3.Error) else f"a fault of the store: {error!r}"
        if self.problem is None:
            _log.warning(
                "events cannot be stored: %s", reason, exc_info=None if isinstance(error, sqlite3.Error) else error
            )
        self.problem = reason
        return dict.fromkeys(live, Unavailable(f"The event cannot be stored at the moment: {reason}."))

    def _prepare(self, unit: Unit, flying: dict[str, Entry]) -> None:
        self._given += len(unit.records)
        unit.position = self._given if unit.records else (unit.cursor.position if unit.cursor else self.last)
        for key, entry in unit.entries.items():
            if entry.dirty:
                unit.rows.append(entry.row(key))
                entry.dirty = False
                if key not in flying:
                    flying[key] = entry
                    entry.flights += 1

    def _fail(self, unit: Unit, error: Exception) -> None:
        """Take back what the unit was to write: whoever has seen it is refused too."""
        written = {row[0] for row in unit.rows}
        for key, entry in unit.entries.items():
            if key in written or (entry.dirty and not unit.rows):
                self._entries.kill(key, entry)
        if not isinstance(error, Unavailable):
            _log.error("one unit could not be stored: %r", error)
        if not unit.done.done():
            unit.done.set_exception(error)
            unit.done.exception()  # who asked may have gone


def _writer(units: list[Unit]) -> Callable[[sqlite3.Connection], dict[Unit, Exception]]:
    """Writes the batch as one transaction; returns the units that could not be written for reasons of their own."""

    def write(connection: sqlite3.Connection) -> dict[Unit, Exception]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            try:
                connection.execute("SAVEPOINT batch")
                _write_units(connection, units)
                failed: dict[Unit, Exception] = {}
            except _BAD_ROW:
                connection.execute("ROLLBACK TO batch")
                failed = _write_one_by_one(connection, units)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return failed

    return write


def _write_one_by_one(connection: sqlite3.Connection, units: list[Unit]) -> dict[Unit, Exception]:
    failed: dict[Unit, Exception] = {}
    lost: set[str] = set()
    for unit in units:
        if lost & unit.entries.keys():
            failed[unit] = _DEPENDS
        else:
            connection.execute("SAVEPOINT unit")
            try:
                _write_units(connection, [unit])
            except _BAD_ROW as error:
                connection.execute("ROLLBACK TO unit")
                failed[unit] = error
            connection.execute("RELEASE unit")
        if unit in failed:
            lost |= {row[0] for row in unit.rows}
    return failed


def _write_units(connection: sqlite3.Connection, units: list[Unit]) -> None:
    records: list[tuple[Any, ...]] = []
    rows: dict[str, Row] = {}
    cursors: dict[str, Cursor] = {}
    answers: list[tuple[str, int]] = []
    for unit in units:
        position = unit.position - len(unit.records) if unit.records else 0
        for record in unit.records:
            position += 1
            records.append((position, record.at, record.type, record.body))
        for row in unit.rows:
            rows[row[0]] = row
        if unit.cursor is not None:
            cursors[unit.cursor.name] = unit.cursor
        if unit.answer is not None:
            answers.append(unit.answer)
    if records:
        connection.executemany(_APPEND, records)
    gone = [(key,) for key, value, fields, _ in rows.values() if value is None and fields is None]
    kept = [row for row in rows.values() if row[1] is not None or row[2] is not None]
    if kept:
        connection.executemany(_WRITE, kept)
    if gone:
        connection.executemany("DELETE FROM state WHERE key = ?", gone)
    if cursors:
        connection.executemany(_MOVE, [(cursor.name, cursor.position) for cursor in cursors.values()])
    if answers:
        connection.executemany(_ANSWER, answers)
