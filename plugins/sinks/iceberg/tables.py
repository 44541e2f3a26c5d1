"""The tables of a lake: their schemas, their files, and commits that have the position of the journal.

All methods may block. Every failure is a `SinkRetry`, because the records are in rows already.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from ingestd.api.errors import SinkRetry, reason_of
from ingestd.api.sink import Span
from ingestd.support.masking import mask

from .columns import ENVELOPE, TABLES, TIME, Column, arrow_type
from .data_files import FileWriter, row_groups

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["COMPLETE_TO", "Tables"]

COMPLETE_TO = "ingestd.complete-to"
"""The property of a snapshot with the position and the time up to which it has all records, by partition."""
_SPAN = "ingestd.span"
"""The beginning of properties of a table with the last span that a sink has written, by sink and partition."""
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    # Of the columns by which the rows are not sorted, no bounds: they would only make the metadata larger, and name
    # persons there.
    "write.metadata.metrics.default": "counts",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("received_at", "timestamp", "position")},
    **{f"write.metadata.metrics.column.{name}": "truncate(64)" for name in ("key", "type", "tenant", "id")},
}
_TYPES: Mapping[pa.DataType, IcebergType] = {
    pa.string(): StringType(), pa.int64(): LongType(), pa.bool_(): BooleanType(), TIME: TimestamptzType(),
    pa.date32(): DateType(), arrow_type("decimal"): DecimalType(38, 18),
}  # fmt: skip
_CONFLICTS = 60.0
"""Seconds for which a commit is made again while others commit."""
_EXPIRED = re.compile("Snapshot with snapshot id .* does not exist")
"""The error of pyiceberg if another has expired a snapshot that the commit would expire."""
_MOST_SNAPSHOTS = 400
"""pyiceberg copies all of them some ten times in each commit."""
_EPOCH = date(1970, 1, 1)

Result = TypeVar("Result")


class Tables:
    def __init__(
        self, properties: Mapping[str, str], namespace: str, sink: str, keep_snapshots: float, hidden: Collection[str]
    ) -> None:
        self._properties = {"py-io-impl": f"{__package__}.files.DurableFileIO", **properties}
        self.namespace = namespace
        self._sink = sink
        self._keep = keep_snapshots
        self._hidden = dict.fromkeys(hidden, "***")
        """Texts that no message may contain."""
        self._catalog: Catalog | None = None

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors as `SinkRetry`, without secrets."""
        try:
            yield
        except SinkRetry:
            raise
        except Exception as error:  # noqa: BLE001 - of the catalogue's client, SQLAlchemy, pyarrow, the system …
            raise SinkRetry(mask(reason_of(error), self._hidden)) from None

    def open(self) -> None:
        """Connect, create the tables that are missing, and add the columns that they lack."""
        with self.told():
            self.catalog.create_namespace_if_not_exists(self.namespace)
            for name in TABLES:
                table = self.find(name) or self._create(name)
                _check(table, name)
                self.add_columns(table, TABLES[name])

    def check(self) -> None:
        """Raise the error that writing would raise. Tables that are missing will be created."""
        with self.told():
            self.catalog.list_namespaces()
            for name in TABLES:
                if (table := self.find(name)) is not None:
                    _check(table, name)

    def close(self) -> None:
        """Close the connections to the catalogue. A later call makes new ones."""
        if self._catalog is not None:
            catalog, self._catalog = self._catalog, None
            catalog.close()

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = load_catalog(self._properties.get("name", "ingestd"), **self._properties)
        return self._catalog

    def load(self, name: str) -> Table:
        with self.told():
            return self.catalog.load_table((self.namespace, name))

    def find(self, name: str) -> Table | None:
        with self.told():
            try:
                return self.catalog.load_table((self.namespace, name))
            except NoSuchTableError:
                return None

    def _create(self, name: str) -> Table:
        fields = [*ENVELOPE, *(pa.field(each.name, arrow_type(each.kind)) for each in TABLES[name])]
        schema = Schema(
            *(
                NestedField(number, each.name, _TYPES[each.type], required=not each.nullable)
                for number, each in enumerate(fields, 1)
            )
        )
        first = "key" if name == "events" else "type"
        order = [SortField(schema.find_field(each).field_id, IdentityTransform()) for each in (first, "received_at")]
        try:
            return self.catalog.create_table(
                (self.namespace, name), schema, partition_spec=_spec_of(schema), sort_order=SortOrder(*order),
                properties={**_PROPERTIES, "ingestd.sink": self._sink},
            )  # fmt: skip
        except TableAlreadyExistsError:  # created by another daemon at this moment
            return self.load(name)

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Add the columns that the table does not have."""

        def commit() -> None:
            present = {*table.schema().column_names}
            new = {each.name: _TYPES[arrow_type(each.kind)] for each in columns if each.name not in present}
            if new:
                try:
                    with table.update_schema() as update:
                        for each, type_ in new.items():
                            update.add_column(each, type_)
                except CommitFailedException:
                    table.refresh()
                    raise

        with self.told():
            self.committed(commit)

    def write(self, table: Table, rows: pa.Table) -> Iterator[DataFile]:
        """Write rows, in the order of the table, to files of each day and tenant. They are not part of it yet."""
        whole = rows.drop_columns("date")
        with self.told():
            writer = FileWriter(table)
            for (day, tenant), first, count in _runs(rows):
                number = (date.fromisoformat(day) - _EPOCH).days
                yield writer.write(number, tenant, row_groups(whole.slice(first, count)))

    def last_span(self, table: Table, partition: str) -> Span | None:
        """The span of the newest flush of this sink and partition that the table has."""
        text = table.properties.get(self._span_key(partition))
        if text is None:
            return None
        first, last, at = map(int, text.split("-"))
        return Span(first, last, at, partition)

    def commit(self, table: Table, files: Sequence[DataFile], span: Span | None, last: Span | None) -> None:
        """Make files a part of the table, with the position of their span.

        After a conflict with another writer it is done again. If another daemon has written this span meanwhile, the
        files are left out. `last` is the span before it.
        """
        now = [table]

        def commit() -> None:
            table = now.pop() if now else self.load(name)
            with self.changes(table) as (change, properties):
                if span is not None:
                    present = self.last_span(table, span.partition)
                    if present == span:
                        return
                    if present != last:
                        raise SinkRetry(f"another daemon has written to {name}")
                    change.set_properties({self._span_key(span.partition): f"{span.first}-{span.last}-{span.at}"})
                    properties[COMPLETE_TO] = _with_span(properties.get(COMPLETE_TO, "{}"), span)
                with change.update_snapshot(snapshot_properties=properties).merge_append() as append:
                    for file in files:
                        append.append_data_file(file)
                self._expire(change, table.snapshots())

        name = table.name()[-1]
        with self.told():
            self.committed(commit)

    def committed(self, commit: Callable[[], Result]) -> Result:
        """Carry out a function that commits, again after each conflict."""
        until, pause = time.monotonic() + _CONFLICTS, 0.05
        while time.monotonic() < until:
            try:
                return commit()
            except (CommitFailedException, ValueError) as error:
                if isinstance(error, ValueError) and not _EXPIRED.match(str(error)):
                    raise
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - it only spreads the attempts
            pause = min(2 * pause, 2.0)
        return commit()

    @contextmanager
    def changes(self, table: Table) -> Iterator[tuple[Transaction, dict[str, str]]]:
        """A transaction, and the properties that its snapshot has like the one before it."""
        # A transaction that pyiceberg makes again after a conflict would not look for the span again.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with table.transaction() as change:
            yield change, _properties_of(table.current_snapshot())

    def _expire(self, change: Transaction, snapshots: Sequence[Snapshot]) -> None:
        times = sorted(each.timestamp_ms for each in snapshots)
        oldest = (time.time() - self._keep) * 1000
        if len(times) >= _MOST_SNAPSHOTS:
            oldest = max(oldest, times[-_MOST_SNAPSHOTS // 2])
        if times and times[0] < oldest:
            ExpireSnapshots(change).older_than(datetime.fromtimestamp(oldest / 1000, UTC)).commit()

    def ids(self, table: Table, begin: int, end: int) -> Iterator[tuple[str, int]]:
        """The id and the time of each record received from `begin` to before `end`, in milliseconds."""
        with self.told():
            chosen = f"received_at >= '{_iso(begin)}' and received_at < '{_iso(end)}'"
            scan = table.scan(chosen, selected_fields=("id", "received_at"))
            for batch in scan.to_arrow_batch_reader():
                times = batch["received_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
                yield from zip(batch["id"].to_pylist(), times.to_pylist(), strict=True)

    def foreign_commits(self) -> Iterator[str]:
        """For each table in which others have committed since the last commit of a sink: how often, and what."""
        for name in TABLES:
            table = self.find(name)
            snapshot = None if table is None else table.current_snapshot()
            operations: list[str] = []
            while table is not None and snapshot is not None and COMPLETE_TO not in _properties_of(snapshot):
                operations.append("unknown" if snapshot.summary is None else snapshot.summary.operation.value)
                parent = snapshot.parent_snapshot_id
                snapshot = None if parent is None else table.snapshot_by_id(parent)
            if operations and table is not None and any(key.startswith(_SPAN) for key in table.properties):
                times = "commit" if len(operations) == 1 else "commits"
                yield f"{name}: {len(operations)} {times} of another writer ({', '.join(sorted({*operations}))})"

    def _span_key(self, partition: str) -> str:
        return f"{_SPAN}.{self._sink}.{partition or '0'}"


def types_of(table: Table) -> dict[str, pa.DataType]:
    """The types of the columns. One that no column of a sink has is null."""
    by_type = {str(iceberg): arrow for arrow, iceberg in _TYPES.items()}
    return {each.name: by_type.get(str(each.field_type), pa.null()) for each in table.schema().fields}


def _spec_of(schema: Schema) -> PartitionSpec:
    day, tenant = schema.find_field("received_at").field_id, schema.find_field("tenant").field_id
    return PartitionSpec(
        PartitionField(day, 1000, DayTransform(), "received_at_day"),
        PartitionField(tenant, 1001, IdentityTransform(), "tenant"),
    )


def _check(table: Table, name: str) -> None:
    types = types_of(table)
    for column, wanted in [*((each.name, each.type) for each in ENVELOPE), *_named(name)]:
        if column not in types and column in ENVELOPE.names:
            raise ValueError(f"the table {name} has no column {column}, so it is not of this sink")
        if column in types and types[column] != wanted:
            found = table.schema().find_field(column).field_type
            raise ValueError(f"the column {column} of {name} is {found}, and the sink writes {_TYPES[wanted]}")
    specs = [
        [(each.source_id, str(each.transform)) for each in spec.fields]
        for spec in (table.spec(), _spec_of(table.schema()))
    ]
    if specs[0] != specs[1]:
        raise ValueError(f"the table {name} is not partitioned by the day of received_at and the tenant any more")


def _named(name: str) -> Iterator[tuple[str, pa.DataType]]:
    return ((each.name, arrow_type(each.kind)) for each in TABLES[name])


def _runs(rows: pa.Table) -> Iterator[tuple[tuple[str, str | None], int, int]]:
    """Each day with its tenant, and the first row and the number of rows that have them."""
    tenants = rows["tenant"].fill_null("\0")
    runs = pc.run_end_encode(pc.binary_join_element_wise(rows["date"], tenants, "/").combine_chunks())
    first = 0
    for end in runs.run_ends.to_pylist():
        yield (rows["date"][first].as_py(), rows["tenant"][first].as_py()), first, end - first
        first = end


def _properties_of(snapshot: Snapshot | None) -> dict[str, str]:
    if snapshot is None or snapshot.summary is None:
        return {}
    found = snapshot.summary.additional_properties
    return {key: value for key, value in found.items() if key.startswith("ingestd.")}


def _with_span(text: str, span: Span) -> str:
    at = datetime.fromtimestamp(span.at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**json.loads(text), span.partition or "0": {"position": span.last, "at": at}})


def _iso(at: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).isoformat()
