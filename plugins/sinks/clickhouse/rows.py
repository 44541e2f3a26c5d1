"""Rows for records, as lines of JSONEachRow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import format_time
from ingestd.support.pace import Pace

from ..columns import Columns, read_columns
from .table import Layout

__all__ = ["Row", "lines_of", "row_of"]

_AT_ONCE = 64  # rows of which the lines are made at once
_SLICE = 0.002  # seconds of work after which other tasks get a turn


class Row(msgspec.Struct, omit_defaults=True, gc=False):
    """A row. Members without a value are left out, so their columns get their defaults."""

    id: str
    type: str
    received_at: str
    position: int
    record: str
    tenant: str | None = None
    key: str | None = None
    timestamp: datetime | None = None
    anonymous_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    data: msgspec.Raw | str | None = None
    context: msgspec.Raw | str | None = None


_WITH_COLUMN = {"type", *(each.encode_name for each in msgspec.structs.fields(Columns))}
_encode_lines = msgspec.json.Encoder().encode_lines


def row_of(record: Record, layout: Layout) -> Row:
    """Raises what `make_rows` takes for the fault of a record."""
    columns = read_columns(record.body)
    time = columns.time
    return Row(
        columns.id,
        record.type,
        format_time(columns.received_at(record)),
        record.position,
        record.body.decode(),
        columns.tenant,
        columns.key,
        time if time is not None and time.year in layout.years else None,
        columns.anonymous_id,
        columns.user_id,
        columns.session_id,
        _json(_data(columns, record), "data", layout),
        _json(columns.context, "context", layout),
    )


async def lines_of(rows: Sequence[Row]) -> AsyncIterator[bytes]:
    """The lines of the rows, some at a time: the server takes some in while others are made."""
    pace = Pace(_SLICE)
    for start in range(0, len(rows), _AT_ONCE):
        yield _encode_lines(rows[start : start + _AT_ONCE])
        await pace.give_way()


def _data(columns: Columns, record: Record) -> msgspec.Raw:
    """The data of an event. A derived record has none, so here are its members without a column."""
    if columns.data or not columns.decided_at:
        return columns.data
    members = msgspec.json.decode(record.body, type=dict[str, msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode({name: raw for name, raw in members.items() if name not in _WITH_COLUMN}))


def _json(value: msgspec.Raw, column: str, layout: Layout) -> msgspec.Raw | str | None:
    raw = bytes(value)
    if column in layout.objects:
        return value if raw[:1] == b"{" else None  # other values are only in `record`
    return None if raw in {b"", b"null"} else raw.decode()
