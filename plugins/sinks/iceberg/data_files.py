"""The files of a table, read and written in parts: the memory for a file does not depend on its size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import ArrowScan, _to_requested_schema, pyarrow_to_schema
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.locations import load_location_provider

from .changes import FolderKey

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

__all__ = ["ROW_GROUP", "FileWriter", "read_rows", "row_groups"]

ROW_GROUP = 16 << 20
"""Bytes of rows that a reader decides about together, by the bounds of their columns."""
_READ = 1_000
"""Rows that are read at once."""


def row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in parts for one row group each."""
    count = max(1, len(rows) * ROW_GROUP // max(1, rows.nbytes))
    for first in range(0, len(rows), count):
        yield rows.slice(first, count)


class FileWriter:
    """Writes files of a table that are not part of it yet."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._model = FileFormatFactory.get(FileFormat.PARQUET)
        self._places = load_location_provider(table.location(), table.metadata.properties)
        self._schema = sanitize_column_names(table.schema())
        self._given: tuple[pa.Schema, Schema] | None = None
        """The last schema of rows, and what it is for the table: that takes as long as to write a small file."""

    def write(self, day: int, tenant: str | None, groups: Iterable[pa.Table]) -> DataFile:
        """Write rows of a day and tenant, of which there is one at least."""
        table, spec = self._table, self._table.spec()
        values = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, (day, tenant), strict=True)]
        partition = FolderKey(values, spec, table.schema())
        path = self._places.new_data_location(f"{uuid4()}.{self._model.file_extension()}", partition)
        output = table.io.new_output(path)
        writer = self._model.create_writer(output, self._schema, table.metadata.properties)
        with writer:
            for rows in groups:
                for batch in rows.combine_chunks().to_batches():
                    whole = _to_requested_schema(
                        self._schema, self._of(rows.schema), batch, include_field_ids=True, format_model=self._model
                    )
                    writer.write(pa.Table.from_batches([whole]))
        return DataFile.from_args(
            content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, partition=partition.partition,
            file_size_in_bytes=len(output), sort_order_id=None, spec_id=spec.spec_id, equality_ids=None,
            key_metadata=None, **writer.result().to_serialized_dict(),
        )  # fmt: skip

    def _of(self, given: pa.Schema) -> Schema:
        if self._given is None or not self._given[0].equals(given):
            self._given = given, pyarrow_to_schema(given, name_mapping=self._table.schema().name_mapping)
        return self._given[1]


def read_rows(table: Table, task: FileScanTask) -> Iterator[pa.Table]:
    """The rows of a file that nobody has deleted, in parts, with the present columns of the table."""
    for batch in _deleted_from(table, task) if task.delete_files else _whole(table, task):
        rows = pa.Table.from_batches([batch])
        yield rows.cast(pa.schema([(field.name, _small(field.type)) for field in rows.schema]))


def _whole(table: Table, task: FileScanTask) -> Iterator[pa.RecordBatch]:
    with table.io.new_input(task.file.file_path).open() as source:
        file = pq.ParquetFile(source)
        schema = pyarrow_to_schema(file.schema_arrow, name_mapping=table.schema().name_mapping)
        for batch in file.iter_batches(_READ):
            yield _to_requested_schema(table.schema(), schema, batch, allow_timestamp_tz_mismatch=True)


def _deleted_from(table: Table, task: FileScanTask) -> Iterator[pa.RecordBatch]:
    """The same of a file with rows that others have deleted. The whole file is in memory."""
    yield from ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_record_batches([task])


def _small(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_large_string(type_) else type_
