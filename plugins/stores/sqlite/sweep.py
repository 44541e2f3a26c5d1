"""Removes expired states and members of sets from the file, beside the commits and never long enough to hold one up."""

from __future__ import annotations

import json
import sqlite3
from functools import partial

from ..cache import set_key
from .commits import Commits
from .database import Database

__all__ = ["Sweeper"]

# A consumer that lags does its units at earlier times than the present, and must find what lived then.
GRACE = 24 * 3_600_000  # milliseconds
PAUSE = 60_000  # milliseconds of the units' time between the starts of two walks
ROWS = 1000
REST = 4  # steps that are left out after one that found nothing, as most do where most is kept for ever


class Sweeper:
    """Walks the table of states in the order of its keys, some rows a step.

    The clock is the latest time of any unit, so what is expired is so by the time the units live in.
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
        """Returns whether it found any."""
        self._after, expired = await self._database.connections.read(_look, after, before)
        expired = [key for key in expired if key not in self._database.renewals]
        if expired:
            await self._commits.commit(also=partial(_remove, expired, before))
            self._database.entries.forget(expired)
        return bool(expired)

    async def _sweep_members(self, before: int) -> bool:
        """Returns whether it found any."""
        assert self._after_member is not None
        self._after_member, expired = await self._database.connections.read(
            _look_at_members, self._after_member, before
        )
        if expired:
            await self._commits.commit(also=partial(_remove_members, [number for number, _ in expired], before))
            self._database.entries.forget({set_key(key) for _, key in expired})
        return bool(expired)


def _look_at_members(
    connection: sqlite3.Connection, after: int, before: int
) -> tuple[int | None, list[tuple[int, str]]]:
    """The next rows: the last number, None if there are no more; and number and key of those that have expired."""
    count, last, expired = connection.execute(
        "SELECT count(*), max(number), json_group_array(json_array(number, key)) FILTER (WHERE expires < ?)"
        " FROM (SELECT number, key, expires FROM member WHERE number > ? ORDER BY number LIMIT ?)",
        (before, after, ROWS),
    ).fetchone()
    return (last if count == ROWS else None), json.loads(expired)


def _remove_members(numbers: list[int], before: int, connection: sqlite3.Connection, _: int) -> None:
    connection.execute(
        f"DELETE FROM member WHERE number IN ({', '.join('?' * len(numbers))}) AND expires < ?",  # noqa: S608 - only marks
        [*numbers, before],
    )


def _look(connection: sqlite3.Connection, after: str, before: int) -> tuple[str | None, list[str]]:
    """The next rows: the last key, None if there are no more; and those that have expired."""
    count, last, expired = connection.execute(
        "SELECT count(*), max(key), json_group_array(key) FILTER (WHERE expires < ?)"
        " FROM (SELECT key, expires FROM state WHERE key > ? ORDER BY key LIMIT ?)",
        (before, after, ROWS),
    ).fetchone()
    return (last if count == ROWS else None), json.loads(expired)


def _remove(keys: list[str], before: int, connection: sqlite3.Connection, _: int) -> None:
    # What has been renewed meanwhile is not expired any more, so the statement looks again.
    connection.execute(
        f"DELETE FROM state WHERE key IN ({', '.join('?' * len(keys))}) AND expires < ?",  # noqa: S608 - only marks
        [*keys, before],
    )
