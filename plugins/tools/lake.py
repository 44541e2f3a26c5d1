"""`ingestd lake compact`: merges the small files of a parquet sink, and carries out erasures in all of them.

It works beside the sink. A merged file names the files that it replaces, which are removed when it is stored. After a
kill between both, the next run removes them. The sink looks into merged files before it makes a flush again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ingestd.api.errors import CommandError, SinkRetry, Unavailable
from ingestd.api.events import Record
from ingestd.api.output import write_result
from ingestd.api.times import parse_time
from ingestd.config import Config
from ingestd.delivery.options import read_sink_options
from ingestd.hooks.loader import Plugins
from ingestd.support.record_head import read_head
from ingestd.support.unusable_ids import UnusableIds

from .forget.traces import ERASURE, Traces, blanked

if TYPE_CHECKING:
    from ..sinks.parquet import ParquetSink
    from ..sinks.parquet.lake import Lake

__all__ = ["compact"]

_TARGET = 64 << 20
"""Bytes of compressed files that become one. The new file is made in memory."""
_DONE = "_erasures"
"""The file with the ids of the erasures that were carried out. Readers ignore names with this beginning."""


async def compact(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    sink = _sink(arguments.sink, config, plugins)
    compaction = _Compaction(sink.lake, UnusableIds(config.ids.unusable))
    try:
        await asyncio.to_thread(compaction.run)
    except SinkRetry as error:
        raise Unavailable(f"the lake of {sink.name}: {error}") from None
    counts = {name: compaction.counts[name] for name in ("read", "merged", "written", "erasures", "blanked")}
    text = (
        f"{sink.name}: {counts['merged']} of {counts['read']} files became {counts['written']};"
        f" {counts['erasures']} erasures blanked {counts['blanked']} records"
    )
    write_result({"sink": sink.name, **counts}, lines=[text], as_json=arguments.json)


def _sink(name: str | None, config: Config, plugins: Plugins) -> ParquetSink:
    names = [each for each, table in config.sink_tables.items() if table.get("type") == "parquet"]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        known = f"there are {', '.join(names)}" if names else "there is none"
        raise CommandError(f"name a sink of the type parquet: {known}")
    assert name is not None
    _, options = read_sink_options(name, config.sink_tables[name], plugins.sinks["parquet"], config)
    sink: Any = plugins.sinks["parquet"](name, options)
    return sink  # type: ignore[no-any-return]  # no other plugin can register this type


class _Erasure(NamedTuple):
    id: str
    until: int
    """The time up to which records count as earlier ones, in milliseconds."""
    persons: Sequence[Traces]


class _Compaction:
    """All methods may block. They raise `SinkRetry` for a failure of the storage."""

    def __init__(self, lake: Lake, unusable_ids: UnusableIds) -> None:
        self._lake = lake
        self._unusable_ids = unusable_ids
        self.counts: Counter[str] = Counter()
        """`read` and `merged` files, `written` ones, `erasures`, and records that these have `blanked`."""
        self._erasures: Sequence[_Erasure] = ()
        self._ids: re.Pattern[str] | None = None
        """Finds the ids of all persons to forget in the text of a record."""

    def run(self) -> None:
        self._lake.open()
        with self._lake.locked():
            self._run()

    def _run(self) -> None:
        done = self._lake.get(_DONE)
        carried_out = set() if done is None else set(msgspec.json.decode(done, type=list[str]))
        self._erasures = [each for each in self._find_erasures() if each.id not in carried_out]
        self.counts["erasures"] = len(self._erasures)
        ids = {
            text
            for erasure in self._erasures
            for person in erasure.persons
            for id_ in [person.user_id, *person.anonymous_ids]
            if id_ is not None
            for text in ((id_,) if id_.isdigit() else (json.dumps(id_), json.dumps(id_, ensure_ascii=False)))
        }
        self._ids = re.compile("|".join(map(re.escape, sorted(ids)))) if ids else None
        for folder in self._lake.folders():
            self._remove_replaced(folder)
            for group in self._groups(folder):
                self._merge(folder, group)
        if self._erasures:
            carried_out |= {each.id for each in self._erasures}
            self._lake.put(_DONE, msgspec.json.encode(sorted(carried_out)))

    def _find_erasures(self) -> Iterator[_Erasure]:
        for folder in self._lake.folders():
            if folder.startswith(f"type={ERASURE}/"):
                for name in self._lake.files(folder):
                    for table in self._lake.tables(folder, name):
                        yield from map(self._read_erasure, table["record"].to_pylist())

    def _read_erasure(self, body: str) -> _Erasure:
        head = read_head(body.encode())
        tenant = head.tenant or ""
        if head.user is None:
            persons = [Traces(tenant, self._unusable_ids, anonymous_id=name) for name in head.visitors]
        else:
            persons = [Traces(tenant, self._unusable_ids, user_id=head.user)]
            persons[0].learn(Record(ERASURE, 0, body.encode(), sys.maxsize))
        return _Erasure(head.id or "", parse_time(msgspec.json.decode(body)["erasedAt"]) or 0, persons)

    def _remove_replaced(self, folder: str) -> None:
        """Remove files whose records are in a merged file, after a run that was killed."""
        files = self._lake.files(folder)
        for name in files:
            for replaced, size in self._lake.replaced_by(folder, name).items():
                if files.get(replaced) == size:
                    self._lake.remove(folder, replaced)

    def _groups(self, folder: str) -> Iterator[Mapping[str, int]]:
        """The files that become one each, with their sizes: several small ones, or one that has a person to forget."""
        group: dict[str, int] = {}
        for name, size in self._lake.files(folder).items():
            self.counts["read"] += 1
            if size > _TARGET // 2:
                if self._concerns(folder, name):
                    yield {name: size}
                continue
            if group and sum(group.values()) + size > _TARGET:
                yield group
                group = {}
            group[name] = size
        if len(group) > 1 or any(self._concerns(folder, name) for name in group):
            yield group

    def _concerns(self, folder: str, name: str) -> bool:
        """Whether an erasure may concern a record of this file."""
        if self._ids is None or folder.startswith(f"type={ERASURE}/"):
            return False
        search = self._ids.search
        return any(search(text) for table in self._lake.tables(folder, name) for text in table["record"].to_pylist())

    def _merge(self, folder: str, group: Mapping[str, int]) -> None:
        self.counts["blanked"] += self._lake.merge(folder, group, None if self._ids is None else self._blanked)
        self.counts["merged"] += len(group)
        self.counts["written"] += 1

    def _blanked(self, record: Record) -> bytes | None:
        """The body of the record without the persons to forget, or None if it has none of them."""
        body = None
        if self._ids is None or not self._ids.search(record.body.decode()):
            return body
        for erasure in self._erasures:
            for person in erasure.persons if record.at <= erasure.until else ():
                found = blanked(record, person)
                if found is not None:
                    body, record = found, msgspec.structs.replace(record, body=found)
        return body
