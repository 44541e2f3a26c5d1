"""Counts and digests of entries, by kind, independent of the order of the entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ingestd.api.contents import Entry, kind_of

__all__ = ["Digests", "KindDigest", "sum_up"]

_MINUTE = 60_000  # milliseconds
_DAY = 86_400_000
_MODULUS = 1 << 128


class KindDigest(NamedTuple):
    """The number of entries of a kind, and the sum of their digests, in hexadecimal."""

    kind: str
    entries: int
    digest: str


class Digests:
    """The digests of one side.

    An entry that expires during the comparison may be there on one side only. So entries that expire soon are counted
    for each minute of their expiry, and `of_kinds` leaves out the minutes that have passed. Both sides need the same
    `begun_at` (milliseconds).
    """

    def __init__(self, begun_at: int) -> None:
        self._last_minute = (begun_at + _DAY) // _MINUTE
        self._sums: dict[str, dict[int, list[int]]] = defaultdict(dict)
        """By kind and minute of expiry: the number of entries and the sum of their digests."""

    def add(self, entry: Entry, digest: bytes | None = None) -> None:
        """Add an entry. `digest` is the entry's digest if the caller knows it."""
        minute = self._last_minute if entry.expires is None else min(entry.expires // _MINUTE, self._last_minute)
        found = self._sums[kind_of(entry.key)].setdefault(max(minute, self._last_minute - _DAY // _MINUTE), [0, 0])
        found[0] += 1
        found[1] = (found[1] + int.from_bytes(digest or entry.digest(), "big")) % _MODULUS

    def of_kinds(self, now: int) -> Iterator[KindDigest]:
        """The kinds in order, with the entries that expire after the minute of `now` (milliseconds)."""
        for kind, minutes in sorted(self._sums.items()):
            living = [found for minute, found in minutes.items() if minute > now // _MINUTE]
            if living:
                total = sum(found[1] for found in living) % _MODULUS
                yield KindDigest(kind, sum(found[0] for found in living), f"{total:032x}")

    def differing(self, other: Digests, now: int) -> list[str]:
        """The kinds of which the two sides have different entries."""
        return sorted({each.kind for each in {*self.of_kinds(now)} ^ {*other.of_kinds(now)}})


def sum_up(digests: Iterable[KindDigest]) -> list[KindDigest]:
    """The digests of several partitions by kind, as if all their entries were in one."""
    found: dict[str, tuple[int, int]] = {}
    for each in digests:
        entries, total = found.get(each.kind, (0, 0))
        found[each.kind] = entries + each.entries, (total + int(each.digest, 16)) % _MODULUS
    return [KindDigest(kind, entries, f"{total:032x}") for kind, (entries, total) in sorted(found.items())]
