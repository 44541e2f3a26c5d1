"""The TTL log: new expiries of unchanged values, such as sessions. They are appended now and written to rows later.

In a table of millions, nearly every row is on a separate page, and a commit writes whole pages. So a commit appends
its renewals to a log, as one row. The log has two halves. `WriteBack` writes to the rows the keys that only the older
half names. So a session is written once it is idle, and not while it is active. Until then its expiry is in memory,
where loads from the file find it. A start reads the log.

A new session will most likely be renewed. So it too goes to the log, and gets its row once it is idle. That saves one
write. Also, sessions that are written together share more pages than the sessions of one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from ..entry import Row, is_renewal

__all__ = ["FULL", "LogEntry", "Renewal", "TtlLog", "append_log", "clear_log", "read_log", "renewed"]

Renewal = tuple[str, int]
"""A value, and the last millisecond before its expiry."""
LogEntry = tuple[str, str, int | None]
"""A key and its renewal. Without an expiry, the value renewed before has been replaced."""

FULL = 25_000  # renewals in half of the log: some megabytes
_MOST = 4 * FULL  # keys in the younger half beyond which new values go to their rows at once

_APPEND = "INSERT INTO renewal (number, entries) VALUES (max(?, (SELECT coalesce(max(number), 0) FROM renewal)) + 1, ?)"

_decode = msgspec.json.Decoder(list[LogEntry]).decode


class TtlLog:
    """The content of the log, in memory."""

    def __init__(self, log: Iterable[LogEntry] = (), end: int = 0) -> None:
        self.end = end
        """The number of the last row."""
        self.bound = 0
        """The number of the older half's last row."""
        self.logged = 0
        """Number of renewals in the younger half."""
        self._young: dict[str, Renewal | None] = {}
        """The renewals of the younger half, by key. None stands for a value that has been replaced."""
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
        """Whether the log takes new values too. It does not while more sessions begin than can be written to rows."""
        return len(self._young) < _MOST

    def named(self) -> list[str]:
        """All keys in the log; a key can be there twice."""
        return [*self._old, *self._young]

    def of_kind(self, kind: str) -> dict[str, str]:
        """Keys and values of all renewals of a kind."""
        keys = [key for key in self.named() if key.startswith(f"{kind}:")]
        return {key: value for key, (value, _) in self.of(keys).items()}

    def names(self, key: str) -> bool:
        """Whether the log names this key."""
        return key in self._young or key in self._old

    def add(self, rows: Iterable[Row]) -> None:
        """Add the renewals among rows that are now durable."""
        for row in rows:
            key, value, _, expires = row
            if is_renewal(row):
                assert value is not None
                self._add(key, value, expires)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget keys that `clear_log` has removed from the log."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)

    def _add(self, key: str, value: str, expires: int | None) -> None:
        self.logged += 1
        self._young[key] = None if expires is None else (value, expires)

    def _of(self, key: str) -> Renewal | None:
        return self._young[key] if key in self._young else self._old.get(key)

    def of(self, keys: Iterable[str]) -> dict[str, Renewal]:
        """The renewals of some keys. Ask before reading the rows: a write-back may move renewals to them meanwhile."""
        return {key: renewal for key in keys if (renewal := self._of(key)) is not None}

    def of_older_half(self) -> list[str]:
        """The keys in the older half."""
        return [*self._old]

    def of_older_alone(self, key: str) -> Renewal | None:
        """The renewal of a key that was not renewed since the younger half began."""
        return None if key in self._young else self._old.get(key)

    def compact(self) -> None:
        """Drop the older half: it is in the rows and removed from the log. The younger half becomes the older one."""
        # Durable renewals are in memory and in the log up to its end. Later renewals come after the end.
        self._old, self._young = self._young, {}
        self.bound, self.logged = self.end, 0


def renewed(rows: Iterable[Row], renewals: Mapping[str, Renewal]) -> list[Row]:
    """Rows of some keys, with the renewals that the log has for these keys."""
    left = [row for row in rows if row[0] not in renewals]
    return [*left, *((key, value, None, expires) for key, (value, expires) in renewals.items())]


def clear_log(connection: sqlite3.Connection, keys: Collection[str]) -> None:
    """Remove all entries of some keys: deleted state must not remain anywhere."""
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
    """The entries of the log, and the number of its last row."""
    found: list[LogEntry] = []
    end = 0
    for number, text in connection.execute("SELECT number, entries FROM renewal ORDER BY number"):
        found += _decode(text)
        end = number
    return found, end


def append_log(connection: sqlite3.Connection, renewals: Sequence[LogEntry], end: int) -> int:
    """Append a row and return its number. It is above `end`: numbers of removed rows are not reused."""
    text = msgspec.json.encode(renewals).decode()
    number = connection.execute(_APPEND, (end, text)).lastrowid
    assert number is not None
    return number
