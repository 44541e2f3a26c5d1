"""The upkeep of the tables: small files become large ones, and records are changed.

All methods may block. They work beside the sink and other writers: every change is a commit, which is made again after
a conflict. Raises `SinkRetry` for a failure of the catalogue or the storage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.snapshots import Operation

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record

from ..columns import read
from ..parquet.rows import records_of
from .buffer import RowBuffer
from .columns import TABLES
from .data_files import ROW_GROUP, FileWriter, read_rows
from .old_snapshots import OldSnapshots, last_sequence_number
from .sorting import SortedRows
from .tables import Tables, identity

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

__all__ = ["Upkeep"]

_TARGET = 32 << 20
"""Bytes of compressed files that become one. The rows are in memory compressed."""
_AT_ONCE = 500
"""The most files that a commit replaces, beside those of the last group."""

Change = Callable[[Record], bytes | None]
"""The new body of a record, or None for a record that stays."""


class Upkeep:
    def __init__(self, tables: Tables, buffer: RowBuffer) -> None:
        """`buffer` makes rows of changed records."""
        self._tables = tables
        self._buffer = buffer
        self._own: set[int | None] = set()
        """The snapshot that the upkeep began with, and those that it has made."""
        self.old = OldSnapshots(tables)

    def bodies(self, type_: str) -> list[str]:
        """All records of a type of the table `records`."""
        with self._tables.told():
            scan = self._tables.load("records").scan(f"type = '{type_}'", selected_fields=("record",))
            found: list[str] = scan.to_arrow()["record"].to_pylist()
            return found

    def compact(self, change: Change | None, run: str = "", *, all_files: bool = False) -> Counter[str]:
        """Merge small files of the same day and tenant, and those with rows that other writers have deleted.

        With `change`, all files are read, and those with records to change are written again. Erasures are changed
        last. From then on `OldSnapshots` knows under the name `run` which snapshots are older. With `all_files`, all
        are written again, and columns that have no value get that of the record.

        Returns how many files were `read`, `merged` and `written`, and how many records were changed (`blanked`).
        """
        counts: Counter[str] = Counter()
        older: dict[str, int] = {}
        with self._tables.told():
            for name in TABLES:
                table = self._tables.ready(name)
                older[name] = last_sequence_number(table)
                tasks = [*table.scan().plan_files()]
                counts["read"] += len(tasks)
                replaced: list[FileScanTask] = []
                files: list[DataFile] = []
                self._own = {table.metadata.current_snapshot_id}
                writer = FileWriter(table)
                for group in self._groups(table, tasks, change, all_files):
                    new, changed = self._write_again(table, group, change, all_files, writer)
                    replaced += group
                    files += new
                    counts += Counter(merged=len(group), written=len(new), blanked=changed)
                    if len(replaced) >= _AT_ONCE:
                        self._replace(table, replaced, files, older, run)
                        replaced, files = [], []
                if replaced:
                    self._replace(table, replaced, files, older, run)
        return counts

    def _groups(
        self, table: Table, tasks: Iterable[FileScanTask], change: Change | None, all_files: bool
    ) -> Iterator[Sequence[FileScanTask]]:
        partitions: dict[tuple[Any, ...], list[FileScanTask]] = defaultdict(list)
        for task in tasks:
            day, tenant = task.file.partition[0], task.file.partition[1]
            partitions[day, tenant].append(task)
        for some in partitions.values():
            group: list[FileScanTask] = []
            for task in some:
                size = task.file.file_size_in_bytes
                is_due = all_files or task.delete_files or size <= _TARGET // 2
                if not is_due and not self._concerns(table, [task], change):
                    continue
                if group and sum(each.file.file_size_in_bytes for each in group) + size > _TARGET:
                    yield group
                    group = []
                group.append(task)
            is_due = len(group) > 1 or bool(group and (all_files or group[0].delete_files))
            if is_due or self._concerns(table, group, change):
                yield group

    def _concerns(self, table: Table, tasks: Sequence[FileScanTask], change: Change | None) -> bool:
        if change is None:
            return False
        parts = (rows for task in tasks for rows in read_rows(table, task))
        return any(change(record) is not None for rows in parts for record in records_of(rows))

    def _write_again(
        self, table: Table, tasks: Sequence[FileScanTask], change: Change | None, all_files: bool, writer: FileWriter
    ) -> tuple[Sequence[DataFile], int]:
        """Write the rows of these files to one. Returns it, and how many records were changed."""
        found, changed = SortedRows(), 0
        for rows in (rows for task in tasks for rows in read_rows(table, task)):
            records = [*records_of(rows)] if change is not None or all_files else []
            bodies = [None if change is None else change(record) for record in records]
            new = [msgspec.structs.replace(each, body=body) for each, body in zip(records, bodies, strict=True) if body]
            if new:
                found.add(self._made(new))
                changed += len(new)
            same = rows.filter(pa.array([body is None for body in bodies])) if new else rows
            found.add(self._filled(same, [*records_of(same)]) if all_files and len(same) else same)
        groups = found.parts(ROW_GROUP)
        first = next(groups, None)
        if first is None:
            return [], changed
        day, tenant = tasks[0].file.partition[0], tasks[0].file.partition[1]
        return [writer.write(day, tenant, chain([first], groups))], changed

    def _made(self, records: Sequence[Record]) -> pa.Table:
        parts = [part.drop_columns("date") for _, _, part in self._buffer.made([*map(read, records)], records)]
        return pa.concat_tables(parts, promote_options="default")

    def _filled(self, rows: pa.Table, records: Sequence[Record]) -> pa.Table:
        """The rows, in which columns without a value get that of the record. Others may have written what is there."""
        made = self._made(records)
        places = {each: place for place, each in enumerate(_names_of(made))}
        made = made.take(pa.array([places[each] for each in _names_of(rows)]))
        columns = {name: rows[name] for name in rows.column_names}
        for name in made.column_names:
            if name in columns:
                columns[name] = pc.coalesce(columns[name], made[name])
        return pa.table(columns)

    def _replace(
        self, table: Table, tasks: Sequence[FileScanTask], files: Sequence[DataFile], older: dict[str, int], run: str
    ) -> None:
        name = table.name()[-1]

        def commit() -> None:
            now = self._tables.load(name)
            if identity(now) != identity(table) or not (self._is_appended_to(now) or _has(now, tasks)):
                raise SinkRetry(f"another writer has changed {name} meanwhile")
            with self._tables.changes(now) as (transaction, properties):
                older[name] = now.metadata.next_sequence_number()
                if run and name == "records":
                    transaction.set_properties(self.old.note(run, older))
                with transaction.replacement(properties) as replacement:
                    for task in tasks:
                        replacement.delete_data_file(task.file)
                    for file in files:
                        replacement.append_data_file(file)
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


def _has(table: Table, tasks: Sequence[FileScanTask]) -> bool:
    """Whether the table has these files, and no other rows of them are deleted. The snapshots between may be gone."""
    present = {task.file.file_path: _deletes(task) for task in table.scan().plan_files()}
    return all(present.get(task.file.file_path) == _deletes(task) for task in tasks)


def _deletes(task: FileScanTask) -> set[str]:
    return {each.file_path for each in task.delete_files}


def _names_of(rows: pa.Table) -> Iterator[tuple[str, int]]:
    return zip(rows["id"].to_pylist(), rows["position"].to_pylist(), strict=True)
