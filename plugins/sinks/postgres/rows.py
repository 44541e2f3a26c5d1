"""Rows for records, in the binary format of COPY and without U+0000, and copying them into the table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

from ingestd.api.events import Record

from ..columns import parts, read_columns
from .client import atomic
from .table import COLUMNS, Table

__all__ = ["Row", "copy", "new_rows", "row_of"]

# Each row begins with the number of its values, and each value with the number of its bytes.
_ROW = len(COLUMNS).to_bytes(2)
_NULL = b"\xff\xff\xff\xff"
_JSONB = b"\1"

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_MS = 946_684_800_000
_MICROSECOND = timedelta(microseconds=1)


class Row(NamedTuple):
    id: str
    head: bytes
    """All values except the last in the order of `COLUMNS`, in COPY's format, then the length of the last."""
    body: bytes


def row_of(record: Record) -> Row:
    body = _without_null(record.body)
    columns = read_columns(body)
    time = columns.time
    values = (
        _ROW,
        _text(columns.id),
        _text(record.type.replace("\0", "\ufffd")),
        _text(columns.tenant),
        _text(columns.key),
        _number((columns.received_at(record) - _EPOCH_MS) * 1000),
        _NULL if time is None else _number((time - _EPOCH) // _MICROSECOND),
        _text(columns.anonymous_id),
        _text(columns.user_id),
        _text(columns.session_id),
        _number(record.position),
        (len(body) + len(_JSONB)).to_bytes(4),
        _JSONB,
    )
    return Row(columns.id, b"".join(values), body)


def _without_null(body: bytes) -> bytes:
    if b"\\u0000" not in body:
        return body
    # Between escaped backslashes, each remaining backslash escapes the text after it.
    return b"\\\\".join([part.replace(b"\\u0000", b"\\ufffd") for part in body.split(b"\\\\")])


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    data = text.encode()
    return len(data).to_bytes(4) + data


def _number(number: int) -> bytes:
    """A bigint. COPY sends a time in the same format."""
    return b"\0\0\0\x08" + number.to_bytes(8, signed=True)


_PORTION = 8 << 20  # bytes of one COPY: they are sent at once, which must not hold up the event loop
_BEGIN = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"


async def new_rows(connection: Any, table: Table, rows: Sequence[Row]) -> list[Row]:
    """The rows that the table does not have, each once."""
    query = f"SELECT id FROM {table.quoted} WHERE id = ANY($1)"  # noqa: S608 - the name is checked and quoted
    held = {found for (found,) in await connection.fetch(query, [row.id for row in rows])}
    new: dict[str, Row] = {}
    for row in rows:
        if row.id not in held:
            new.setdefault(row.id, row)
    return [*new.values()]


async def copy(connection: Any, table: Table, rows: Sequence[Row]) -> None:
    """Copy all rows in one transaction."""
    portions = [*parts(rows, lambda row: len(row.body), _PORTION)]
    if len(portions) == 1:  # one statement is a transaction
        await _copy_portion(connection, table, portions[0])
    elif portions:
        async with atomic(connection):
            for portion in portions:
                await _copy_portion(connection, table, portion)


async def _copy_portion(connection: Any, table: Table, rows: Sequence[Row]) -> None:
    # In one piece, because asyncpg does not notice a lost connection while it waits to send another row.
    pieces = chain.from_iterable((row.head, row.body) for row in rows)
    data = memoryview(b"".join([_BEGIN, *pieces, _END]))
    await connection.copy_to_table(
        table.name, schema_name=table.schema, columns=[*COLUMNS], source=data, format="binary"
    )
