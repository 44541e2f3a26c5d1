"""Reads and writes on the connection's thread: a batch of transactions in one commit.

Python releases its global lock whenever SQLite works: once a row in `executemany` and in a cursor's loop. A busy event
loop gives the lock back slowly, so a batch would take seconds. Therefore one statement writes many rows, and a read
returns many rows as one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from ingestd.api.errors import Unavailable
from ingestd.api.journal import size_of_all
from ingestd.api.record_batch import Records
from ingestd.api.store import Field

from ..entry import Change, Row, is_renewal, is_set, key_of, set_key
from ..fields import Fields
from ..recent_records import READ_BYTES
from .connection import is_row_fault, transaction
from .pending import Pending
from .ttl_log import LogEntry, append_log, clear_log

__all__ = [
    "DEPENDS",
    "Written",
    "last_member",
    "last_position",
    "read_records",
    "read_rows",
    "read_values",
    "write_batch",
]

DEPENDS = "What this event depends on could not be stored. Send the request again."

_MANY = 128  # rows of one statement
_STEP = 8  # statements with more rows have a multiple of it, so that few are compiled and cached

_INSERT_RECORDS = "INSERT INTO journal (position, at, type, body) VALUES "
_LARGE = 8192
"""Rows with more bytes are written one by one, because each cached statement keeps its last values in memory."""
_UPSERT_STATE = "INSERT INTO state (key, value, fields, expires) VALUES "
_UPSERT_TAIL = (
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, fields = excluded.fields, expires = excluded.expires"
)
_UPSERT_MEMBERS = "INSERT INTO member (number, key, member, at, expires) VALUES "
_MEMBERS_TAIL = " ON CONFLICT (number) DO UPDATE SET at = excluded.at, expires = excluded.expires"
_UPSERT_FIELDS = "INSERT INTO field (key, name, at, value) VALUES "
_FIELDS_TAIL = " ON CONFLICT (key, name) DO UPDATE SET at = excluded.at, value = excluded.value"
_ELSEWHERE = "{}"
"""The value of `state.fields` if the fields of the entry are in the table `field`."""
_FIELDS = "SELECT json_group_array(json_array(name, at, value)) FROM field WHERE key = ?"
_ROW = "SELECT json_array(value, fields, expires) FROM state WHERE key = ?"
_MEMBERS = (
    "SELECT json_group_array(json_array(number, member, at, expires))"
    " FROM (SELECT * FROM member WHERE key = ? ORDER BY at, member)"
)
_MOVE_CURSOR = (
    "INSERT INTO cursors (name, position) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET position = excluded.position"
)


class Written(NamedTuple):
    """The transactions of a batch, and the errors of the transactions that could not be written."""

    batch: list[Pending]
    failed: Mapping[Pending, Exception]
    log_end: int
    """The number of the last row in the TTL log."""


def write_batch(
    connection: sqlite3.Connection, batch: list[Pending], last: int | None, log_end: int, *, synced: bool = True
) -> Written:
    """Write all transactions, or all that can be written.

    Positions continue from `last`, the journal's last position. With None the file is asked. `log_end` is the highest
    number that a row of the TTL log has had. Raises `sqlite3.Error` if the file cannot be written. Then nothing of the
    batch is stored.
    """
    try:
        with transaction(connection, synced=synced):
            log_end = _write(connection, batch, last_position(connection) if last is None else last, log_end)
    except Exception as error:
        if not is_row_fault(error):
            raise
    else:
        return Written(batch, {}, log_end)
    with transaction(connection):
        return _write_one_by_one(connection, batch, last_position(connection), log_end)


def _write_one_by_one(connection: sqlite3.Connection, batch: list[Pending], last: int, log_end: int) -> Written:
    failed: dict[Pending, Exception] = {}
    lost: set[str] = set()
    for each in batch:
        if any(entry.key in lost for entry in each.entries):
            failed[each] = Unavailable(DEPENDS)
        else:
            connection.execute("SAVEPOINT one")
            try:
                log_end = _write(connection, [each], last, log_end)
                last += len(each.records)
            except Exception as error:
                if not is_row_fault(error):
                    raise
                connection.execute("ROLLBACK TO one")
                failed[each] = error
            connection.execute("RELEASE one")
        if each in failed:
            lost.update(row[0] for row in each.rows)
    return Written(batch, failed, log_end)


class _Rows:
    """The state changes of a commit, by table and kind of statement."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.large: list[Any] = []
        """Rows of `state` that are written one by one."""
        self.renewals: list[LogEntry] = []
        """Entries for the TTL log, in commit order."""
        self.gone: list[str] = []
        self.cleared: set[str] = set()
        """Deleted keys that the TTL log names."""
        self.fields: list[Any] = []
        self.large_fields: list[Any] = []
        """Rows of `field` that are written one by one."""
        self.dropped_fields: list[tuple[str, list[str]]] = []
        """Names of dropped fields, with the key of their entry."""
        self.members: list[Any] = []
        self.without: list[int] = []

    def add(self, row: Row) -> None:
        key, value, fields, expires = row
        if is_renewal(row):
            assert value is not None
            self.renewals.append((key, value, expires))
        elif is_set(key):
            self._add_changes(key_of(key), fields)
        elif fields is not None:
            self._add_fields(key, fields, expires)
        elif value is None:
            self.gone.append(key)
        else:
            (self.large if len(value) > _LARGE else self.kept).extend((key, value, None, expires))

    def _add_fields(self, key: str, changes: Any, expires: int | None) -> None:
        if changes.with_row:
            self.kept += (key, None, _ELSEWHERE, expires)
        dropped = []
        for name, field in changes.fields.items():
            if field is None:
                dropped.append(name)
            else:
                is_large = len(field.value) > _LARGE
                (self.large_fields if is_large else self.fields).extend((key, name, field.at, field.value))
        if dropped:
            self.dropped_fields.append((key, dropped))

    def _add_changes(self, key: str, changes: Any) -> None:
        for member, (number, at, expires) in changes.items():
            if at is None:
                self.without.append(number)
            else:
                self.members += (number, key, member, at, expires)


def _write(connection: sqlite3.Connection, batch: Sequence[Pending], last: int, log_end: int) -> int:
    """Returns the number of the last row in the TTL log."""
    records: list[Any] = []
    large: list[Any] = []
    cursors: dict[str, int] = {}
    rows = _Rows()
    size = count = 0
    for each in batch:
        for record in each.records:
            last += 1
            count += 1
            if len(record.body) > _LARGE:
                large += (last, record.at, record.type, record.body)
            else:
                records += (last, record.at, record.type, record.body)
        each.size = size_of_all(each.records)
        size += each.size
        each.position = each.cursor.position if each.cursor is not None and not each.records else last
        for row in each.rows:
            rows.add(row)
        rows.cleared |= each.cleared
        if each.cursor is not None:
            cursors[each.cursor.name] = each.cursor.position
    for each in batch:
        if each.first is not None:
            each.first(connection)
    if count:
        _insert(connection, _INSERT_RECORDS, records)
        _insert(connection, _INSERT_RECORDS, large, most=1)
        connection.execute("UPDATE totals SET records = records + ?, bytes = bytes + ?", (count, size))
    log_end = _write_rows(connection, rows, log_end)
    for name, position in cursors.items():
        connection.execute(_MOVE_CURSOR, (name, position))
    for each in batch:
        if each.also is not None:
            each.also(connection, each.position)
    return log_end


def _write_rows(connection: sqlite3.Connection, rows: _Rows, log_end: int) -> int:
    _insert(connection, _UPSERT_STATE, rows.kept, _UPSERT_TAIL)
    _insert(connection, _UPSERT_STATE, rows.large, _UPSERT_TAIL, most=1)
    if rows.renewals:
        log_end = append_log(connection, rows.renewals, log_end)
    if rows.cleared:
        clear_log(connection, rows.cleared)
    for start in range(0, len(rows.gone), _MANY):
        keys = rows.gone[start : start + _MANY]
        connection.execute(f"DELETE FROM state WHERE key IN ({_marks(len(keys))})", keys)  # noqa: S608 - only marks
    _insert(connection, _UPSERT_FIELDS, rows.fields, _FIELDS_TAIL)
    _insert(connection, _UPSERT_FIELDS, rows.large_fields, _FIELDS_TAIL, most=1)
    for key, names in rows.dropped_fields:  # by key: for pairs SQLite would scan the whole table
        for start in range(0, len(names), _MANY):
            some = names[start : start + _MANY]
            connection.execute(f"DELETE FROM field WHERE key = ? AND name IN ({_marks(len(some))})", [key, *some])  # noqa: S608 - only marks
    _insert(connection, _UPSERT_MEMBERS, rows.members, _MEMBERS_TAIL, columns=5)
    for start in range(0, len(rows.without), _MANY):
        numbers = rows.without[start : start + _MANY]
        connection.execute(f"DELETE FROM member WHERE number IN ({_marks(len(numbers))})", numbers)  # noqa: S608 - only marks
    return log_end


def _insert(
    connection: sqlite3.Connection, head: str, values: list[Any], tail: str = "", *, columns: int = 4, most: int = _MANY
) -> None:
    """Insert rows of `columns` values each, from one flat list, at most `most` with one statement."""
    start = 0
    while start < len(values):
        rows = min((len(values) - start) // columns, most)
        rows -= rows % _STEP if rows > _STEP else 0
        connection.execute(_statement(head, rows, tail, columns), values[start : start + columns * rows])
        start += columns * rows


@lru_cache(maxsize=128)
def _statement(head: str, rows: int, tail: str, columns: int) -> str:
    return head + ", ".join([f"({_marks(columns)})"] * rows) + tail


@lru_cache(maxsize=2 * _MANY)
def _marks(count: int) -> str:
    return ", ".join("?" * count)


_decode_row = msgspec.json.Decoder(tuple[str | None, str | None, int | None]).decode
_decode_values = msgspec.json.Decoder(list[tuple[str, str]]).decode
_decode_types = msgspec.json.Decoder(list[str]).decode
_decode_numbers = msgspec.json.Decoder(list[int]).decode
_decode_members = msgspec.json.Decoder(list[tuple[int, str, int, int | None]]).decode
_decode_field_rows = msgspec.json.Decoder(list[tuple[str, int, str]]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Field]).decode


def read_rows(connection: sqlite3.Connection, keys: Iterable[str]) -> list[Row]:
    """The rows of the keys that exist, with their fields. A set's row has its members."""
    storable = [key for key in keys if _storable(key)]
    rows: list[Row] = []
    elsewhere: dict[str, int | None] = {}
    for key, text in _look_up(connection, _ROW, [key for key in storable if not is_set(key)]):
        if text is not None:
            value, fields, expires = _decode_row(text)
            if fields == _ELSEWHERE:
                elsewhere[key] = expires
            else:
                rows.append((key, value, Fields(_decode_fields(fields)) if fields else None, expires))
    for key, text in _look_up(connection, _FIELDS, [*elsewhere]):
        by_name = {name: Field(at, value) for name, at, value in _decode_field_rows(text)}
        rows.append((key, None, Fields(by_name, durable=True), elsewhere[key]))
    for key, text in _look_up(connection, _MEMBERS, [key_of(key) for key in storable if is_set(key)]):
        if members := _decode_members(text):
            changes: dict[str, Change] = {member: (number, at, expires) for number, member, at, expires in members}
            rows.append((set_key(key), None, changes, None))
    return rows


def _look_up(connection: sqlite3.Connection, query: str, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Run the query for each key and return all results in one row. Most loads want two or three keys of one visitor.

    For `key IN (…)` SQLite makes a temporary table of the keys and one of the results. That takes longer.
    """
    for start in range(0, len(keys), _MANY):
        some = keys[start : start + _MANY]
        padding = -len(some) % _STEP if len(some) > _STEP else 0
        statement = _for_each(query, len(some) + padding)
        yield from zip(some, connection.execute(statement, [*some, *[None] * padding]).fetchone(), strict=False)


@lru_cache(maxsize=128)
def _for_each(query: str, keys: int) -> str:
    return "SELECT " + ", ".join([f"({query})"] * keys)


def read_values(connection: sqlite3.Connection, kind: str, after: str, limit: int) -> list[tuple[str, str]]:
    """The next entries of a kind that hold a value, in key order."""
    (text,) = connection.execute(
        "SELECT json_group_array(json_array(key, value)) FROM (SELECT key, value FROM state"
        " WHERE key > ? AND key < ? AND value IS NOT NULL ORDER BY key LIMIT ?)",
        (after, f"{kind};", limit),  # ";" is the character after ":"
    ).fetchone()
    return _decode_values(text)


def _storable(key: str) -> bool:
    """Whether a key is valid Unicode. Other keys were never stored, and one such key would fail a load for everyone."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_records(connection: sqlite3.Connection, after: int, limit: int) -> Records:
    """The records after a position, in order."""
    types: list[str] = []
    ats: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    lines: list[bytes] = []
    size = 0
    while len(positions) < limit and size < READ_BYTES:
        wanted = min(limit - len(positions), _MANY)
        try:
            some = _read_together(connection, after, wanted, READ_BYTES - size)
        except sqlite3.DataError:  # together they exceed SQLite's limit for one value
            some = _read_one(connection, after)
            wanted = 1
        types += some.types
        ats += some.ats
        positions += some.positions
        lengths += some.lengths
        lines.append(some.lines)
        size += len(some.lines)
        if len(some.positions) < wanted:
            break
        after = positions[-1]
    return Records(types, ats, positions, lengths, b"".join(lines))


class _Columns(NamedTuple):
    """The columns of some records, for `Records`."""

    types: Sequence[str]
    ats: Sequence[int]
    positions: Sequence[int]
    lengths: Sequence[int]
    lines: bytes


def _read_together(connection: sqlite3.Connection, after: int, limit: int, size: int) -> _Columns:
    """At most `limit` records. Stops after the record with which they reach `size` bytes."""
    types, ats, positions, lengths, lines = connection.execute(
        # All aggregates are made in one pass, so all lists have the order of the table.
        "SELECT json_group_array(type), json_group_array(at), json_group_array(position),"
        " json_group_array(length(CAST(body AS BLOB))), CAST(group_concat(CAST(body AS TEXT) || char(10), '') AS BLOB)"
        # SQLite knows the length of a body without reading it.
        " FROM journal WHERE position > ? AND position <= (SELECT max(position) FROM"
        " (SELECT position, sum(bytes) OVER (ORDER BY position) - bytes AS before FROM"
        " (SELECT position, length(body) AS bytes FROM journal WHERE position > ? ORDER BY position LIMIT ?))"
        " WHERE before < ?)",
        (after, after, limit, size),
    ).fetchone()
    return _Columns(
        _decode_types(types), _decode_numbers(ats), _decode_numbers(positions), _decode_numbers(lengths), lines or b""
    )


def _read_one(connection: sqlite3.Connection, after: int) -> _Columns:
    type_, at, position, body = connection.execute(
        "SELECT type, at, position, body FROM journal WHERE position > ? ORDER BY position LIMIT 1", (after,)
    ).fetchone()
    return _Columns([type_], [at], [position], [len(body)], body + b"\n")


def last_member(connection: sqlite3.Connection) -> int:
    """The highest number of a set's member."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM member").fetchone()[0])


def last_position(connection: sqlite3.Connection) -> int:
    """The highest position ever used. Positions are not reused."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
    return 0 if row is None else int(row[0])
