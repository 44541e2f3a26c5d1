"""Commands beside a running daemon: they ask through the table `control`, the daemon does it in their stead.

A row is one unit of work: the operations on the state, each with the result the command saw, and the
records to append. The daemon applies it as it would its own, or, where a result would differ, not at all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from ingestd.api import times
from ingestd.api.errors import CommandError, Conflict, Unavailable
from ingestd.api.events import Record
from ingestd.api.store import Field

from ..cache import Entries
from ..cached_state import CachedState
from .connections import Connections
from .removal import Replacement

__all__ = ["CONFLICT", "DONE", "GuestState", "Operation", "Request", "submit"]

_T = TypeVar("_T")

DONE, CONFLICT = "done", "conflict"
"""Answers; any other says why it could not be done."""

_PATIENCE = 5.0
_POLL = 0.05

Operation = Literal["get", "put", "swap", "renew", "delete", "merge", "fields", "push", "pull", "window"]


class Request(msgspec.Struct):
    now: int
    operations: list[tuple[Operation, list[Any], Any]]
    """Name, arguments, and the result the command saw."""
    records: list[tuple[str, int, bytes]]
    """Type, time, body."""
    replacements: list[Replacement] = []


class GuestState(CachedState):
    """Works on entries of its own, and remembers what was done and what came of it."""

    def __init__(self, entries: Entries, now: int) -> None:
        super().__init__(entries, now)
        self.log: list[tuple[Operation, list[Any], Any]] = []

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
        self._logged("delete", [key], None)

    async def merge(
        self, key: str, fields: Mapping[str, Field], *, keep: int | None = None, keep_size: int | None = None
    ) -> int:
        given = dict(fields)  # the caller may go on with its own
        bounds = {"keep": keep, "keep_size": keep_size}
        return self._logged("merge", [key, given, bounds], await super().merge(key, given, **bounds))

    async def fields(self, key: str) -> dict[str, Field]:
        return dict(self._logged("fields", [key], await super().fields(key)))

    async def push(
        self,
        key: str,
        member: str,
        at: int,
        *,
        keep: int,
        first: bool = False,
        since: int | None = None,
        ttl: int | None = None,
    ) -> None:
        bounds = {"keep": keep, "first": first, "since": since, "ttl": ttl}
        await super().push(key, member, at, keep=keep, first=first, since=since, ttl=ttl)
        self._logged("push", [key, member, at, bounds], None)

    async def pull(self, key: str, members: Collection[str]) -> None:
        given = [*members]
        await super().pull(key, given)
        self._logged("pull", [key, given], None)

    async def window(self, key: str, since: int | None = None, until: int | None = None) -> list[tuple[str, int]]:
        return self._logged("window", [key, since, until], await super().window(key, since, until))

    def _logged(self, name: Operation, arguments: list[Any], result: _T) -> _T:
        self.log.append((name, arguments, result))
        return result


async def submit(
    connections: Connections, state: GuestState, records: Sequence[Record], replacements: Sequence[Replacement] = ()
) -> int:
    """Ask the daemon, and wait until it has done it. Raises `Conflict`, `CommandError`, `Unavailable`.

    Returns the position of the last record; or, if asked to replace some, how many there were.
    """
    request = Request(
        state.now, state.log, [(record.type, record.at, record.body) for record in records], [*replacements]
    )
    try:
        text = msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise CommandError(f"this cannot be stored: {error}") from error
    number = await connections.change(_ask, text)
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while (answer := await connections.read(_answer, number)) is None:
        if asyncio.get_running_loop().time() > deadline and await connections.change(_withdraw, number):
            raise CommandError("the daemon that has the file did not do it in time; nothing was changed")
        await asyncio.sleep(_POLL)
    outcome, position = answer
    if outcome == CONFLICT:
        raise Conflict("what was read has been changed by others meanwhile; nothing was changed")
    if outcome != DONE:
        raise Unavailable(f"the daemon could not do it: {outcome}")
    return position


def _ask(connection: sqlite3.Connection, text: bytes) -> int:
    cursor = connection.execute("INSERT INTO control (at, request) VALUES (?, ?)", (times.now(), text))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _answer(connection: sqlite3.Connection, number: int) -> tuple[str, int] | None:
    row = connection.execute(
        "SELECT answer, position FROM control WHERE id = ? AND answer IS NOT NULL", (number,)
    ).fetchone()
    return None if row is None else (str(row[0]), int(row[1]))


def _withdraw(connection: sqlite3.Connection, number: int) -> bool:
    """Whether the request is gone now; if not, it has been answered."""
    return connection.execute("DELETE FROM control WHERE id = ? AND answer IS NULL", (number,)).rowcount == 1
