"""Lives that have become longer, as every event does it to a session: appended at once, and put in their rows later.

A table of millions has next to every row on a page of its own, and a commit writes whole pages. So a commit only
appends what it renews to a log, in one row; when many have gathered, or after a while, they are written into their
rows in the order of keys, a few in a commit, and the log is emptied. Until then they are in memory, and what is read
from the file is put right by them. A start reads the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from ..entries import Row, is_renewal
from .commits import Commits

__all__ = ["Renewal", "Renewals", "read_log", "renewed"]

Renewal = tuple[str, int]
"""A value, and the last millisecond of its life."""

_FULL = 50_000  # renewals in the log: some megabytes
_AGE = 60  # turns
_MANY = 128  # rows of one commit: each may be on a page of its own
_LOG_ROWS = 64  # of the log that are removed in one commit

_decode = msgspec.json.Decoder(list[tuple[str, str, int]]).decode


class Renewals:
    """What the log holds, and emptying it."""

    def __init__(self, log: Iterable[tuple[str, str, int]] = ()) -> None:
        self._fresh: dict[str, Renewal] = {}
        self._folding: Mapping[str, Renewal] = {}
        """Those that are just being written into their rows."""
        self._logged = 0
        self._turns = 0
        for key, value, expires in log:
            self._add(key, value, expires)

    def __contains__(self, key: str) -> bool:
        return key in self._fresh or key in self._folding

    def add(self, rows: Iterable[Row]) -> None:
        """These rows have become durable: of those that are renewals, in the log."""
        for row in rows:
            key, value, _, expires = row
            if not is_renewal(row):
                self._fresh.pop(key, None)
            elif value is not None and expires is not None:
                self._add(key, value, expires)

    def _add(self, key: str, value: str, expires: int) -> None:
        self._fresh[key] = value, expires
        self._logged += 1

    def of(self, keys: Iterable[str]) -> dict[str, Renewal]:
        """Those of some keys, to be asked for before their rows are read: it may be in them soon, and not here."""
        found = {}
        for key in keys:
            renewal = self._fresh.get(key) or self._folding.get(key)
            if renewal is not None:
                found[key] = renewal
        return found

    async def step(self, commits: Commits) -> None:
        """Empty the log when it is time to. Raises `Unavailable`."""
        self._turns += bool(self._logged)
        if self._logged >= _FULL or self._turns >= _AGE:
            await self.fold(commits)

    async def fold(self, commits: Commits) -> None:
        """Write all there are into their rows, and empty the log. Raises `Unavailable`."""
        if not self._logged or self._folding:
            return
        # A commit of its own tells where the log ends: what is renewed from now on comes behind that.
        last: list[int] = []
        self._folding, self._fresh, self._logged, self._turns = self._fresh, {}, 0, 0
        try:
            await commits.commit(also=lambda connection, _: last.append(_last(connection)))
            pending = iter(sorted((key, *renewal) for key, renewal in self._folding.items()))
            while some := [*islice(pending, _MANY)]:
                await commits.commit(also=partial(_write, some))
            removed = _LOG_ROWS
            while removed == _LOG_ROWS:
                counts: list[int] = []
                await commits.commit(also=partial(_remove, last[-1], counts))
                removed = counts[-1]
        except BaseException:
            self._fresh = {**self._folding, **self._fresh}
            self._logged += 1
            raise
        finally:
            self._folding = {}


def renewed(row: Row, renewal: Renewal | None) -> Row:
    """The row, with the life it has by the log."""
    key, value, fields, expires = row
    if renewal is None or expires is None or value != renewal[0]:
        return row
    return key, value, fields, max(expires, renewal[1])


def read_log(connection: sqlite3.Connection) -> list[tuple[str, str, int]]:
    found: list[tuple[str, str, int]] = []
    for (text,) in connection.execute("SELECT entries FROM renewal ORDER BY number"):
        found += _decode(text)
    return found


def _last(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM renewal").fetchone()[0])


def _write(renewals: Sequence[tuple[str, str, int]], connection: sqlite3.Connection, _: int) -> None:
    marks = ", ".join(["(?, ?, ?)"] * len(renewals))
    connection.execute(
        "UPDATE state SET expires = new.column3"  # noqa: S608 - only marks
        f" FROM (VALUES {marks}) AS new"
        " WHERE state.key = new.column1 AND state.value = new.column2 AND state.expires < new.column3",
        [*_flat(renewals)],
    )


def _flat(renewals: Iterable[Sequence[Any]]) -> Iterator[Any]:
    for renewal in renewals:
        yield from renewal


def _remove(last: int, counts: list[int], connection: sqlite3.Connection, _: int) -> None:
    done = connection.execute(
        "DELETE FROM renewal WHERE number IN (SELECT number FROM renewal WHERE number <= ? ORDER BY number LIMIT ?)",
        (last, _LOG_ROWS),
    )
    counts.append(done.rowcount)
