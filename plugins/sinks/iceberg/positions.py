"""What a table says of the journal: the last span of each sink and partition, and up to where it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ingestd.api.sink import Span

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["COMPLETE_TO", "OWNER", "Positions"]

COMPLETE_TO = "ingestd.complete-to"
"""The property of a snapshot with the position and the time up to which it has all records, by partition."""
OWNER = "ingestd.sink"
"""The property of a table with the name of the sink that wrote to it last."""
_SPAN = "ingestd.span"
"""The beginning of properties of a table with the last span that a sink has written, by sink and partition."""


class Positions:
    """Those of a table as it was loaded. `sink` is the name of the sink."""

    def __init__(self, table: Table, sink: str) -> None:
        self._table = table
        self._sink = sink
        self.foreign: list[str] = []
        """The operations of the commits of others since the last commit of a sink."""
        self.complete: dict[str, Any] = self._read()
        """By partition. Snapshots of other writers do not have it, so it is that of the last one of a sink."""

    def _read(self) -> dict[str, Any]:
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            text = _property_of(snapshot)
            if text is not None:
                return dict(json.loads(text))
            self.foreign.append("unknown" if snapshot.summary is None else snapshot.summary.operation.value)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)
        return {} if not self.foreign else dict(map(_complete_to, self._own().values()))  # others have expired it

    def spans(self, partition: str) -> Mapping[str, Span]:
        """The span of the newest flush of this partition, by the property's key. Each sink has one."""
        ending = f".{partition or '0'}"
        return {key: span for key, span in self._all(partition) if key.endswith(ending)}

    def key(self, partition: str) -> str:
        """The key of the span of this sink."""
        return f"{_SPAN}.{self._sink}.{partition or '0'}"

    def with_span(self, span: Span) -> tuple[dict[str, str], dict[str, str]]:
        """The properties of the table and of the snapshot of a commit that has the records of a span."""
        complete = json.dumps(self.complete | dict([_complete_to(span)]))
        own = {self.key(span.partition): f"{span.first}-{span.last}-{span.at}", OWNER: self._sink}
        return own, {COMPLETE_TO: complete}

    @property
    def lacking(self) -> Mapping[str, tuple[int, int]]:
        """The first and the last position that this sink wrote behind the present snapshot, by partition."""
        found = {}
        for partition, span in self._own().items():
            position = self.complete.get(partition, {"position": 0})["position"]
            if position < span.last:
                found[partition] = (position + 1, span.last)
        return found

    @property
    def is_of_a_sink(self) -> bool:
        return any(key.startswith(_SPAN) for key in self._table.properties)

    def _own(self) -> dict[str, Span]:
        beginning = f"{_SPAN}.{self._sink}."
        found = self._all("")
        return {
            key.removeprefix(beginning): span._replace(partition=key.removeprefix(beginning))
            for key, span in found
            if key.startswith(beginning)
        }

    def _all(self, partition: str) -> Iterator[tuple[str, Span]]:
        for key, text in self._table.properties.items():
            if key.startswith(_SPAN):
                first, last, at = map(int, text.split("-"))
                yield key, Span(first, last, at, partition)


def _property_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(COMPLETE_TO)


def _complete_to(span: Span) -> tuple[str, dict[str, Any]]:
    at = datetime.fromtimestamp(span.at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return span.partition or "0", {"position": span.last, "at": at}
