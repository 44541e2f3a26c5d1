"""The sizes of file and journal, removal of the journal's oldest records, and ends for entries without one."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ingestd.api.journal import JournalStats, RecordInfo
from ingestd.api.store import StoreSize

__all__ = ["find_endless", "next_bound", "read_extent", "read_outlines", "read_size", "remove", "set_ends"]


def read_size(connection: sqlite3.Connection, path: Path) -> StoreSize:
    """A few look-ups: SQLite counts the pages, and triggers keep the total of the fields (migration 0008)."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (fields,) = connection.execute("SELECT fields FROM totals").fetchone()
    disk = os.statvfs(path)
    return StoreSize((pages - free) * size, fields, disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def find_endless(connection: sqlite3.Connection, kind: str, after: str, limit: int) -> tuple[str | None, Sequence[str]]:
    """The last key of the next rows of a kind (None after the last row), and the keys that have no end."""
    count, last, found = connection.execute(
        "SELECT count(*), max(key), json_group_array(key) FILTER (WHERE expires IS NULL) FROM"
        " (SELECT key, expires FROM state WHERE key > ? AND key < ? ORDER BY key LIMIT ?)",
        (after, f"{kind};", limit),  # ";" is the character after ":"
    ).fetchone()
    return (last if count == limit else None), json.loads(found)


def set_ends(ends: Sequence[tuple[str, int]], connection: sqlite3.Connection, _: int) -> None:
    # One statement: see `batch`. An entry may have got an end meanwhile.
    connection.execute(
        "UPDATE state SET expires = json_extract(new.value, '$[1]') FROM json_each(?) AS new"
        " WHERE state.key = json_extract(new.value, '$[0]') AND state.expires IS NULL",
        (json.dumps(ends),),
    )


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
