"""The origin of an event that `ingestd events import` has read from a file, and the mark of its record."""

from __future__ import annotations

from typing import Any

import msgspec

from .times import format_time

__all__ = ["Imported", "import_mark"]


class Imported(msgspec.Struct, frozen=True, gc=False):
    endpoint: str
    """The endpoint of the daemon that received it first, or of the intake that reads its format."""
    received_at: int
    """The time of its first receipt in milliseconds. The `received_at` of the event is the time of the import."""
    is_record: bool
    """Whether it was a record. A daemon has already found its user and session, and has enriched it."""
    changes_state: bool
    """Whether sessions, links, profiles and attribution count it. If not, no plugin may change state for it."""


def import_mark(imported: Imported, at: int) -> dict[str, Any]:
    """The member `import` of the record. `at` is the time of the import in milliseconds."""
    return {"endpoint": imported.endpoint, "at": format_time(at), "state": imported.changes_state}
