"""The rows of the page: one for each event that it shows, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from ingestd.api import times
from ingestd.api.outcomes import Outcome
from ingestd.pipeline.outcomes import problem
from ingestd.support.json_text import decode_json

from ..disclosure import Disclosure
from .arrivals import MOST_BYTES, Arrival

__all__ = ["row_of"]

_LONGEST = 200  # characters of a caller's text in a row


class _Row(msgspec.Struct, rename="camel", omit_defaults=True):
    """Members without a value are omitted."""

    number: int
    at: str
    request_id: str
    endpoint: str
    outcome: str
    type: str
    key: str = ""
    sent_key: str = ""
    """The key of an event without a known key, as it was sent."""
    index: int | None = None
    events: int = 1
    visitor: str = ""
    reason: str = ""
    pointer: str = ""
    message: str = ""
    faults: int = 0
    detail: msgspec.Raw | dict[str, Any] | None = None
    """The record or the problem."""


def row_of(number: int, arrival: Arrival, disclosure: Disclosure) -> bytes:
    """The row of an event, as far as its data may be shown."""
    source, refused = arrival.source, arrival.refused
    row = _Row(
        number=number,
        at=times.format_time(source.at),
        request_id=source.request_id,
        endpoint=source.endpoint.operation(batch=source.batch and source.intake is None),
        outcome=arrival.outcome.value,
        type="identify" if arrival.endpoint.identifies else "event",
        key=arrival.key,
        index=arrival.index,
        events=arrival.events,
    )
    if refused is not None:
        row.pointer, row.reason = refused.fault or ("", refused.code)
        row.faults = len(refused.errors)
    if disclosure.level == "all":
        _show_all(row, arrival)
    elif disclosure.level == "shape":
        _show_shape(row, arrival, disclosure)
    body = msgspec.json.encode(row)
    if len(body) > 2 * MOST_BYTES:
        row.detail = {"note": f"These are {len(body)} bytes, too many for this page."}
        body = msgspec.json.encode(row)
    return body


def _show_all(row: _Row, arrival: Arrival) -> None:
    row.visitor = arrival.ids.anonymous_id[:_LONGEST]
    if not arrival.key:
        row.sent_key = arrival.ids.key[:_LONGEST]
    refused = arrival.refused
    if refused is not None:
        first = refused.errors[0] if refused.errors else None
        row.pointer, row.message = first or ("", refused.detail)
        row.pointer, row.message = row.pointer[:_LONGEST], row.message[:_LONGEST]
        row.detail = msgspec.Raw(problem(refused, intake=arrival.source.intake).body)
    elif arrival.record is not None:
        row.detail = msgspec.Raw(arrival.record)
    else:
        row.detail = _absence(arrival)


def _show_shape(row: _Row, arrival: Arrival, disclosure: Disclosure) -> None:
    visitor = arrival.ids.anonymous_id
    row.visitor = disclosure.pseudonym(visitor) if visitor else ""
    refused = arrival.refused
    if refused is not None:
        if refused.errors:
            first = refused.errors[0]
            row.pointer = disclosure.pointer(first.pointer)[:_LONGEST]
            row.message = disclosure.message(first.message)
        row.detail = disclosure.problem(refused)
    elif arrival.record is not None:
        row.detail = disclosure.record(decode_json(arrival.record))
    else:
        row.detail = _absence(arrival)


def _absence(arrival: Arrival) -> dict[str, str] | None:
    """Why an accepted event has no record to show."""
    if arrival.outcome is not Outcome.ACCEPTED:
        return None
    return {"note": f"The record has more than {MOST_BYTES // 1024} KiB. `ingestd events export` prints it."}
