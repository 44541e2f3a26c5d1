"""A transaction on its way into a commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence, Set

from ingestd.api.events import Record
from ingestd.api.journal import Cursor

from ..entry import Entry, Row

__all__ = ["Pending"]


class Pending:
    """A transaction that waits for its commit, or is part of the commit in progress.

    `entries`: all entries that it has seen, repetitions possible. `rows`: the rows of its changed entries.
    `first`: runs in the commit before anything is written.
    `also`: runs in the commit after all writes, with the position of this transaction.
    `settled`: called with this object on the event loop, once the transaction is durable or has its `error`.
    `cleared`: keys of deleted rows that the TTL log names.
    `position` and `size` (of all its records): known once it has been written.
    """

    __slots__ = (
        "also", "cleared", "cursor", "entries", "error", "first", "position", "records", "rows", "settled", "size",
    )  # fmt: skip

    def __init__(
        self,
        entries: Sequence[Entry],
        settled: Callable[[Pending], None],
        records: Sequence[Record] = (),
        cursor: Cursor | None = None,
        also: Callable[[sqlite3.Connection, int], object] | None = None,
        *,
        first: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        self.entries = entries
        self.settled = settled
        self.records = records
        self.cursor = cursor
        self.also = also
        self.first = first
        self.error: Exception | None = None
        self.position = 0
        self.size = 0
        self.rows: list[Row] = []
        self.cleared: Set[str] = frozenset()
