"""Commands beside a running daemon: they ask through a table, the daemon does it in their stead.

A row of the table `control` is one unit of work: the operations on the state, each with the result
the command saw, and the records to append. The daemon applies it as it would its own, or, where a
result would differ, not at all.
"""

from __future__ import annotations

import asyncio
import base64
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ingestd.errors import CommandError, Conflict, Unavailable
from ingestd.events import Record
from ingestd.store import Field

from .entries import Entries
from .state import SqliteState

if TYPE_CHECKING:
    from .backend import SqliteBackend

__all__ = ["GuestState", "apply_controls", "submit"]

_T = TypeVar("_T")

_DONE, _CONFLICT = "done", "conflict"
_PATIENCE = 5.0
_POLL = 0.05


class GuestState(SqliteState):
    """Works on a copy of its own, and remembers what was done and what came of it."""

    def __init__(self, entries: Entries, now: int) -> None:
        super().__init__(entries, now)
        self.log: list[tuple[str, list[Any], Any]] = []

    async def get(self, key: str) -> str | None:
        return self._logged("get", [key], await super().get(key))

    async def put(self, key: str, value: str, ttl: int | None = None) -> str | None:
        return self._logged("put", [key, value, ttl], await super().put(key, value, ttl))

    async def swap(self, key: str, expected: str | None, value: str, ttl: int | None = None) -> bool:
        return self._logged("swap", [key, expected, value, ttl], await super().swap(key, expected, value, ttl))

    async def renew(self, key: str, candidate: str, ttl: int) -> tuple[str, bool]:
        return self._logged("renew", [key, candidate, ttl], await super().renew(key, candidate, ttl))

    async def delete(self, key: str) -> None:
        await super().delete(key)
        self.log.append(("delete", [key], None))

    async def merge(self, key: str, fields: Mapping[str, Field]) -> None:
        await super().merge(key, fields)
        self.log.append(("merge", [key, fields], None))

    async def fields(self, key: str) -> dict[str, Field]:
        return self._logged("fields", [key], await super().fields(key))

    def _logged(self, name: str, arguments: list[Any], result: _T) -> _T:
        self.log.append((name, arguments, result))
        return result


class _Unit(msgspec.Struct):
    now: int
    operations: list[tuple[str, list[Any], Any]]
    records: list[tuple[str, int, str]]


async def submit(backend: SqliteBackend, state: GuestState, records: Sequence[Record]) -> None:
    """Ask the daemon, and wait until it has done it. Raises `Conflict`, `CommandError`, `Unavailable`."""
    unit = _Unit(state.now, state.log, [(r.type, r.at, base64.b64encode(r.body).decode()) for r in records])
    text = msgspec.json.encode(unit).decode()

    def insert(connection: sqlite3.Connection) -> int:
        cursor = connection.execute("INSERT INTO control (unit) VALUES (?)", (text,))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    number = await backend.change(insert)
    deadline = time.monotonic() + _PATIENCE
    answer = None
    while answer is None and time.monotonic() < deadline:
        await asyncio.sleep(_POLL)
        answer = await backend.read(lambda c: _answer(c, number))
    if answer is None:
        # Withdrawn, unless the daemon was faster after all: a command that failed must not come true later.
        withdrawn = await backend.change(
            lambda c: c.execute("DELETE FROM control WHERE id = ? AND answer IS NULL", (number,)).rowcount
        )
        if withdrawn:
            raise CommandError("the daemon that owns the store did not do it in time; nothing was changed")
        answer = await backend.read(lambda c: _answer(c, number))
    await backend.change(lambda c: c.execute("DELETE FROM control WHERE id = ?", (number,)).rowcount)
    if answer == _CONFLICT:
        raise Conflict("what was read has been changed by others meanwhile; nothing was changed")
    if answer != _DONE:
        raise Unavailable(f"the daemon could not store it: {answer}")


def _answer(connection: sqlite3.Connection, number: int) -> str | None:
    row = connection.execute("SELECT answer FROM control WHERE id = ?", (number,)).fetchone()
    return None if row is None else row[0]


async def apply_controls(backend: SqliteBackend) -> None:
    """Do what commands have asked for, in order."""

    def select(connection: sqlite3.Connection) -> list[tuple[int, str]]:
        rows = connection.execute("SELECT id, unit FROM control WHERE answer IS NULL ORDER BY id")
        return [(int(number), str(text)) for number, text in rows]

    for number, text in await backend.read(select):
        unit = msgspec.json.decode(text, type=_Unit)
        state = SqliteState(backend.entries, unit.now)
        agreed = await _replay(state, unit)
        records = [Record(kind, at, base64.b64decode(body)) for kind, at, body in unit.records] if agreed else []
        try:
            await backend.write(state, records, answer=(_DONE if agreed else _CONFLICT, number))
        except Unavailable:
            return  # the row is still there, and so is the next try


async def _replay(state: SqliteState, unit: _Unit) -> bool:
    """Do the operations; where one has another result than the command saw, undo all and return False."""
    keys = {arguments[0] for _, arguments, _ in unit.operations}
    for key in keys:
        await state.get(key)
    # All entries are in memory now, so nothing below pauses and nobody sees a unit half done.
    before = {key: (e.value, e.fields, e.expires, e.dirty) for key, e in state.touched.items()}
    for name, arguments, expected in unit.operations:
        given = arguments
        if name == "merge":
            given = [arguments[0], {field: Field(*value) for field, value in arguments[1].items()}]
        result = await getattr(state, name)(*given)
        if msgspec.json.decode(msgspec.json.encode(result)) != expected:
            for key, was in before.items():
                entry = state.touched[key]
                entry.value, entry.fields, entry.expires, entry.dirty = was
            state.written.clear()
            return False
    return True
