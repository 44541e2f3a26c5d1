"""The size of the file, and ends for entries that earlier versions stored without one."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from ingestd.api.store import StoreSize

__all__ = ["find_endless", "read_size", "set_ends"]


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
