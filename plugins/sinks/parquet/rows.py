"""The columns of a record, tables of many, and the records that wait for their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingestd.api.events import Record

from ..columns import Columns, read_columns

__all__ = ["SCHEMA", "FileBuffer", "PartitionFile", "make_table", "partition_of", "read"]

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


_ROW_GROUPS_SIZE = 16 << 20
"""Bytes of JSON that wait before they are compressed, as one row group for each folder."""
_DAY = 86_400_000  # milliseconds


class PartitionFile:
    """A Parquet file in memory, with the records of one type and date."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, SCHEMA, compression="zstd")
        self._content: pa.Buffer | None = None
        self.first = self.last = 0
        """The lowest and the highest position of its records."""
        self.is_stored = False

    def add(self, table: pa.Table) -> None:
        bounds = pc.min_max(table["position"]).as_py()
        self.first = min(self.first or bounds["min"], bounds["min"])
        self.last = max(self.last, bounds["max"])
        self._writer.write_table(table)

    def content(self) -> pa.Buffer:
        """The whole file. No records can be added afterwards."""
        if self._content is None:
            self._writer.close()
            self._content = self._sink.getvalue()
        return self._content

    def without(self, ids: Collection[str]) -> PartitionFile | None:
        """A file without the records with these ids, or None if there are no others."""
        table = pq.read_table(pa.BufferReader(self.content()))
        chosen = [each not in ids for each in table["id"].to_pylist()]
        if all(chosen):
            return self
        if not any(chosen):
            return None
        other = PartitionFile()
        other.add(table.filter(pa.array(chosen)))
        return other


class FileBuffer:
    """Records for the next files. Only one method runs at a time, also if they run on different threads."""

    def __init__(self) -> None:
        self.size = 0
        """The bytes of JSON of all records."""
        self.files: dict[str, PartitionFile] = {}
        """The file of each folder."""
        self._tables: dict[str, list[pa.Table]] = {}
        """Records that wait to be compressed, by folder."""
        self._tables_size = 0
        self._positions: set[int] = set()

    def add(self, rows: Sequence[Columns], records: Sequence[Record]) -> None:
        """Add records that are not there yet. Those of a cancelled write may be."""
        positions = [record.position for record in records]
        if not self._positions.isdisjoint(positions):
            new = [index for index, position in enumerate(positions) if position not in self._positions]
            rows, records = [rows[index] for index in new], [records[index] for index in new]
        times = [row.received_at(record) for row, record in zip(rows, records, strict=True)]
        for folder, indexes in _by_folder(records, times).items():
            some = [rows[index] for index in indexes], [times[index] for index in indexes]
            self._tables.setdefault(folder, []).append(make_table(*some, [records[index] for index in indexes]))
        self._positions.update(positions)
        size = sum([len(record.body) for record in records])
        self.size += size
        self._tables_size += size

    @property
    def needs_compressing(self) -> bool:
        return self._tables_size >= _ROW_GROUPS_SIZE

    def compress(self) -> None:
        for folder, tables in [*self._tables.items()]:
            file = self.files.get(folder) or PartitionFile()
            file.add(pa.concat_tables(tables))  # of many chunks, because copying them takes longer than compressing
            self.files[folder] = file
            del self._tables[folder]
        self._tables_size = 0

    def finish(self) -> Mapping[str, PartitionFile]:
        """The files of all records."""
        self.compress()
        return self.files


def _by_folder(records: Sequence[Record], times: Sequence[int]) -> dict[str, list[int]]:
    """The indexes of the records of each folder."""
    found: dict[str, list[int]] = {}
    for index, (record, at) in enumerate(zip(records, times, strict=True)):
        found.setdefault(partition_of(record.type, at), []).append(index)
    return found


def partition_of(type_: str, at: int) -> str:
    """The folder of a record, such as `type=event/date=2026-11-21`. The date is that of the receipt, in UTC."""
    return _folder(type_, at // _DAY)


@lru_cache(1000)
def _folder(type_: str, day: int) -> str:
    return f"type={quote(type_, safe='')}/date={datetime.fromtimestamp(day * _DAY / 1000, UTC):%Y-%m-%d}"
