"""The newest records of the journal in memory. Consumers that keep up read them without reading the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from ingestd.api.events import Record
from ingestd.api.journal import size_of_all

__all__ = ["READ_BYTES", "Tail", "count_to_read"]

READ_BYTES = 2 << 20
"""Approximate size of one read of a journal. A consumer holds it in memory twice, and callers choose its content."""

_BYTES = 8 << 20  # as `size_of` counts
_FIRST = 2  # records of the first read; a record has at most four megabytes


def count_to_read(records: int, size: int) -> int:
    """How many records to read next, after some of a known size. Assumes that later records have the same size."""
    return max(1, (READ_BYTES - size) * records // max(size, 1)) if records else _FIRST


class _Stretch:
    """Records of one commit, from the position `first` on. `size`: their total as `size_of_all` counts it."""

    __slots__ = ("_numbered", "first", "records", "size")

    def __init__(self, first: int, records: Sequence[Record], size: int) -> None:
        self.first, self.records, self.size = first, records, size
        self._numbered = False

    def numbered(self) -> Sequence[Record]:
        """The records with their positions. The first reader causes them to be made, and all readers share them."""
        if not self._numbered:
            self._numbered = True
            self.records = [
                Record(record.type, record.at, record.body, position)
                for position, record in enumerate(self.records, self.first)
            ]
        return self.records


class Tail:
    """The newest durable records, without a gap."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque()
        self._next = 1
        """The position after the last record."""
        self._bytes = 0

    def add(self, records: Sequence[Record], last: int, size: int) -> None:
        """Add records that are now durable. `last` is the position of the last one, `size` their total size."""
        first = last - len(records) + 1
        if first != self._next:
            self.forget()
        self._stretches.append(_Stretch(first, records, size))
        self._next = last + 1
        self._bytes += size
        while self._bytes > _BYTES:
            self._bytes -= self._stretches.popleft().size

    def forget(self, up_to: int | None = None) -> None:
        """Drop the records up to a position, or all, because the file no longer has them in this form."""
        while self._stretches and (up_to is None or self._stretches[0].first <= up_to):
            stretch = self._stretches.popleft()
            self._bytes -= stretch.size
            if up_to is not None and up_to < stretch.first + len(stretch.records) - 1:
                left = stretch.records[up_to + 1 - stretch.first :]
                self._stretches.appendleft(_Stretch(up_to + 1, left, size_of_all(left)))
                self._bytes += self._stretches[0].size

    def read(self, after: int, limit: int) -> list[Record] | None:
        """The next records after a position. None if they must be read from the file."""
        if not self._stretches or not self._stretches[0].first <= after + 1 < self._next:
            return None
        behind = 0
        for stretch in reversed(self._stretches):  # most readers are near the end
            behind += 1
            if stretch.first <= after + 1:
                break
        found: list[Record] = []
        for stretch in islice(self._stretches, len(self._stretches) - behind, None):
            skipped = max(0, after + 1 - stretch.first)
            found += stretch.numbered()[skipped : skipped + limit - len(found)]
            if len(found) >= limit:
                break
        return found
