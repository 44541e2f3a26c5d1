"""The ledger of a copy: which entries the target must have, and where."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ingestd.api import times
from ingestd.api.contents import Entry

__all__ = ["Ledger"]

_TABLE = """
CREATE TABLE ledger (
    key TEXT PRIMARY KEY, place INTEGER NOT NULL, digest BLOB NOT NULL, expires INTEGER, met INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID
"""
_WRITE = "INTO ledger (key, place, digest, expires) VALUES (?, ?, ?, ?)"


class Ledger:
    """The digest and the place of each entry. It is in a temporary file, because there may be millions."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", isolation_level=None)  # a file without name, which SQLite removes at the end
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute(_TABLE)
        self._file.execute("BEGIN")

    def close(self) -> None:
        self._file.close()

    def clear(self) -> None:
        self._file.execute("DELETE FROM ledger")

    def add(self, entry: Entry, place: int) -> bool:
        """Add an entry. False, and no change, if its key is there already."""
        return self._write("INSERT OR IGNORE", entry, place) > 0

    def replace(self, entry: Entry, place: int) -> None:
        """Add an entry in place of what its key has."""
        self._write("INSERT OR REPLACE", entry, place)

    def _write(self, verb: str, entry: Entry, place: int) -> int:
        row = entry.key, place, entry.digest(), entry.expires
        return self._file.execute(f"{verb} {_WRITE}", row).rowcount

    def meet(self, key: str) -> tuple[int, bytes] | None:
        """The place and the digest of an entry that the target has; None if it must not have it."""
        query = "UPDATE ledger SET met = 1 WHERE key = ? RETURNING place, digest"
        found: tuple[int, bytes] | None = self._file.execute(query, (key,)).fetchone()
        return found

    def missing(self) -> Iterator[str]:
        """The keys of living entries that the target was not seen to have."""
        query = "SELECT key FROM ledger WHERE NOT met AND (expires IS NULL OR expires > ?)"
        for (key,) in self._file.execute(query, (times.now(),)):
            yield key
