"""Lives that have become longer, as every event does it to a session: appended at once, and put in their rows later.

A table of millions has next to every row on a page of its own, and a commit writes whole pages. So a commit only
appends what it renews to a log, in one row; when many have gathered, or after a while, they are written into their
rows in the order of keys, a few in a commit, and the log is emptied. Until then they are in memory, and what is read
from the file is put right by them. A start reads the log.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..entries import Entries, Row, is_renewal

if TYPE_CHECKING:
    from .commits import Commits

__all__ = ["LogEntry", "Renewal", "Renewals", "clear_log", "read_log", "renewed"]

Renewal = tuple[str, int]
"""A value, and the last millisecond of its life."""
LogEntry = tuple[str, str, int | None]
"""A key and its renewal; without an end, what was renewed before is another value by now."""

_FULL = 50_000  # renewals in the log: some megabytes
_AGE = 60  # turns
_MANY = 128  # rows of one commit: each may be on a page of its own
_PAUSE = 0.005  # seconds between two of them, for other commits
_PASSES = 8  # over those that units are just changing
_LOG_ROWS = 64  # of the log that are removed in one commit

_decode = msgspec.json.Decoder(list[LogEntry]).decode


class Renewals:
    """What the log holds, and emptying it."""

    def __init__(self, log: Iterable[LogEntry] = ()) -> None:
        self._fresh: dict[str, Renewal] = {}
        self._folding: dict[str, Renewal] = {}
        """Those that are just being written into their rows."""
        self._keys: set[str] = set()
        """All that the log names, also those whose value is another by now,"""
        self._folding_keys: set[str] = set()
        """and those in the part of it that is about to be removed."""
        self._logged = 0
        self._turns = 0
        for entry in log:
            self._add(*entry)

    def __contains__(self, key: str) -> bool:
        return key in self._fresh or key in self._folding

    def names(self, key: str) -> bool:
        """Whether anything in the log is of this key."""
        return key in self._keys or key in self._folding_keys

    def add(self, rows: Iterable[Row]) -> None:
        """These rows have become durable: of those that are renewals, in the log."""
        for row in rows:
            key, value, _, expires = row
            if is_renewal(row):
                assert value is not None
                self._add(key, value, expires)

    def forget(self, keys: Iterable[str]) -> None:
        """These have gone from the log (`clear_log`)."""
        for key in keys:
            self._keys.discard(key)
            self._folding_keys.discard(key)
            self._fresh.pop(key, None)
            self._folding.pop(key, None)

    def _add(self, key: str, value: str, expires: int | None) -> None:
        self._logged += 1
        self._keys.add(key)
        if expires is not None:
            self._fresh[key] = value, expires
        else:
            self._fresh.pop(key, None)
            self._folding.pop(key, None)

    def of(self, keys: Iterable[str]) -> dict[str, Renewal]:
        """Those of some keys, to be asked for before their rows are read: it may be in them soon, and not here."""
        found = {}
        for key in keys:
            renewal = self._fresh.get(key) or self._folding.get(key)
            if renewal is not None:
                found[key] = renewal
        return found

    async def step(self, commits: Commits, entries: Entries) -> None:
        """Empty the log when it is time to. Raises `Unavailable`."""
        self._turns += bool(self._logged)
        if self._logged >= _FULL or self._turns >= _AGE:
            await self.fold(commits, entries)

    async def fold(self, commits: Commits, entries: Entries) -> bool:
        """Write all there are into their rows, and empty the log; returns whether it is. Raises `Unavailable`."""
        if not self._logged or self._folding:
            return not self._logged
        # A commit of its own tells where the log ends: what is renewed from now on comes behind that.
        last: list[int] = []
        self._folding, self._fresh, self._logged, self._turns = self._fresh, {}, 0, 0
        self._folding_keys, self._keys = self._keys, set()
        try:
            await commits.commit(also=lambda connection, _: last.append(_last(connection)))
            pending = sorted(self._folding)
            for _ in range(_PASSES):
                pending = await self._write_all(pending, commits, entries)
            counts = [0 if pending else _LOG_ROWS]
            while counts[-1] == _LOG_ROWS:
                await commits.commit(also=partial(_remove, last[-1], counts))
        except BaseException:
            pending = [*self._folding]
            raise
        finally:
            left = {key: self._folding[key] for key in pending if key in self._folding}
            self._folding, self._fresh = {}, {**left, **self._fresh}
            self._logged += bool(left)
            if pending:
                self._keys |= self._folding_keys
            self._folding_keys = set()
        return not left

    async def _write_all(self, keys: Sequence[str], commits: Commits, entries: Entries) -> list[str]:
        """Returns those that must wait: they may just become something else."""
        moving: list[str] = []
        for start in range(0, len(keys), _MANY):
            some: list[Any] = []
            for key in keys[start : start + _MANY]:
                if entries.is_moving(key):
                    moving.append(key)
                elif key in self._folding:
                    some += (key, *self._folding[key])
            await commits.commit(first=partial(_write, some))
            await asyncio.sleep(_PAUSE)
        return moving


def renewed(row: Row, renewal: Renewal | None) -> Row:
    """The row, with the life it has by the log."""
    key, value, fields, expires = row
    if renewal is None or expires is None or value != renewal[0]:
        return row
    return key, value, fields, max(expires, renewal[1])


def clear_log(connection: sqlite3.Connection, keys: Collection[str]) -> None:
    """Take out all that is of some keys: what is deleted is to be found nowhere."""
    for number, text in connection.execute("SELECT number, entries FROM renewal").fetchall():
        entries = _decode(text)
        left = [entry for entry in entries if entry[0] not in keys]
        if not left:
            connection.execute("DELETE FROM renewal WHERE number = ?", (number,))
        elif len(left) < len(entries):
            connection.execute(
                "UPDATE renewal SET entries = ? WHERE number = ?", (msgspec.json.encode(left).decode(), number)
            )


def read_log(connection: sqlite3.Connection) -> list[LogEntry]:
    found: list[LogEntry] = []
    for (text,) in connection.execute("SELECT entries FROM renewal ORDER BY number"):
        found += _decode(text)
    return found


def _last(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM renewal").fetchone()[0])


def _write(some: Sequence[Any], connection: sqlite3.Connection) -> None:
    """Keys, values and ends, in one list. Before all else in the commit: that may hold other values of these keys."""
    if some:
        connection.execute(
            "UPDATE state SET expires = new.column3"  # noqa: S608 - only marks
            f" FROM (VALUES {', '.join(['(?, ?, ?)'] * (len(some) // 3))}) AS new"
            " WHERE state.key = new.column1 AND state.value = new.column2 AND state.expires < new.column3",
            some,
        )


def _remove(last: int, counts: list[int], connection: sqlite3.Connection, _: int) -> None:
    done = connection.execute(
        "DELETE FROM renewal WHERE number IN (SELECT number FROM renewal WHERE number <= ? ORDER BY number LIMIT ?)",
        (last, _LOG_ROWS),
    )
    counts.append(done.rowcount)
