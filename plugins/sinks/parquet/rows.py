"""The columns of a record, and the table of many."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ingestd.api.events import Record

from ..columns import Columns, read_columns

__all__ = ["SCHEMA", "make_table", "read"]

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


def read(record: Record) -> Columns:
    """Raises `ValueError` for a body that is no JSON object with an id, in UTF-8."""
    if not record.body.isascii():
        record.body.decode()  # the members that are not decoded may be invalid
    return read_columns(record.body)


def make_table(rows: Sequence[Columns], times: Sequence[int], records: Sequence[Record]) -> pa.Table:
    """The table of records with these columns and times of receipt, in milliseconds. All have the same length."""
    columns = [
        pa.array([row.id for row in rows], pa.string()),
        pa.array([row.tenant for row in rows], pa.string()),
        pa.array([row.key for row in rows], pa.string()),
        pa.array([row.time for row in rows], _TIME),
        pa.array([row.anonymous_id for row in rows], pa.string()),
        pa.array([row.user_id for row in rows], pa.string()),
        pa.array([row.session_id for row in rows], pa.string()),
        pa.array(times, pa.int64()).cast(_TIME),
        pa.array([record.position for record in records], pa.int64()),
        pa.array([record.body for record in records], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
