"""Sessions of a journey: its events and identify requests, by session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ingestd.api.events import Record
from ingestd.api.times import parse_time
from ingestd.support.record_head import RecordHead, read_head

__all__ = ["JourneyEvent", "JourneySession", "sessions_of"]

_MAX_SESSIONS = 100
_MAX_EVENTS = 60  # of a session


class JourneyEvent(msgspec.Struct, frozen=True):
    at: int
    received_at: int
    position: int
    type: str
    key: str | None
    endpoint: str
    record_id: str
    linked: bool | None


class JourneySession(msgspec.Struct):
    """One session. The daemon may have found only some of its events."""

    tenant: str
    session_id: str | None
    visitor: str | None
    user: str | None
    """The user of its last event."""
    is_whole: bool
    """Whether the first event is the one that began the session."""
    events: list[JourneyEvent]
    """The first half and the last half of the limit, oldest first."""
    left_out: int = 0
    """The number of events between the two halves."""


def sessions_of(records: Iterable[Record]) -> tuple[Sequence[JourneySession], int]:
    """The newest sessions of the records, in order, and the number of earlier sessions. Times are the events'."""
    found: dict[tuple[Any, ...], list[tuple[JourneyEvent, RecordHead]]] = {}
    for record in records:
        if record.type not in {"event", "identify"}:
            continue
        head = read_head(record.body)
        at = parse_time(head.timestamp)
        event = JourneyEvent(
            record.at if at is None else at, record.at, record.position, record.type, head.key, head.endpoint,
            head.id or "", head.linked,
        )  # fmt: skip
        found.setdefault((head.tenant, head.visitor, head.session_id), []).append((event, head))
    sessions = sorted((_session(each) for each in found.values()), key=lambda each: each.events[0].at)
    return sessions[-_MAX_SESSIONS:], max(0, len(sessions) - _MAX_SESSIONS)


def _session(events: Sequence[tuple[JourneyEvent, RecordHead]]) -> JourneySession:
    ordered = sorted(events, key=lambda each: (each[0].received_at, each[0].position))
    (_, first), (_, last) = ordered[0], ordered[-1]
    shown = [event for event, _ in ordered]
    left_out = max(0, len(shown) - _MAX_EVENTS)
    del shown[_MAX_EVENTS // 2 : _MAX_EVENTS // 2 + left_out]
    return JourneySession(
        last.tenant or "", last.session_id, last.visitor, last.user, first.session_is_new, shown, left_out
    )
