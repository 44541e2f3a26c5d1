"""The buffer of a parquet sink: tables that wait, and compressed files in memory, one for each type and date."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingestd.api.events import Record

from ..columns import Columns
from .rows import SCHEMA, make_table

__all__ = ["FileBuffer", "PartitionFile", "partition_of"]

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
