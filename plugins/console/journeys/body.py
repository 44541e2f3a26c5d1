"""The members of the JSON of a journey, described in docs/operators-page.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ingestd.api.events import Record
from ingestd.api.journeys import JourneyExplanation, JourneyMoment, JourneyPart, JourneyQuery, JourneyRecords
from ingestd.api.panels import Table
from ingestd.api.times import format_time, parse_time
from ingestd.support.record_head import RecordHead, read_head

from ..disclosure import Disclosure, Names, shortened

__all__ = ["body_of"]

_MAX_SESSIONS = 100
_MAX_EVENTS = 60  # of a session
_MAX_MOMENTS = 300
_MAX_EXPLANATIONS = 10
_MAX_NOTES = 20


class _Event(NamedTuple):
    """An event or identify request. `at` is the event's own time."""

    at: int
    record: Record
    head: RecordHead


def body_of(
    found: JourneyRecords,
    parts: Sequence[JourneyPart],
    searched: Mapping[str, Any],
    notes: Sequence[str],
    disclosure: Disclosure,
) -> dict[str, Any]:
    """`disclosure` may hide ids and free texts of callers, except the ids of the query."""
    query = found.query
    names = Names([each for each in (query.order, query.user, query.visitor) if each], disclosure)
    sessions = _sessions_of(_of_people(found))
    left_out = max(0, len(sessions) - _MAX_SESSIONS)
    moments = sorted((each for part in parts for each in part.moments), key=lambda each: each.at)
    explanations = [each for part in parts for each in part.explanations]
    said = [*notes, *(shortened(note) for part in parts for note in part.notes)]
    if left_out:
        said.append(f"{left_out} earlier sessions are not shown.")
    if len(explanations) > _MAX_EXPLANATIONS:
        said.append(f"{len(explanations) - _MAX_EXPLANATIONS} earlier orders are not explained.")
    oldest_at = searched["oldestAt"]
    return {
        "query": _query(query),
        "hidden": names.hide,
        "sessions": [_session(each, names) for each in sessions[-_MAX_SESSIONS:]],
        "moments": [_moment(each, names) for each in moments[-_MAX_MOMENTS:]],
        "orders": [_explanation(each, names) for each in explanations[-_MAX_EXPLANATIONS:]],
        "notes": said[:_MAX_NOTES],
        "searched": {**searched, "oldestAt": None if oldest_at is None else format_time(oldest_at)},
    }


def _of_people(found: JourneyRecords) -> Sequence[Record]:
    """The records for the sessions. An order's refund mostly comes from the shop's backend, which has no journey."""
    if found.query.order is None:
        return found.records
    people = {(lead.tenant, visitor) for lead in found.people for visitor in lead.visitors}
    heads = [(record, read_head(record.body)) for record in found.records]
    return [record for record, head in heads if any((head.tenant, visitor) in people for visitor in head.visitors)]


def _query(query: JourneyQuery) -> dict[str, str | None]:
    members = {"order": query.order, "user": query.user, "visitor": query.visitor, "tenant": query.tenant}
    return {name: shortened(value) for name, value in members.items() if value}


def _sessions_of(records: Iterable[Record]) -> list[list[_Event]]:
    """The events of each session as they were received, in the order of the sessions. Some may not have been found."""
    found: dict[tuple[Any, ...], list[_Event]] = {}
    for record in records:
        if record.type in {"event", "identify"}:
            head = read_head(record.body)
            at = parse_time(head.timestamp)
            event = _Event(record.at if at is None else at, record, head)
            found.setdefault((head.tenant, head.visitor, head.session_id), []).append(event)
    for events in found.values():
        events.sort(key=lambda each: (each.record.at, each.record.position))
    return sorted(found.values(), key=lambda events: events[0].at)


def _session(events: Sequence[_Event], names: Names) -> dict[str, Any]:
    """`user` is that of the last event. `whole`: the first event is the one that began the session."""
    first, last = events[0].head, events[-1].head
    left_out = max(0, len(events) - _MAX_EVENTS)
    shown = [*events[: _MAX_EVENTS // 2], *events[_MAX_EVENTS // 2 + left_out :]]
    return {
        "tenant": last.tenant or "",
        "session": names.name("session", last.session_id),
        "visitor": names.name("visitor", last.visitor),
        "user": names.name("user", last.user),
        "beganAt": format_time(min(each.at for each in shown)),
        "endedAt": format_time(max(each.at for each in shown)),
        "whole": first.session_is_new,
        "events": [_event(each) for each in shown],
        "leftOut": left_out,
    }


def _event(event: _Event) -> dict[str, Any]:
    head = event.head
    return {
        "at": format_time(event.at),
        "type": event.record.type,
        "key": None if head.key is None else shortened(head.key),
        "endpoint": head.endpoint,
        "recordId": head.id or "",
        "linked": head.linked,
    }


def _moment(moment: JourneyMoment, names: Names) -> dict[str, Any]:
    return {
        "at": format_time(moment.at),
        "kind": moment.kind,
        "title": shortened(moment.title),
        "detail": "" if names.hide else shortened(moment.detail),
        "tenant": moment.tenant,
        "visitor": names.name("visitor", moment.visitor),
        "recordId": moment.record_id,
        "removed": moment.is_removed,
    }


def _table(table: Table) -> Table:
    rows = [[shortened(cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]
    return msgspec.structs.replace(table, title=shortened(table.title), rows=rows)


def _explanation(explanation: JourneyExplanation, names: Names) -> dict[str, Any]:
    facts = []
    for fact in explanation.facts:
        value = fact.value if fact.value is None or fact.names is None else names.name(fact.names, fact.value)
        facts.append({"name": fact.name, "value": None if value is None else shortened(value)})
    return {
        "title": shortened(explanation.title),
        "facts": facts,
        "tables": [_table(each) for each in explanation.tables],
        "notes": [shortened(note) for note in explanation.notes],
    }
