"""The upkeep of the tables: small files become large ones, records are changed, and old files are removed.

All methods may block. They work beside the sink and other writers: every change is a commit, which is made again after
a conflict. Raises `SinkRetry` for a failure of the catalogue or the storage.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table.snapshots import Operation

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record

from ..parquet.rows import read
from .buffer import RowBuffer, sorted_rows
from .columns import ENVELOPE, TABLES
from .tables import Tables

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

__all__ = ["Upkeep"]

_TARGET = 32 << 20
"""Bytes of compressed files that become one. Memory for some ten times as much is needed."""
_AT_ONCE = 500
"""The most files that a commit replaces, beside those of the last group."""
_ORPHANED = 86_400.0
"""Seconds after which a file that no snapshot has is no longer one that a writer is about to commit."""

Change = Callable[[Record], bytes | None]
"""The new body of a record, or None for a record that stays."""


class Upkeep:
    def __init__(self, tables: Tables, buffer: RowBuffer) -> None:
        """`buffer` makes rows of changed records."""
        self._tables = tables
        self._buffer = buffer
        self._own: set[int | None] = set()
        """The snapshot that the upkeep began with, and those that it has made."""

    def bodies(self, type_: str) -> list[str]:
        """All records of a type of the table `records`."""
        with self._tables.told():
            scan = self._tables.load("records").scan(f"type = '{type_}'", selected_fields=("record",))
            found: list[str] = scan.to_arrow()["record"].to_pylist()
            return found

    def compact(self, change: Change | None) -> Counter[str]:
        """Merge small files of the same day and tenant, and those with rows that other writers have deleted.

        With `change`, all files are read, and those with records to change are written again. Returns how many files
        were `read`, `merged` and `written`, and how many records were changed (`blanked`). Erasures are changed last.
        """
        counts: Counter[str] = Counter()
        with self._tables.told():
            for name in TABLES:
                table = self._tables.load(name)
                tasks = [*table.scan().plan_files()]
                counts["read"] += len(tasks)
                replaced: list[FileScanTask] = []
                files: list[DataFile] = []
                self._own = {table.metadata.current_snapshot_id}
                for group in self._groups(table, tasks, change):
                    new, changed = self._write_again(table, group, change)
                    replaced += group
                    files += new
                    counts += Counter(merged=len(group), written=len(new), blanked=changed)
                    if len(replaced) >= _AT_ONCE:
                        self._replace(name, replaced, files)
                        replaced, files = [], []
                if replaced:
                    self._replace(name, replaced, files)
        return counts

    def _groups(
        self, table: Table, tasks: Iterable[FileScanTask], change: Change | None
    ) -> Iterator[Sequence[FileScanTask]]:
        partitions: dict[tuple[Any, ...], list[FileScanTask]] = defaultdict(list)
        for task in tasks:
            day, tenant = task.file.partition[0], task.file.partition[1]
            partitions[day, tenant].append(task)
        for some in partitions.values():
            group: list[FileScanTask] = []
            for task in some:
                size = task.file.file_size_in_bytes
                is_small = size <= _TARGET // 2
                if not is_small and not task.delete_files and not self._concerns(table, [task], change):
                    continue
                if group and sum(each.file.file_size_in_bytes for each in group) + size > _TARGET:
                    yield group
                    group = []
                group.append(task)
            if len(group) > 1 or (group and (group[0].delete_files or self._concerns(table, group, change))):
                yield group

    def _concerns(self, table: Table, tasks: Sequence[FileScanTask], change: Change | None) -> bool:
        if change is None:
            return False
        return any(change(record) is not None for rows in self._rows(table, tasks) for record in _records_of(rows))

    def _rows(self, table: Table, tasks: Sequence[FileScanTask]) -> Iterator[pa.Table]:
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        for batch in scan.to_record_batches(tasks):
            rows = pa.Table.from_batches([batch])
            yield rows.cast(pa.schema([(field.name, _small(field.type)) for field in rows.schema]))

    def _write_again(
        self, table: Table, tasks: Sequence[FileScanTask], change: Change | None
    ) -> tuple[Sequence[DataFile], int]:
        """Write the rows of these files to one. Returns it, and how many records were changed."""
        parts, changed = [], 0
        for rows in self._rows(table, tasks):
            records = [*_records_of(rows)] if change is not None else []
            bodies = [None if change is None else change(record) for record in records]
            new = [msgspec.structs.replace(each, body=body) for each, body in zip(records, bodies, strict=True) if body]
            if new:
                parts += [part.drop_columns("date") for _, _, part in self._buffer.made([*map(read, new)], new)]
                changed += len(new)
            parts.append(rows.filter(pa.array([body is None for body in bodies])) if new else rows)
        whole = pa.concat_tables(parts, promote_options="default") if parts else ENVELOPE.empty_table()
        dates = pc.strftime(whole["received_at"], "%Y-%m-%d")
        files = [*self._tables.write(table, sorted_rows(whole.append_column("date", dates)))] if len(whole) else []
        return files, changed

    def _replace(self, name: str, tasks: Sequence[FileScanTask], files: Sequence[DataFile]) -> None:
        def commit() -> None:
            now = self._tables.load(name)
            if not self._is_appended_to(now):
                raise SinkRetry(f"another writer has changed {name} meanwhile")
            with (
                self._tables.changes(now) as (transaction, properties),
                transaction.update_snapshot(snapshot_properties=properties).overwrite() as overwrite,
            ):
                for task in tasks:
                    overwrite.delete_data_file(task.file)
                for file in files:
                    overwrite.append_data_file(file)
            self._own.add(now.metadata.current_snapshot_id)

        self._tables.committed(commit)

    def _is_appended_to(self, table: Table) -> bool:
        """Whether the table has nothing but new files since the upkeep began or last committed."""
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id not in self._own:
            if snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND:
                return False
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return snapshot is not None

    def expire(self, age: float) -> Counter[str]:
        """Expire snapshots that are so many seconds old, and remove the files that no snapshot has any more.

        Returns how many `snapshots` and `files` are gone. A file that no snapshot ever had is removed when it is a day
        old: a writer may be about to commit it.
        """
        counts: Counter[str] = Counter()
        with self._tables.told():
            for name in TABLES:
                table = self._tables.load(name)
                before, was = _files_of(table), len(table.snapshots())
                orphaned = {*self._old_files(table, time.time() - _ORPHANED)}
                if was:
                    self._tables.committed(partial(self._expire, name, age))
                table = self._tables.load(name)
                counts["snapshots"] += max(0, was - len(table.snapshots()))
                for path in (before | orphaned) - _files_of(table):
                    table.io.delete(path)
                    counts["files"] += 1
        return counts

    def _expire(self, name: str, age: float) -> None:
        expiring = self._tables.load(name).maintenance.expire_snapshots()
        expiring.older_than(datetime.fromtimestamp(time.time() - age, UTC)).commit()

    def _old_files(self, table: Table, before: float) -> Iterator[str]:
        """The paths of data files and manifests that are older. Other writers may have others of their own."""
        io: Any = table.io
        location = table.location()
        scheme, netloc, root = io.parse_location(location, io.properties)
        system = io.fs_by_scheme(scheme, netloc)
        for folder, ending in (("data", ".parquet"), ("metadata", ".avro")):
            for info in system.get_file_info(fs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)):
                if info.path.endswith(ending) and info.mtime is not None and info.mtime.timestamp() < before:
                    yield location + info.path.removeprefix(root)


def _small(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_large_string(type_) else type_


def _records_of(rows: pa.Table) -> Iterator[Record]:
    columns = [rows[name] for name in ("type", "received_at", "record", "position")]
    columns[1] = columns[1].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    for type_, at, body, position in zip(*(column.to_pylist() for column in columns), strict=True):
        yield Record(type_, at, body.encode(), position)


def _files_of(table: Table) -> set[str]:
    """The manifests and the data of all snapshots."""
    found: set[str] = set()
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found
