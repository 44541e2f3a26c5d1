"""Lives that have become longer, as every event does it to a session: appended at once, and put in their rows later.

A table of millions has next to every row on a page of its own, and a commit writes whole pages. So a commit only
appends what it renews to a log, in one row. The log has two halves; what only the older one names is written into its
rows (`WriteBack`). So a session is written once it goes on no more, and not while it does. Until then its life is in
memory, and what is read from the file is put right by it. A start reads the log.

A session that begins will go on, most likely. So it comes into the log at once and has no row until it goes on no more:
it would be written twice, and sessions that are written together have more pages in common than those of one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from ..cache import Row, is_renewal

__all__ = ["FULL", "LogEntry", "Renewal", "TtlLog", "append_log", "clear_log", "read_log", "renewed"]

Renewal = tuple[str, int]
"""A value, and the last millisecond of its life."""
LogEntry = tuple[str, str, int | None]
"""A key and its renewal; without an end, what was renewed before is another value by now."""

FULL = 25_000  # renewals in half of the log: some megabytes
_MOST = 4 * FULL  # keys that it may name before new values go to their rows at once

_APPEND = "INSERT INTO renewal (number, entries) VALUES (max(?, (SELECT coalesce(max(number), 0) FROM renewal)) + 1, ?)"

_decode = msgspec.json.Decoder(list[LogEntry]).decode


class TtlLog:
    """What the log holds."""

    def __init__(self, log: Iterable[LogEntry] = (), end: int = 0) -> None:
        self.end = end
        """The number of its last row."""
        self.bound = 0
        """The number of the older half's last row."""
        self.logged = 0
        """How many renewals the younger half has."""
        self._young: dict[str, Renewal | None] = {}
        """All that this half of the log names; those whose value is another by now have no renewal."""
        self._old: dict[str, Renewal | None] = {}
        for entry in log:
            self._add(*entry)

    def __contains__(self, key: str) -> bool:
        return self._of(key) is not None

    @property
    def is_empty(self) -> bool:
        return not (self._young or self._old)

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
        self.logged += 1
        self._young[key] = None if expires is None else (value, expires)

    def _of(self, key: str) -> Renewal | None:
        return self._young[key] if key in self._young else self._old.get(key)

    def of(self, keys: Iterable[str]) -> dict[str, Renewal]:
        """Those of some keys, to be asked for before their rows are read: it may be in them soon, and not here."""
        return {key: renewal for key in keys if (renewal := self._of(key)) is not None}

    def of_older_half(self) -> list[str]:
        """The keys that it names."""
        return [*self._old]

    def of_older_alone(self, key: str) -> Renewal | None:
        """That of a key which has not been renewed since the younger half was begun."""
        return None if key in self._young else self._old.get(key)

    def compact(self) -> None:
        """The older half is in the rows, and gone from the log: the younger one takes its place."""
        # What has landed is in memory and in the log up to its end; what is on its way comes behind that.
        self._old, self._young = self._young, {}
        self.bound, self.logged = self.end, 0


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
