"""A transaction on its way into a commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence, Set

import msgspec

from ingestd.api.events import Record
from ingestd.api.journal import Cursor

from ..entry import KeyState, Row

__all__ = ["Pending"]


class Pending(msgspec.Struct, eq=False):
    """A transaction that waits for its commit, or is part of the commit in progress.

    `entries`: all entries that it has seen, repetitions possible. `rows`: the rows of its changed entries.
    `first`: runs in the commit before anything is written.
    `also`: runs in the commit after all writes, with the position of this transaction.
    `settled`: called with this object on the event loop, once the transaction is durable or has its `error`.
    `cleared`: keys of deleted rows that the TTL log names.
    `position` and `size` (of all its records): known once it has been written.
    """

    entries: Sequence[KeyState]
    settled: Callable[[Pending], None]
    records: Sequence[Record] = ()
    cursor: Cursor | None = None
    also: Callable[[sqlite3.Connection, int], object] | None = None
    first: Callable[[sqlite3.Connection], object] | None = None
    error: Exception | None = None
    position: int = 0
    size: int = 0
    rows: list[Row] = []
    cleared: Set[str] = frozenset()
