"""The tables of a lake: their schemas, their files, and commits that have the position of the journal.

All methods may block. Every failure is a `SinkRetry`, because the records are in rows already.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
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

from .catalogues import open_catalogue
from .changes import Change
from .columns import ENVELOPE, TABLES, TIME, Column, arrow_type
from .data_files import FileWriter, row_groups
from .positions import COMPLETE_TO, OWNER, Positions

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["Tables"]

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

_COMMITS: defaultdict[object, Lock] = defaultdict(Lock)
"""By table. The sinks of a store's partitions often commit at the same time, and a conflict costs one more commit."""

_log = logging.getLogger("ingestd.iceberg")


class Tables:
    def __init__(
        self, properties: Mapping[str, str], namespace: str, sink: str, keep_snapshots: float, hidden: Collection[str]
    ) -> None:
        ours = {"py-io-impl": f"{__package__}.files.DurableFileIO", "pool_pre_ping": "true"}
        self._properties = {**ours, **properties}
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
                self.ready(name)

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
            self._catalog = open_catalogue(self._properties)
        return self._catalog

    def ready(self, name: str, columns: Sequence[Column] | None = None) -> Table:
        """A table that is as the sink needs it. One that is missing is created, and columns that it lacks are added.

        `columns` are those of data, for a table that was there before.
        """
        with self.told():
            table = self.find(name)
            if table is None:
                if columns is not None:
                    _log.warning("the table %s is gone, and is created again; a replay writes what it had", name)
                self.catalog.create_namespace_if_not_exists(self.namespace)
                table = self._create(name)
            _check(table, name)
            self.add_columns(table, [*TABLES[name], *(columns or ())])
            return table

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
                properties={**_PROPERTIES, OWNER: self._sink},
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
        types = types_of(table)
        # Others may have given a column of a shop's schema another type. The record has the member anyway.
        whole = rows.select([each.name for each in rows.schema if types.get(each.name) == each.type])
        with self.told():
            writer = FileWriter(table)
            for (day, tenant), first, count in _runs(rows):
                number = (date.fromisoformat(day) - _EPOCH).days
                yield writer.write(number, tenant, row_groups(whole.slice(first, count)))

    def positions(self, table: Table) -> Positions:
        return Positions(table, self._sink)

    def commit(self, table: Table, files: Sequence[DataFile], span: Span | None) -> None:
        """Make files a part of the table, with the position of their span.

        After a conflict with another writer it is done again. If another daemon has written this span meanwhile, the
        files are left out.
        """
        now = [table]
        before = {} if span is None else self.positions(table).spans(span.partition)

        def commit() -> None:
            table = now.pop() if now else self.load(name)
            if identity(table) != identity_before:
                raise SinkRetry(f"another writer has replaced {name}, or its partitions, meanwhile")
            with self.changes(table) as (change, properties):
                if span is not None:
                    positions = self.positions(table)
                    present = positions.spans(span.partition)
                    if present.get(positions.key(span.partition)) == span:
                        return
                    if present != before:
                        raise SinkRetry(f"another daemon has written to {name}")
                    of_table, of_snapshot = positions.with_span(span)
                    change.set_properties(of_table)
                    properties.update(of_snapshot)
                with change.update_snapshot(snapshot_properties=properties).merge_append() as append:
                    for file in files:
                        append.append_data_file(file)
                self._expire(change, table.snapshots())

        name, identity_before = table.name()[-1], identity(table)
        lock = _COMMITS[table.metadata.table_uuid]
        if not lock.acquire(blocking=False):
            lock.acquire()
            now.clear()  # another sink has committed
        try:
            with self.told():
                self.committed(commit)
        finally:
            lock.release()

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
    def changes(self, table: Table) -> Iterator[tuple[Change, dict[str, str]]]:
        """A transaction, and the properties that its snapshot has like the one before it."""
        # A transaction that pyiceberg makes again after a conflict would not look for the span again.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        complete = self.positions(table).complete
        with (change := Change(table)):
            yield change, {COMPLETE_TO: json.dumps(complete)} if complete else {}

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

    def risks(self) -> Iterator[str]:
        """What others have done to each table since the last commit of a sink."""
        for name in TABLES:
            table = self.find(name)
            if table is None:
                continue
            owner = table.properties.get(OWNER, self._sink)
            if owner != self._sink:
                yield f"{name}: the sink {owner} has written to it, too, which needs a namespace of its own"
            positions = self.positions(table)
            if positions.foreign and positions.is_of_a_sink:
                count = len(positions.foreign)
                operations = ", ".join(sorted({*positions.foreign}))
                yield f"{name}: {count} {'commit' if count == 1 else 'commits'} of another writer ({operations})"
            for partition, (first, last) in positions.lacking.items():
                of = f"positions {first} to {last} of partition {partition}"
                yield f"{name}: another writer rolled it back, so it lacks {of} until a replay"


def identity(table: Table) -> tuple[object, ...]:
    """What files were written for. A table that was replaced, or has other partitions, cannot have them."""
    return table.metadata.table_uuid, table.metadata.default_spec_id


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
        raise ValueError(f"the table {name} is not partitioned by the day of received_at and the tenant")


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


def _iso(at: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).isoformat()
