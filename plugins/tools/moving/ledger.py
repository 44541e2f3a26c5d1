"""The ledger of a copy: which entries the target must have, and where; and digests of what it has."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from ingestd.api import times
from ingestd.api.contents import Entry, kind_of

__all__ = ["Digests", "KindDigest", "Ledger", "sum_up"]

_MINUTE = 60_000  # milliseconds
_DAY = 86_400_000
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
    """Counts and digests of entries by kind, independent of the order of the entries.

    An entry may expire meanwhile. So entries that expire soon are counted for each minute of their expiry, and
    `of_kinds` leaves out the minutes that have passed.
    """

    def __init__(self) -> None:
        self._last_minute = (times.now() + _DAY) // _MINUTE
        self._sums: dict[str, dict[int, list[int]]] = defaultdict(dict)
        """By kind and minute of expiry: the number of entries and the sum of their digests."""

    def add(self, entry: Entry, digest: bytes) -> None:
        minute = self._last_minute if entry.expires is None else min(entry.expires // _MINUTE, self._last_minute)
        found = self._sums[kind_of(entry.key)].setdefault(max(minute, self._last_minute - _DAY // _MINUTE), [0, 0])
        found[0] += 1
        found[1] = (found[1] + int.from_bytes(digest, "big")) % _MODULUS

    def of_kinds(self, now: int) -> Iterator[KindDigest]:
        """The kinds in order, with the entries that expire after the minute of `now` (milliseconds)."""
        for kind, minutes in sorted(self._sums.items()):
            living = [found for minute, found in minutes.items() if minute > now // _MINUTE]
            if living:
                total = sum(found[1] for found in living) % _MODULUS
                yield KindDigest(kind, sum(found[0] for found in living), f"{total:032x}")


def sum_up(digests: Iterable[KindDigest]) -> list[KindDigest]:
    """The digests of several partitions by kind, as if all their entries were in one."""
    found: dict[str, tuple[int, int]] = {}
    for each in digests:
        entries, total = found.get(each.kind, (0, 0))
        found[each.kind] = entries + each.entries, (total + int(each.digest, 16)) % _MODULUS
    return [KindDigest(kind, entries, f"{total:032x}") for kind, (entries, total) in sorted(found.items())]
