"""A transaction, or several together, on the way into a commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence, Set

from ingestd.api.events import Record
from ingestd.api.journal import Cursor

from ..cache import Entry, Row

__all__ = ["Unit"]


class Unit:
    """One transaction of a commit.

    `entries`: all entries that it has seen, repetitions possible. `rows`: the rows of its changed entries.
    `first`: runs in the commit before anything is written.
    `also`: runs in the commit after all writes, with the position of this transaction.
    `settled`: called with the transaction on the event loop, once it is durable or has its `error`.
    `cleared`: keys of deleted rows that the TTL log names.
    `position` and `size` (of all its records): known once it has been written.

    `parts`: makes a separate transaction for each record. They replace this one if one of them cannot be stored, and
    are settled instead of it. `count`: how many records it stands for, or 1 without `parts`.
    """

    __slots__ = (
        "also",
        "cleared",
        "count",
        "cursor",
        "entries",
        "error",
        "first",
        "parts",
        "position",
        "records",
        "rows",
        "settled",
        "size",
    )

    def __init__(
        self,
        entries: Sequence[Entry],
        settled: Callable[[Unit], None],
        records: Sequence[Record] = (),
        cursor: Cursor | None = None,
        also: Callable[[sqlite3.Connection, int], object] | None = None,
        *,
        first: Callable[[sqlite3.Connection], object] | None = None,
        parts: Callable[[], Sequence[Unit]] | None = None,
    ) -> None:
        self.entries = entries
        self.settled = settled
        self.records = records
        self.cursor = cursor
        self.also = also
        self.first = first
        self.parts = parts
        self.count = 1 if parts is None else len(records)
        self.error: Exception | None = None
        self.position = 0
        self.size = 0
        self.rows: list[Row] = []
        self.cleared: Set[str] = frozenset()

    def apart(self) -> Sequence[Unit]:
        """The parts. Each row is in the first part that has seen its entry."""
        if self.parts is None:
            return [self]
        parts = self.parts()
        owners = {entry.key: part for part in reversed(parts) for entry in part.entries}
        for row in self.rows:
            owners[row[0]].rows.append(row)
        for key in self.cleared:
            owners[key].cleared |= {key}
        return parts
