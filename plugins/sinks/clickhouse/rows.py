"""Rows for records, as lines of JSONEachRow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import format_time

from .table import Layout

__all__ = ["Row", "make_rows"]

_SLICE = 1 << 20  # bytes of records after which other tasks get a turn


_NOTHING = msgspec.Raw(b"")


class Row(NamedTuple):
    number: int
    """The index of the record in its batch."""
    id: str
    line: bytes


async def make_rows(batch: Sequence[Record], layout: Layout) -> tuple[list[Row], dict[int, str]]:
    """The rows, and the reason for each record that cannot have a row, by its index."""
    rows: list[Row] = []
    refused: dict[int, str] = {}
    size = 0
    buffer = bytearray()  # for one row after the other, because a new buffer would have to grow for each
    for index, record in enumerate(batch):
        size += len(record.body)
        if size > _SLICE:
            size = 0
            await asyncio.sleep(0)
        try:
            rows.append(_row(index, record, layout, buffer))
        except RecursionError:
            refused[index] = "is nested too deeply"
        except (msgspec.MsgspecError, UnicodeError) as error:
            refused[index] = f"cannot be read: {error}"
    return rows, refused


class _Fields(msgspec.Struct, rename="camel", gc=False):
    """The members of a record that have a separate column."""

    id: str
    tenant: str | None = None
    key: str | None = None
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    order_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """The time of the order of a derived record, which has no `timestamp`."""
    anonymous_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    data: msgspec.Raw = _NOTHING
    context: msgspec.Raw = _NOTHING
    mark: msgspec.Raw = msgspec.field(name="import", default=_NOTHING)
    decided_at: msgspec.Raw = _NOTHING
    """Only imported records have a mark, and only derived ones this. To look for them here is faster than
    `Record.received_at` for each record."""


class _Columns(msgspec.Struct, omit_defaults=True, gc=False):
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


_decode = msgspec.json.Decoder(_Fields).decode
_encode_into = msgspec.json.Encoder().encode_into


def _row(index: int, record: Record, layout: Layout, buffer: bytearray) -> Row:
    try:
        fields = _decode(record.body)
    except msgspec.ValidationError:
        fields = _what_fits(msgspec.json.decode(record.body, type=dict[str, msgspec.Raw]))
    timestamp = fields.timestamp or fields.order_at
    is_plain = fields.mark is _NOTHING and fields.decided_at is _NOTHING
    columns = _Columns(
        fields.id,
        record.type,
        format_time(record.at if is_plain else record.received_at()),
        record.position,
        record.body.decode(),
        fields.tenant,
        fields.key,
        timestamp if timestamp is not None and timestamp.year in layout.years else None,
        fields.anonymous_id,
        fields.user_id,
        fields.session_id,
        _json(fields.data, "data", layout),
        _json(fields.context, "context", layout),
    )
    _encode_into(columns, buffer)
    return Row(index, fields.id, bytes(buffer))


def _json(value: msgspec.Raw, column: str, layout: Layout) -> msgspec.Raw | str | None:
    raw = bytes(value)
    if column in layout.objects:
        return value if raw[:1] == b"{" else None  # other values are only in `record`
    return None if raw in {b"", b"null"} else raw.decode()


def _what_fits(members: dict[str, msgspec.Raw]) -> _Fields:
    """The members that fit into their columns. Plugins may store other values, which are only in `record` then."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(_Fields):
        raw = members.get(field.encode_name)
        if raw is None:
            continue
        try:
            values[field.name] = raw if field.type is msgspec.Raw else msgspec.json.decode(raw, type=field.type)
        except msgspec.ValidationError:
            if field.name == "id":
                raise
    if "id" not in values:
        raise msgspec.ValidationError("Object missing required field `id`")
    return _Fields(**values)
