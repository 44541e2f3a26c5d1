"""The origin of an event that `ingestd events import` has read from a file, and the mark and times of its record."""

from __future__ import annotations

from typing import Any

import msgspec

from ingestd.support.record_head import read_head

from .times import format_time, parse_time

__all__ = ["Imported", "completed", "import_mark", "is_completed", "original_time"]


class Imported(msgspec.Struct, frozen=True, gc=False):
    endpoint: str
    """The endpoint of the daemon that received it first, or of the intake that reads its format."""
    received_at: int
    """The time of its first receipt in milliseconds. The `received_at` of the event is the time of the import."""
    is_record: bool
    """Whether it was a record. A daemon has already found its user and session, and has enriched it."""
    changes_state: bool
    """Whether sessions, links, profiles and attribution count it. If not, no plugin may change state for it."""
    is_repeated: bool = False
    """Whether the journal has it already, from an import that changed no state. Then it is stored once more."""


def import_mark(imported: Imported, at: int) -> dict[str, Any]:
    """The member `import` of the record. `at` is the time of the import in milliseconds."""
    return {"endpoint": imported.endpoint, "at": format_time(at), "state": imported.changes_state}


_MARKS = (b'"import":', b'"decidedAt":')
_COMPLETED = b'"completed":true'


def original_time(body: bytes) -> int | None:
    """The time of receipt in the body of an imported or derived record, in milliseconds. None in other records.

    The journal appends such a record later. A derived record was received when what decided it was received.
    """
    if not any(mark in body for mark in _MARKS):
        return None
    head = read_head(body)
    if not head.mark and (head.received_at or not head.decided_at):
        return None
    return parse_time(head.received_at or head.decided_at or head.erased_at)


def completed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a mark: a later import has stored it once more, with state. `is_completed` finds the mark."""
    return {**record, "import": {**record["import"], "completed": True}}


def is_completed(body: bytes) -> bool:
    """Whether the journal has a later copy of this record, with the session that an import has made."""
    if _COMPLETED not in body or _MARKS[0] not in body:
        return False
    try:
        mark = msgspec.json.decode(read_head(body).mark)
    except msgspec.DecodeError:  # no mark, or a plugin's record that is no JSON
        return False
    return isinstance(mark, dict) and mark.get("completed") is True
