"""The old snapshots of the tables: they expire, their files are removed, and runs of erasures learn when that is done.

All methods may block. They work beside the sink and other writers. Raises `SinkRetry` for a failure of the catalogue or
the storage.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyarrow import fs

from ingestd.api.times import parse_time

from .columns import TABLES
from .tables import Tables

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["Left", "OldSnapshots", "last_sequence_number"]

_ORPHANED = 86_400.0
"""Seconds after which a file that no snapshot has is no longer one that a writer is about to commit."""
_BLANKED = "ingestd.blanked."
"""The beginning of properties of the table `records`: a run that has blanked persons, and from which sequence number of
each table on the snapshots are without them. It is gone when all older snapshots are."""
_KINDS = {"data": (".parquet",), "metadata": (".avro", ".metadata.json")}
"""The endings of the files in a table's folders. Other writers may have others of their own."""


class Left(NamedTuple):
    """What is there of the time before a run."""

    snapshots: int
    files: int
    """The data files that no snapshot has."""
    newest: float
    """The time of the newest of these snapshots, in seconds."""
    free: float
    """When the newest of these files may be removed."""


class OldSnapshots:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def expire(self, age: float) -> Counter[str]:
        """Expire snapshots that are so many seconds old, and remove the files that no snapshot has any more.

        Returns how many `snapshots` and `files` are gone. A file that no snapshot ever had is removed when it is a day
        old: a writer may be about to commit it.
        """
        counts: Counter[str] = Counter()
        with self._tables.told():
            for name in TABLES:
                table = self._tables.load(name)
                removable, was = _files_of(table), len(table.snapshots())
                old = time.time() - _ORPHANED
                removable |= {path: each for path, (each, changed) in _listed(table).items() if changed < old}
                if was:
                    self._tables.committed(partial(self._expire, name, age))
                table = self._tables.load(name)
                counts["snapshots"] += max(0, was - len(table.snapshots()))
                for path in removable.keys() - _files_of(table).keys():
                    with suppress(FileNotFoundError):  # another run was faster
                        table.io.delete(removable[path])
                        counts["files"] += 1
            self._tables.committed(self._drop_notes)
        return counts

    def _expire(self, name: str, age: float) -> None:
        expiring = self._tables.load(name).maintenance.expire_snapshots()
        expiring.older_than(datetime.fromtimestamp(time.time() - age, UTC)).commit()

    @staticmethod
    def note(run: str, older: Mapping[str, int]) -> dict[str, str]:
        """The properties of `records` by which a run is known. It is named by the time at which it began."""
        return {f"{_BLANKED}{run}": msgspec.json.encode(older).decode()}

    def left(self) -> dict[str, Left]:
        """What is there of the time before each run. Runs of which nothing is left are missing after `expire`."""
        with self._tables.told():
            tables = {name: self._tables.load(name) for name in TABLES}
            notes = {
                key.removeprefix(_BLANKED): msgspec.json.decode(value, type=dict[str, int])
                for key, value in tables["records"].properties.items()
                if key.startswith(_BLANKED)
            }
            unknown = [changed for table in tables.values() for changed in _unknown(table)] if notes else []
            return {run: _left(tables, run, older, unknown) for run, older in notes.items()}

    def _drop_notes(self) -> None:
        done = [f"{_BLANKED}{run}" for run, left in self.left().items() if not (left.snapshots or left.files)]
        if done:
            with self._tables.load("records").transaction() as change:
                change.remove_properties(*done)


def last_sequence_number(table: Table) -> int:
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else snapshot.sequence_number or 0


def _left(tables: Mapping[str, Table], run: str, older: Mapping[str, int], unknown: list[float]) -> Left:
    snapshots = [
        each.timestamp_ms / 1000
        for name, table in tables.items()
        for each in table.snapshots()
        if (each.sequence_number or 0) < older.get(name, 0)
    ]
    began = (parse_time(run) or 0) / 1000
    files = [changed for changed in unknown if changed <= began]
    return Left(len(snapshots), len(files), max(snapshots, default=0.0), max(files, default=0.0) + _ORPHANED)


def _unknown(table: Table) -> Iterator[float]:
    """When the data files were written that no snapshot has."""
    known = _files_of(table)
    for path, (_, changed) in _listed(table).items():
        if path not in known and path.endswith(_KINDS["data"]):
            yield changed


def _listed(table: Table) -> dict[str, tuple[str, float]]:
    """The files in the folders of a table, by their paths without the scheme, and when they were written."""
    io: Any = table.io
    location = table.location()
    scheme, netloc, root = io.parse_location(location, io.properties)
    system = io.fs_by_scheme(scheme, netloc)
    found: dict[str, tuple[str, float]] = {}
    for folder, endings in _KINDS.items():
        for info in system.get_file_info(fs.FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)):
            if info.path.endswith(endings) and info.mtime is not None:
                found[info.path] = location + info.path.removeprefix(root), info.mtime.timestamp()
    return found


def _files_of(table: Table) -> dict[str, str]:
    """The metadata, the manifests and the data of all snapshots, by their paths without the scheme.

    Writers may spell that differently, such as s3a for s3.
    """
    io: Any = table.io
    metadata = [table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)]
    found, manifests = {*metadata}, set[str]()
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in manifests:
                manifests.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}
    return {io.parse_location(path, io.properties)[2]: path for path in found | manifests}
