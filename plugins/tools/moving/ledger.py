"""The ledger of a copy: which entries the target must have, and where; and digests of what it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.contents import Entry

__all__ = ["Digests", "KindDigest", "Ledger", "sum_up"]

_MODULUS = 1 << 128

_TABLE = """
CREATE TABLE ledger (
    key TEXT PRIMARY KEY, place INTEGER NOT NULL, digest BLOB NOT NULL, expires INTEGER, met INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID
"""
_WRITE = "INTO ledger (key, place, digest, expires) VALUES (?, ?, ?, ?)"


class Ledger:
    """The digest and the place of each entry. It is in a temporary file, because there may be millions.

    Entries of the kinds in `left_out` are not compared.
    """

    def __init__(self, left_out: Collection[str] = ()) -> None:
        self.left_out = left_out
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

    def meet(self, entries: Iterable[Entry]) -> dict[str, tuple[int, bytes]]:
        """The places and the digests of entries that the target has, by key, without those that it must not have."""
        query = "UPDATE ledger SET met = 1 WHERE key IN (SELECT value FROM json_each(?)) RETURNING key, place, digest"
        keys = msgspec.json.encode([entry.key for entry in entries]).decode()
        return {key: (place, digest) for key, place, digest in self._file.execute(query, (keys,))}

    def missing(self) -> Iterator[str]:
        """The keys of living entries that the target was not seen to have."""
        query = "SELECT key FROM ledger WHERE NOT met AND (expires IS NULL OR expires > ?)"
        for (key,) in self._file.execute(query, (times.now(),)):
            yield key


class KindDigest(NamedTuple):
    """The number of entries of a kind, and the sum of their digests, in hexadecimal."""

    kind: str
    entries: int
    digest: str


class Digests:
    """Counts and digests of entries by kind, independent of the order of the entries."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}
        """By kind: the number of entries and the sum of their digests."""

    def add(self, kind: str, entries: int, digest: int) -> None:
        count, total = self._sums.get(kind, (0, 0))
        self._sums[kind] = count + entries, (total + digest) % _MODULUS

    def of_kinds(self) -> list[KindDigest]:
        """The kinds in order."""
        return [KindDigest(kind, count, f"{total:032x}") for kind, (count, total) in sorted(self._sums.items())]


def sum_up(digests: Iterable[KindDigest]) -> list[KindDigest]:
    """The digests of several partitions by kind, as if all their entries were in one."""
    total = Digests()
    for each in digests:
        total.add(each.kind, each.entries, int(each.digest, 16))
    return total.of_kinds()
