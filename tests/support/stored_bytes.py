"""The bytes that a daemon's SQLite file has for records and for state."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ingestd.api.events import Record

__all__ = ["all_processed", "read_records", "stored_bytes"]

_NUMBER = 8
_COLUMNS = {
    "journal": (["type", "body"], 2),
    "state": (["key", "value", "fields"], 1),
    "member": (["key", "key", "member"], 3),  # its key is in an index, too
    "field": (["key", "name", "value"], 1),
    "renewal": (["entries"], 1),
}
"""The columns of each table that have text, and how many numbers its rows have."""


def stored_bytes(file: Path) -> int:
    """The bytes of all records and all state, also while a daemon has the file. What is expired counts, too."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        return sum(_bytes(database, table, *columns) for table, columns in _COLUMNS.items())


def _bytes(database: sqlite3.Connection, table: str, texts: list[str], numbers: int) -> int:
    lengths = " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for name in texts)
    query = f"SELECT coalesce(sum({lengths} + {numbers * _NUMBER}), 0) FROM {table}"
    (size,) = database.execute(query).fetchone()
    assert isinstance(size, int)
    return size


def read_records(file: Path) -> list[Record]:
    """The records of the journal, also while a daemon has the file."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT type, at, body, position FROM journal ORDER BY position")
        return [Record(*row) for row in rows]


def all_processed(file: Path) -> bool:
    """Whether each consumer has processed each record of the journal."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        (is_so,) = database.execute(
            "SELECT (SELECT coalesce(max(position), 0) FROM journal) <= (SELECT min(position) FROM cursors)"
        ).fetchone()
        return bool(is_so)
