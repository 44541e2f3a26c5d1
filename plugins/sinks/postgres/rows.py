"""Rows for records, in the binary format of COPY and without U+0000."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.support.json_text import decode_json

from .table import COLUMNS

__all__ = ["Row", "make_rows"]

_SLICE = 1 << 20  # bytes of records after which other tasks get a turn

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


async def make_rows(batch: Sequence[Record]) -> tuple[dict[int, Row], dict[int, str]]:
    """The row of each record by its index, and the reason for each record that cannot have a row."""
    rows: dict[int, Row] = {}
    refused: dict[int, str] = {}
    size = 0
    for index, record in enumerate(batch):
        size += len(record.body)
        if size > _SLICE:
            size = 0
            await asyncio.sleep(0)
        try:
            rows[index] = _row(record)
        except RecursionError:
            refused[index] = "is nested too deeply"
        except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
            refused[index] = f"cannot be read: {error}"
    return rows, refused


class _Fields(msgspec.Struct, rename="camel"):
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


_fields = msgspec.json.Decoder(_Fields)


def _row(record: Record) -> Row:
    body = _without_null(record.body)
    try:
        fields = _fields.decode(body)
    except msgspec.ValidationError:
        fields = _what_fits(decode_json(body))
    timestamp = fields.timestamp or fields.order_at
    values = (
        _ROW,
        _text(fields.id),
        _text(record.type.replace("\0", "\ufffd")),
        _text(fields.tenant),
        _text(fields.key),
        _number((record.received_at() - _EPOCH_MS) * 1000),
        _NULL if timestamp is None else _number((timestamp - _EPOCH) // _MICROSECOND),
        _text(fields.anonymous_id),
        _text(fields.user_id),
        _text(fields.session_id),
        _number(record.position),
        (len(body) + len(_JSONB)).to_bytes(4),
        _JSONB,
    )
    return Row(fields.id, b"".join(values), body)


def _without_null(body: bytes) -> bytes:
    if b"\\u0000" not in body:
        return body
    # Between escaped backslashes, each remaining backslash escapes the text after it.
    return b"\\\\".join([part.replace(b"\\u0000", b"\\ufffd") for part in body.split(b"\\\\")])


def _what_fits(value: Any) -> _Fields:
    """The members that fit into their columns. Plugins may store other values, which stay in `record` only."""
    for field in msgspec.structs.fields(_Fields) if isinstance(value, dict) else ():
        if field.name != "id" and field.encode_name in value:
            try:
                msgspec.convert(value[field.encode_name], field.type)
            except msgspec.ValidationError:
                del value[field.encode_name]
    return msgspec.convert(value, _Fields)


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    data = text.encode()
    return len(data).to_bytes(4) + data


def _number(number: int) -> bytes:
    """A bigint. COPY sends a time in the same format."""
    return b"\0\0\0\x08" + number.to_bytes(8, signed=True)
