"""Rows for records, as lines of JSONEachRow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import format_time

from ..columns import make_rows, read_columns
from .table import Layout

__all__ = ["Row", "rows_of"]


class Row(NamedTuple):
    id: str
    line: bytes


async def rows_of(batch: Sequence[Record], layout: Layout) -> tuple[dict[int, Row], dict[int, str]]:
    """The row of each record by its index, and the reason for each record that cannot have a row."""
    buffer = bytearray()  # for one row after the other, because a new buffer would have to grow for each
    return await make_rows(batch, partial(_row, layout=layout, buffer=buffer))


class _Line(msgspec.Struct, omit_defaults=True, gc=False):
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


_encode_into = msgspec.json.Encoder().encode_into


def _row(record: Record, layout: Layout, buffer: bytearray) -> Row:
    columns = read_columns(record.body)
    time = columns.time
    line = _Line(
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
        _json(columns.data, "data", layout),
        _json(columns.context, "context", layout),
    )
    _encode_into(line, buffer)
    return Row(columns.id, bytes(buffer))


def _json(value: msgspec.Raw, column: str, layout: Layout) -> msgspec.Raw | str | None:
    raw = bytes(value)
    if column in layout.objects:
        return value if raw[:1] == b"{" else None  # other values are only in `record`
    return None if raw in {b"", b"null"} else raw.decode()
