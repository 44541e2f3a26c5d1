"""Lives that have become longer, as every event does it to a session: appended at once, and put in their rows later.

A table of millions has next to every row on a page of its own, and a commit writes whole pages. So a commit only
appends what it renews to a log, in one row. The log has two halves. When the younger one is full, or after a while,
what only the older one names is written into its rows, in the order of keys, a few in a commit; that half is removed,
and the younger one takes its place. So a session is written once it goes on no more, and not while it does. Until then
its life is in memory, and what is read from the file is put right by it. A start reads the log.

A session that begins will go on, most likely. So it comes into the log at once and has no row until it goes on no more:
it would be written twice, and sessions that are written together have more pages in common than those of one commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from ..entries import Row, is_renewal

if TYPE_CHECKING:
    from .commits import Commits

__all__ = ["LogEntry", "Renewal", "Renewals", "append_log", "clear_log", "read_log", "renewed"]

Renewal = tuple[str, int]
"""A value, and the last millisecond of its life."""
LogEntry = tuple[str, str, int | None]
"""A key and its renewal; without an end, what was renewed before is another value by now."""

_FULL = 25_000  # renewals in half of the log: some megabytes
_MOST = 4 * _FULL  # keys that it may name before new values go to their rows at once
_AGE = 30  # steps, which the back end takes once a second
_MANY = 128  # rows of one commit: each may be on a page of its own
_PAUSE = 0.005  # seconds between two of them, for other commits
_SORTED = 1000  # keys that are sorted without a pause
_LOG_ROWS = 64  # of the log that are removed in one commit

_APPEND = "INSERT INTO renewal (number, entries) VALUES (max(?, (SELECT coalesce(max(number), 0) FROM renewal)) + 1, ?)"

_decode = msgspec.json.Decoder(list[LogEntry]).decode


class Renewals:
    """What the log holds, and keeping it short. `end` is the number of its last row."""

    def __init__(self, log: Iterable[LogEntry] = (), end: int = 0) -> None:
        self.end = end
        self._young: dict[str, Renewal | None] = {}
        """All that this half of the log names; those whose value is another by now have no renewal."""
        self._old: dict[str, Renewal | None] = {}
        self._bound = 0
        """The number of the older half's last row."""
        self._logged = 0
        """How many renewals the younger half has."""
        self._steps = 0
        self._turning = asyncio.Lock()
        for entry in log:
            self._add(*entry)

    def __contains__(self, key: str) -> bool:
        return self._of(key) is not None

    @property
    def has_room(self) -> bool:
        """Whether it takes what is new, too: not where more begins than can be written to rows."""
        return len(self._young) < _MOST

    def named(self) -> list[str]:
        """All keys that it names, some maybe twice."""
        return [*self._old, *self._young]

    def of_kind(self, kind: str) -> dict[str, str]:
        """Key and value of all renewals of a kind."""
        keys = [key for key in self.named() if key.startswith(f"{kind}:")]
        return {key: value for key, (value, _) in self.of(keys).items()}

    def names(self, key: str) -> bool:
        """Whether anything in the log is of this key."""
        return key in self._young or key in self._old

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
            self._young.pop(key, None)
            self._old.pop(key, None)

    def _add(self, key: str, value: str, expires: int | None) -> None:
        self._logged += 1
        self._young[key] = None if expires is None else (value, expires)

    def _of(self, key: str) -> Renewal | None:
        return self._young[key] if key in self._young else self._old.get(key)

    def of(self, keys: Iterable[str]) -> dict[str, Renewal]:
        """Those of some keys, to be asked for before their rows are read: it may be in them soon, and not here."""
        return {key: renewal for key in keys if (renewal := self._of(key)) is not None}

    async def step(self, commits: Commits) -> None:
        """Turn over when it is time to. Raises `Unavailable`."""
        self._steps += bool(self._young or self._old)
        if self._logged >= _FULL or self._steps >= _AGE:
            await self.turn_over(commits)

    async def turn_over(self, commits: Commits) -> None:
        """Write what only the older half names into its rows, remove that half, and let the younger one be the older.

        Raises `Unavailable`; then it is to be tried again.
        """
        async with self._turning:
            ordered = await self._in_order([*self._old])
            while some := [*islice(ordered, _MANY)]:
                await commits.commit(first=partial(self._write, some))
                await asyncio.sleep(_PAUSE)
            counts = [_LOG_ROWS if self._old else 0]
            while counts[-1] == _LOG_ROWS:
                await commits.commit(also=partial(_remove, self._bound, counts))
            # What has landed is in memory and in the log up to its end; what is on its way comes behind that.
            self._old, self._young = self._young, {}
            self._bound, self._logged, self._steps = self.end, 0, 0

    def _write(self, keys: Sequence[str], connection: sqlite3.Connection) -> None:
        """Write rows, before all else in the commit, which may hold other values of these keys.

        Only now is it known what the commits before have left of them; and nothing lands while this one is written.
        """
        values: list[Any] = []
        for key in keys:
            if renewal := self._of_old_alone(key):
                values += (key, *renewal)
        if values:
            connection.execute(
                f"INSERT INTO state (key, value, expires) VALUES {', '.join(['(?, ?, ?)'] * (len(values) // 3))}"  # noqa: S608 - only marks
                " ON CONFLICT (key) DO UPDATE SET value = excluded.value, fields = NULL, expires = excluded.expires",
                values,
            )

    async def _in_order(self, keys: Sequence[str]) -> Iterator[str]:
        """Those that are to be written. A part at a time, since events wait while they are sorted."""
        parts = []
        for start in range(0, len(keys), _SORTED):
            parts.append(sorted(filter(self._of_old_alone, keys[start : start + _SORTED])))
            await asyncio.sleep(0)
        return merge(*parts)

    def _of_old_alone(self, key: str) -> Renewal | None:
        return None if key in self._young else self._old.get(key)


def renewed(rows: Iterable[Row], renewals: Mapping[str, Renewal]) -> list[Row]:
    """The rows of some keys, where these renewals are all of them that the log has."""
    left = [row for row in rows if row[0] not in renewals]
    return [*left, *((key, value, None, expires) for key, (value, expires) in renewals.items())]


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


def read_log(connection: sqlite3.Connection) -> tuple[list[LogEntry], int]:
    """What it holds, and the number of its last row."""
    found: list[LogEntry] = []
    end = 0
    for number, text in connection.execute("SELECT number, entries FROM renewal ORDER BY number"):
        found += _decode(text)
        end = number
    return found, end


def append_log(connection: sqlite3.Connection, renewals: Sequence[LogEntry], end: int) -> int:
    """Returns the number of the row, which is behind `end`: those of rows that are gone are not used again."""
    text = msgspec.json.encode(renewals).decode()
    number = connection.execute(_APPEND, (end, text)).lastrowid
    assert number is not None
    return number


def _remove(last: int, counts: list[int], connection: sqlite3.Connection, _: int) -> None:
    done = connection.execute(
        "DELETE FROM renewal WHERE number IN (SELECT number FROM renewal WHERE number <= ? ORDER BY number LIMIT ?)",
        (last, _LOG_ROWS),
    )
    counts.append(done.rowcount)
