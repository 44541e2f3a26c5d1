"""The size of the journal, and removal of its oldest records in steps that do not delay commits."""

from __future__ import annotations

import json
import sqlite3

from ingestd.api.journal import JournalStats, RecordInfo

__all__ = ["next_bound", "read_extent", "read_outlines", "remove"]

_ROWS = 500
_BYTES = 1 << 20  # of bodies: large bodies have separate pages, and freeing a page touches it


def read_extent(connection: sqlite3.Connection) -> JournalStats:
    """A few look-ups: commits and triggers keep the totals (migrations 0002 and 0005)."""
    last, records, held, first, oldest_at = connection.execute(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0), records, bytes,"
        " (SELECT min(position) FROM journal), (SELECT at FROM journal ORDER BY position LIMIT 1) FROM totals"
    ).fetchone()
    return JournalStats(last + 1 if first is None else first, last, records, held, oldest_at)


def read_outlines(connection: sqlite3.Connection, after: int, limit: int) -> list[RecordInfo]:
    """Positions, times and sizes of the next records. SQLite knows the length of a body without reading it."""
    (text,) = connection.execute(
        "SELECT json_group_array(json_array(position, at, bytes)) FROM (SELECT position, at, length(body) + 32 AS bytes"
        " FROM journal WHERE position > ? ORDER BY position LIMIT ?)",
        (after, limit),
    ).fetchone()
    return [RecordInfo(*outline) for outline in json.loads(text)]


def next_bound(connection: sqlite3.Connection, up_to: int, limit: int) -> int | None:
    """The last position that the next step removes; None if nothing is left to remove."""
    bound = None
    held = 0
    for outline in read_outlines(connection, 0, min(limit, _ROWS)):
        held += outline.bytes
        if outline.position > up_to or (bound is not None and held > _BYTES):
            break
        bound = outline.position
    return bound


def remove(connection: sqlite3.Connection, bound: int) -> int:
    """Remove the records up to a position and return their number. Cursors before it move to it."""
    count = connection.execute("DELETE FROM journal WHERE position <= ?", (bound,)).rowcount
    connection.execute("UPDATE cursors SET position = ? WHERE position < ?", (bound, bound))
    return count
