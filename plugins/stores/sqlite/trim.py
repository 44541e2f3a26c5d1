"""How much the journal holds, and removing its oldest records in steps that hold no commit up."""

from __future__ import annotations

import json
import sqlite3

from ingestd.api.journal import JournalStats, RecordInfo

__all__ = ["next_bound", "read_extent", "read_outlines", "remove"]

_ROWS = 500
_BYTES = 1 << 20  # of bodies: large ones lie on pages of their own, and each is touched to free it


def read_extent(connection: sqlite3.Connection) -> JournalStats:
    """A few look-ups: commits and triggers keep the totals (migrations 0002 and 0005)."""
    last, records, held, first, oldest_at = connection.execute(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0), records, bytes,"
        " (SELECT min(position) FROM journal), (SELECT at FROM journal ORDER BY position LIMIT 1) FROM totals"
    ).fetchone()
    return JournalStats(last + 1 if first is None else first, last, records, held, oldest_at)


def read_outlines(connection: sqlite3.Connection, after: int, limit: int) -> list[RecordInfo]:
    """SQLite knows how long a body is without reading it."""
    (text,) = connection.execute(
        "SELECT json_group_array(json_array(position, at, bytes)) FROM (SELECT position, at, length(body) + 32 AS bytes"
        " FROM journal WHERE position > ? ORDER BY position LIMIT ?)",
        (after, limit),
    ).fetchone()
    return [RecordInfo(*outline) for outline in json.loads(text)]


def next_bound(connection: sqlite3.Connection, up_to: int, limit: int) -> int | None:
    """The position up to which the next step removes; None where there is nothing left to remove."""
    bound = None
    held = 0
    for outline in read_outlines(connection, 0, min(limit, _ROWS)):
        held += outline.bytes
        if outline.position > up_to or (bound is not None and held > _BYTES):
            break
        bound = outline.position
    return bound


def remove(connection: sqlite3.Connection, bound: int) -> int:
    """Remove the records up to there; returns how many. Places of consumers behind it go along."""
    count = connection.execute("DELETE FROM journal WHERE position <= ?", (bound,)).rowcount
    connection.execute("UPDATE cursors SET position = ? WHERE position < ?", (bound, bound))
    return count
