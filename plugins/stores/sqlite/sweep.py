"""Removes expired state from the file, in steps short enough not to delay a commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..entry import set_key
from .commits import Commits
from .database import Database

__all__ = ["Sweeper"]

# A lagging consumer has transactions at earlier times, and must find the state that was live then.
GRACE = 24 * 3_600_000  # milliseconds
PAUSE = 60_000  # milliseconds on the transactions' clock between the starts of two walks
ROWS = 1000
FIELDS = 16  # entries with fields that one commit removes: each may have 64 KiB
REST = 4  # steps skipped after one that found nothing; most find nothing where most state is kept forever


class Sweeper:
    """Walks the tables of states and members in key order, some rows a step.

    Its clock is the latest time of any transaction. So state expires by the time that transactions see.
    """

    def __init__(self, database: Database, commits: Commits) -> None:
        self._database = database
        self._commits = commits
        self._after: str | None = None
        self._after_member: int | None = None
        self._next = 0
        self._rest = 0

    async def step(self) -> None:
        if self._rest:
            self._rest -= 1
            return
        clock = self._database.clock
        if self._after is None and self._after_member is None:
            if clock < self._next:
                return
            self._after, self._after_member, self._next = "", 0, clock + PAUSE
        before = clock - GRACE
        if self._after is None:
            found = await self._sweep_members(before)
        else:
            found = await self._sweep_states(self._after, before)
        if not found:
            self._rest = REST

    async def _sweep_states(self, after: str, before: int) -> bool:
        """Returns whether a row had expired."""
        self._after, values, others = await self._database.connections.read(_read_expired, after, before)
        values = [key for key in values if key not in self._database.renewals]
        some = [values, *(others[first : first + FIELDS] for first in range(0, len(others), FIELDS))]
        for expired in filter(None, some):
            await self._commits.commit(also=partial(_remove, "state", "key", expired, before))
            self._database.entries.forget(expired)
        return bool(values or others)

    async def _sweep_members(self, before: int) -> bool:
        """Returns whether a member had expired."""
        assert self._after_member is not None
        self._after_member, expired = await self._database.connections.read(
            _read_expired_members, self._after_member, before
        )
        if expired:
            numbers = [number for number, _ in expired]
            await self._commits.commit(also=partial(_remove, "member", "number", numbers, before))
            self._database.entries.forget({set_key(key) for _, key in expired})
        return bool(expired)


def _read_expired_members(
    connection: sqlite3.Connection, after: int, before: int
) -> tuple[int | None, list[tuple[int, str]]]:
    """The last number of the next rows (None after the last row), and numbers and keys of the expired members."""
    count, last, expired = connection.execute(
        "SELECT count(*), max(number), json_group_array(json_array(number, key)) FILTER (WHERE expires < ?)"
        " FROM (SELECT number, key, expires FROM member WHERE number > ? ORDER BY number LIMIT ?)",
        (before, after, ROWS),
    ).fetchone()
    return (last if count == ROWS else None), json.loads(expired)


def _read_expired(connection: sqlite3.Connection, after: str, before: int) -> tuple[str | None, list[str], list[str]]:
    """The last key of the next rows (None after the last row), and the expired keys: of values, and of fields."""
    count, last, values, fields = connection.execute(
        "SELECT count(*), max(key), json_group_array(key) FILTER (WHERE expires < ? AND fields IS NULL),"
        " json_group_array(key) FILTER (WHERE expires < ? AND fields IS NOT NULL)"
        " FROM (SELECT key, fields, expires FROM state WHERE key > ? ORDER BY key LIMIT ?)",
        (before, before, after, ROWS),
    ).fetchone()
    return (last if count == ROWS else None), json.loads(values), json.loads(fields)


def _remove(table: str, column: str, names: Sequence[Any], before: int, connection: sqlite3.Connection, _: int) -> None:
    # A row that was renewed meanwhile has not expired, so the statement checks again.
    connection.execute(
        f"DELETE FROM {table} WHERE {column} IN ({', '.join('?' * len(names))}) AND expires < ?",  # noqa: S608 - only marks
        [*names, before],
    )
