"""The columns of a record, and the table of many."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from ingestd.api.events import Record
from ingestd.support.json_text import decode_json

__all__ = ["SCHEMA", "Fields", "make_table", "read_fields", "time_of"]

_TIME = pa.timestamp("ms", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("tenant", pa.string()),
        ("key", pa.string()),
        ("timestamp", _TIME),
        ("anonymous_id", pa.string()),
        ("user_id", pa.string()),
        ("session_id", pa.string()),
        pa.field("received_at", _TIME, nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("record", pa.string(), nullable=False),
    ]
)
"""The columns of a file. `type` and `date` are in the names of its folders."""


_NO_MARK = msgspec.Raw(b"")
_PERHAPS = msgspec.Raw(b"null")


class Fields(msgspec.Struct, rename="camel", gc=False):
    """The members of a record that have a separate column, and members that tell how to find its times."""

    id: str
    tenant: str | None = None
    key: str | None = None
    timestamp: str | None = None
    anonymous_id: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    order_at: str | None = None
    """The time of the order of a derived record, which has no `timestamp`."""
    mark: msgspec.Raw = msgspec.field(name="import", default=_NO_MARK)
    decided_at: msgspec.Raw = _NO_MARK
    """Only imported records have a mark, and only derived ones this. To look for them here is faster than
    `Record.received_at` for each record."""


_decode = msgspec.json.Decoder(Fields).decode
_NAMES = {field.encode_name for field in msgspec.structs.fields(Fields) if field.type is not msgspec.Raw}


def read_fields(record: Record) -> Fields:
    """Raises `ValueError` for a body that is no JSON object with an id, in UTF-8."""
    if not record.body.isascii():
        record.body.decode()  # the members that are not decoded may be invalid
    try:
        return _decode(record.body)
    except msgspec.ValidationError:  # the record of a plugin, in which a name may have another meaning
        value = decode_json(record.body)
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise ValueError("it has no id")  # noqa: TRY004 - any other body is a wrong value
    texts = {name: each for name, each in value.items() if name in _NAMES and isinstance(each, str)}
    return msgspec.structs.replace(msgspec.convert(texts, Fields), mark=_PERHAPS)


def time_of(record: Record, fields: Fields) -> int:
    """`Record.received_at` of a record with these fields."""
    is_plain = fields.mark is _NO_MARK and fields.decided_at is _NO_MARK
    return record.at if is_plain else record.received_at()


def make_table(fields: Sequence[Fields], times: Sequence[int], records: Sequence[Record]) -> pa.Table:
    """The table of records with these fields and times of receipt, in milliseconds. All have the same length."""
    id_, tenant, key, timestamp, anonymous_id, user_id, session_id, order_at, _, _ = zip(
        *map(msgspec.structs.astuple, fields), strict=True
    )
    columns = [
        *(pa.array(column, pa.string()) for column in (id_, tenant, key)),
        _times([own or order for own, order in zip(timestamp, order_at, strict=True)]),
        *(pa.array(column, pa.string()) for column in (anonymous_id, user_id, session_id)),
        pa.array(times, pa.int64()).cast(_TIME),
        pa.array([record.position for record in records], pa.int64()),
        pa.array([record.body for record in records], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _times(texts: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string()).cast(_TIME)
    except pa.ArrowInvalid:  # a plugin's record may have any text there
        return pa.array([text if _is_time(text) else None for text in texts], pa.string()).cast(_TIME)


def _is_time(text: str | None) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(_TIME)
    except pa.ArrowInvalid:
        return False
    return True
