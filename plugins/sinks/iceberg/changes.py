"""Changes of a table: snapshots that never go back in time, replaced files, and names of folders that a disk takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING

from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = ["Change", "FolderKey", "Replacement"]

_LONGEST = 200
"""Bytes of a partition value in a path. A name on a local disk has 255 at most."""


class Change(Transaction):
    """A transaction whose snapshot is newer than the one before it, whatever the clock says.

    Many readers refuse a table whose snapshots go back in time.
    """

    _made: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """That of pyiceberg, which copies all snapshots each of some fifteen times that it is asked for."""
        if self._made is None or self._made[0] is not self._updates:
            self._made = self._updates, super().table_metadata
        return self._made[1]

    def replacement(self, properties: Mapping[str, str]) -> Replacement:
        """A snapshot with these properties in which files replace others."""
        return Replacement(Operation.OVERWRITE, self, self._table.io, snapshot_properties=dict(properties))

    def _stage(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Transaction:
        return super()._stage(tuple(_newer(each, self._table.metadata) for each in updates), requirements)


def _newer(update: TableUpdate, metadata: TableMetadata) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate):
        return update
    times = (metadata.last_updated_ms, *(each.timestamp_ms for each in metadata.snapshot_log[-1:]))
    at = max(update.snapshot.timestamp_ms, *(time + 1 for time in times))
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"timestamp_ms": at}))


class Replacement(_OverwriteFiles):
    """pyiceberg's overwrite, which finds the replaced files also if several threads look for them.

    Its evaluator keeps the manifest that it is asked about, and threads share it. So it could answer about another
    manifest, and the overwrite failed because files were missing.
    """

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        evaluate, lock = super()._build_manifest_evaluator(spec_id), Lock()

        def one_at_a_time(manifest: ManifestFile) -> bool:
            with lock:
                return evaluate(manifest)

        return one_at_a_time


class FolderKey(PartitionKey):
    """A day and a tenant. A name of a folder has a limit, that of a tenant may have none."""

    def to_path(self) -> str:
        return "/".join(map(_cut, super().to_path().split("/")))


def _cut(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    beginning = re.sub(r"%.?\Z", "", name[: _LONGEST - 64])  # no half of an encoded byte
    return f"{beginning}{sha256(name.encode()).hexdigest()}"
