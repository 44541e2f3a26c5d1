"""A unit of work, or several that go together, on its way into a commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence, Set

from ingestd.api.events import Record
from ingestd.api.journal import Cursor

from ..cache import Entry, Row

__all__ = ["Unit"]


class Unit:
    """What one commit is asked to write. `entries` are all it has seen, some maybe twice; `rows` are of the dirty ones.

    `also` is run in the same transaction and gets the position of the unit; `first` is run in it before anything is
    written. `settled` is called with the unit on the event loop, when it is durable or has its `error`. `cleared` are
    the keys of rows that are to go, of which something is in the log of renewals. `position` and `size`, that of its
    records together, are known when it has been written.

    `parts`, if there are any, makes the units of one record each that this one stands for, as long as nothing keeps
    one of them from being stored: then they are written, and told, in its place. `count` says how many they are.
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
        """Its parts; each row is with the first of them that has seen the entry."""
        if self.parts is None:
            return [self]
        parts = self.parts()
        owners = {entry.key: part for part in reversed(parts) for entry in part.entries}
        for row in self.rows:
            owners[row[0]].rows.append(row)
        for key in self.cleared:
            owners[key].cleared |= {key}
        return parts
