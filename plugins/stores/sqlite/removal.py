"""Removal of private data from the file: bodies of records, and old content of the write-ahead log and of free space.

The connections overwrite deleted data (`secure_delete`). Two kinds of copies remain. The write-ahead log keeps content
until it is overwritten, which can take long on a quiet day. And a page that is split keeps copies of the rows that left
it, in its free space. A small file is written anew for that reason.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from ingestd.api.events import Record

from ..cache import Entries
from .connections import SqliteConnections

__all__ = ["Cleaner", "Replacement", "make_replacement", "replace_bodies"]

_MANY = 128  # rows of one statement
_MOST_REWRITTEN = 32 << 20  # bytes, which take some tenths of a second, in which no event is stored


class Replacement(NamedTuple):
    """A new body for the record at a position, if its present body has this digest."""

    position: int
    digest: bytes
    body: bytes


def make_replacement(record: Record, body: bytes) -> Replacement:
    return Replacement(record.position, _digest(record.body), body)


def replace_bodies(connection: sqlite3.Connection, replacements: Sequence[Replacement]) -> int:
    """Returns how many records were found and replaced."""
    count = 0
    for start in range(0, len(replacements), _MANY):
        some = replacements[start : start + _MANY]
        present = _read_bodies(connection, [position for position, *_ in some])
        values: list[Any] = []
        for position, digest, body in some:
            if position in present and _digest(present[position]) == digest:
                values += (position, body)
                count += 1
        if values:
            connection.execute(
                "UPDATE journal SET body = new.column2"  # noqa: S608 - only marks
                f" FROM (VALUES {', '.join(['(?, ?)'] * (len(values) // 2))}) AS new"
                " WHERE journal.position = new.column1",
                values,
            )
    return count


def _read_bodies(connection: sqlite3.Connection, positions: Sequence[int]) -> dict[int, bytes]:
    """Returns one row, for the reason given in `batch`."""
    marks = ", ".join("?" * len(positions))
    heads, bodies = connection.execute(
        "SELECT json_group_array(json_array(position, length(CAST(body AS BLOB)))),"  # noqa: S608 - only marks
        " CAST(group_concat(CAST(body AS TEXT), '') AS BLOB)"
        f" FROM (SELECT position, body FROM journal WHERE position IN ({marks}) ORDER BY position)",
        positions,
    ).fetchone()
    found = {}
    start = 0
    for position, length in json.loads(heads):
        found[position] = bodies[start : start + length]
        start += length
    return found


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


class Cleaner:
    """Empties the write-ahead log into the database, some seconds after a removal."""

    def __init__(self, connections: SqliteConnections, entries: Entries) -> None:
        self.due = False
        self._blanked = False
        self._connections = connections
        self._entries = entries

    def records_blanked(self) -> None:
        """A person was forgotten, and the file is to be written anew, if it is small."""
        self.due = self._blanked = True

    async def step(self) -> None:
        if self._blanked:
            self._blanked = False
            await self._connections.change(_rewrite)
        if not self.due and not self._entries.deleted:
            return
        self.due = self._entries.deleted = False
        try:
            emptied = await self._connections.change(_empty_log)
        except BaseException:
            self.due = True
            raise
        self.due = self.due or not emptied


def _rewrite(connection: sqlite3.Connection) -> None:
    (pages,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    if pages * size <= _MOST_REWRITTEN:
        connection.execute("VACUUM")


def _empty_log(connection: sqlite3.Connection) -> bool:
    """Returns whether the log is empty. A reader may prevent that, and commits must not wait for the reader."""
    (patience,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}")
    return not busy
