"""`ingestd lake compact`: the upkeep of the files of a parquet sink, and of the tables of an iceberg sink.

Compaction merges small files, and carries out erasures in all of them. It works beside the sink. A merged Parquet file
names the files that it replaces, which are removed when it is stored. After a kill between both, the next run removes
them. The sink looks into merged files before it makes a flush again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.support.unusable_ids import UnusableIds

from .forget.traces import ERASURE
from .lake_erasures import Erasure, Erasures, Met, read_erasure
from .lake_tables import compact_tables, done, lake_sink, write_counts

if TYPE_CHECKING:
    from ..sinks.parquet import ParquetSink
    from ..sinks.parquet.lake import Lake

__all__ = ["Compaction", "compact"]

_TARGET = 64 << 20
"""Bytes of compressed files that become one. The new file is made in memory."""
_MET = "_erasures"
"""The file with the erasures that were carried out. Readers ignore names with this beginning."""


async def compact(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    type_, sink = lake_sink(arguments.sink, config, plugins, "parquet", "iceberg")
    unusable_ids = UnusableIds(config.ids.unusable)
    work = compact_tables if type_ == "iceberg" else _compact_files
    found = await done(sink, lambda: work(sink, unusable_ids))
    write_counts(sink, found, as_json=arguments.json)


def _compact_files(sink: ParquetSink, unusable_ids: UnusableIds) -> Counter[str]:
    compaction = Compaction(sink.lake, unusable_ids)
    compaction.run()
    return compaction.counts


class Compaction:
    """One run of the command. All methods may block. They raise `SinkRetry` for a failure of the storage."""

    def __init__(self, lake: Lake, unusable_ids: UnusableIds) -> None:
        self._lake = lake
        self._unusable_ids = unusable_ids
        self.counts: Counter[str] = Counter()
        """`read` and `merged` files, `written` ones, `erasures`, and records that these have `blanked`."""
        self._met, self._files = Met(), dict[str, int]()
        """What former runs have met, and the files of this run."""
        self._erasures = self._new = Erasures(())
        """All of them, and those that no former run has met."""

    def run(self) -> None:
        self._lake.open()
        with self._lake.locked():
            self._run()

    def _run(self) -> None:
        self._met = Met.read(self._lake.get(_MET))
        found = [*self._find_erasures()]
        self._erasures = Erasures(found)
        self._new = Erasures(each for each in found if each.id not in self._met.erasures)
        self.counts["erasures"] = len(self._new.ids)
        for folder in self._lake.folders():
            self._lake.remove_leftovers(folder)
            for group in self._groups(folder):
                self._merge(folder, group)
        met = Met(sorted(self._erasures.ids), self._files)
        if met.erasures and met != self._met:
            self._lake.put(_MET, msgspec.json.encode(met))

    def _find_erasures(self) -> Iterator[Erasure]:
        for folder in self._lake.folders():
            if folder.startswith(f"type={ERASURE}/"):
                for name in self._lake.files(folder):
                    for table in self._lake.tables(folder, name):
                        for body in table["record"].to_pylist():
                            yield read_erasure(body.encode(), self._unusable_ids)

    def _groups(self, folder: str) -> Iterator[Mapping[str, int]]:
        """The files that become one each, with their sizes: several small ones, or one that has a person to forget."""
        group: dict[str, int] = {}
        for name, size in self._lake.files(folder).items():
            self.counts["read"] += 1
            self._files[f"{folder}/{name}"] = size
            if size > _TARGET // 2:
                if self._concerns(folder, name, size):
                    yield {name: size}
                continue
            if group and sum(group.values()) + size > _TARGET:
                yield group
                group = {}
            group[name] = size
        if len(group) > 1 or any(self._concerns(folder, *each) for each in group.items()):
            yield group

    def _concerns(self, folder: str, name: str, size: int) -> bool:
        """Whether an erasure blanks a record of this file."""
        erasures = self._new if self._met.files.get(f"{folder}/{name}") == size else self._erasures
        if not erasures.ids or folder.startswith(f"type={ERASURE}/"):
            return False
        return self._lake.would_change(folder, name, erasures.blanked)

    def _merge(self, folder: str, group: Mapping[str, int]) -> None:
        merged = self._lake.merge(folder, group, self._erasures.blanked if self._erasures.ids else None)
        for name in group:
            del self._files[f"{folder}/{name}"]
        self._files[f"{folder}/{merged.name}"] = merged.size
        self.counts["blanked"] += merged.changed
        self.counts["merged"] += len(group)
        self.counts["written"] += 1
