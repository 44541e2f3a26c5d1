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
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table.locations import load_location_provider

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

__all__ = ["ROW_GROUP", "read_rows", "row_groups", "write_file"]

ROW_GROUP = 16 << 20
"""Bytes of rows that a reader decides about together, by the bounds of their columns."""
_READ = 1_000
"""Rows that are read at once."""


def row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in parts for one row group each."""
    count = max(1, len(rows) * ROW_GROUP // max(1, rows.nbytes))
    for first in range(0, len(rows), count):
        yield rows.slice(first, count)


def write_file(table: Table, day: int, tenant: str | None, groups: Iterable[pa.Table]) -> DataFile:
    """Write rows of a day and tenant, of which there is one at least, to a file. It is not part of the table yet."""
    model = FileFormatFactory.get(FileFormat.PARQUET)
    schema, spec, properties = table.schema(), table.spec(), table.metadata.properties
    values = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, (day, tenant), strict=True)]
    partition = PartitionKey(values, spec, schema)
    path = load_location_provider(table_location=table.location(), table_properties=properties).new_data_location(
        data_file_name=f"{uuid4()}.{model.file_extension()}", partition_key=partition
    )
    output = table.io.new_output(path)
    writer = model.create_writer(output, sanitize_column_names(schema), properties)
    with writer:
        for rows in groups:
            for batch in rows.combine_chunks().to_batches():
                whole = _to_requested_schema(
                    requested_schema=sanitize_column_names(schema),
                    file_schema=pyarrow_to_schema(rows.schema, name_mapping=schema.name_mapping),
                    batch=batch, include_field_ids=True, format_model=model,
                )  # fmt: skip
                writer.write(pa.Table.from_batches([whole]))
    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, partition=partition.partition,
        file_size_in_bytes=len(output), sort_order_id=None, spec_id=spec.spec_id, equality_ids=None, key_metadata=None,
        **writer.result().to_serialized_dict(),
    )  # fmt: skip


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
