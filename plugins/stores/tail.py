"""The end of the journal in memory: consumers that keep up are given its records without reading the file."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.events import Record
from ingestd.journal import size_of

__all__ = ["READ_BYTES", "Tail"]

READ_BYTES = 8 << 20
"""What one read of a journal gives, about: a consumer has it in memory twice, and callers choose what is in it."""

_BYTES = 8 << 20  # as `size_of` counts


class Tail:
    """The newest durable records, without a gap between them."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._first = 1
        self._bytes = 0

    def add(self, records: Sequence[Record], last: int) -> None:
        """Take records that have become durable; `last` is the position of the last of them."""
        first = last - len(records) + 1
        if self._first + len(self._records) != first:
            self.forget()
            self._first = first
        for position, (type_, at, body, _) in enumerate(records, first):
            self._records[position] = Record(type_, at, body, position)
        self._bytes += sum(map(size_of, records))
        while self._bytes > _BYTES:
            self._drop()

    def forget(self, up_to: int | None = None) -> None:
        """Drop the records up to a position, or all: they are no longer so in the file."""
        while self._records and (up_to is None or self._first <= up_to):
            self._drop()

    def read(self, after: int, limit: int) -> list[Record] | None:
        """The next records behind a position; None if what is there has to be looked up in the file."""
        if after + 1 not in self._records:
            return None
        last = self._first + len(self._records) - 1
        return [self._records[position] for position in range(after + 1, min(after + limit, last) + 1)]

    def _drop(self) -> None:
        self._bytes -= size_of(self._records.pop(self._first))
        self._first += 1
