"""Journal records for tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ingestd.api.events import Record
from ingestd.support.ids import time_uuid

__all__ = ["TEXTS", "make_records", "make_records_of_every_type", "placed"]

_AT = 1_795_233_906_000
_TIME = "2026-11-21T04:05:06.000Z"

TEXTS = (
    "",
    "zażółć gęślą jaźń",
    "🛒🧾",
    "日本語",
    "\x00",
    "\x1f\x7f",
    '"\\/',
    "a\nb\r\nc",
    "\u2028\u2029",
    "\ufeff",
)
"""Texts that are easily lost or changed."""

_positions = itertools.count(1)


def make_records(count: int, **members: Any) -> list[Record]:
    """Event records as in the journal, each with a different id. `members` replace or add members."""
    records = []
    for number in range(1, count + 1):
        value = {
            "id": time_uuid(),
            "type": "event",
            "tenant": "shop",
            "endpoint": "track",
            "signed": False,
            "receivedAt": _TIME,
            "timestamp": _TIME,
            "key": "Page View",
            "data": {"number": number},
            "anonymousId": f"visitor-{number}",
            "userId": None,
            "sessionId": "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11",
            "sessionIsNew": False,
            "dispatchId": None,
            "messageId": None,
            "context": {},
            "extra": {},
        }
        records.append(_record({**value, **members}, number))
    return records


def make_records_of_every_type() -> list[Record]:
    """A record of each of ingestd's types except events, and one of a plugin with only an id and a type."""
    common = {"tenant": "shop", "anonymousId": "visitor-1", "userId": None}
    received = {**common, "endpoint": "identify", "signed": False, "receivedAt": _TIME, "timestamp": _TIME}
    decided = {
        **common,
        "decidedAt": _TIME,
        "orderId": "o-1",
        "orderEventId": time_uuid(),
        "orderAt": _TIME,
        "value": {"revenue": 40, "total": 49.9, "currency": "EUR"},
        "model": "last_touch",
        "touchpoint": None,
        "credits": {},
    }
    order = {"windowSeconds": 604_800, "touchpoints": [], "ignored": [], "leftOut": 0}
    reversal = {"attributionId": time_uuid(), "reason": "refund", "cause": time_uuid()}
    values: list[dict[str, Any]] = [
        {
            "type": "identify",
            **received,
            "traits": {"email": "ada@shop.example"},
            "linked": False,
            "context": {},
            "extra": {},
        },
        {"type": "attribution", **decided, **order},
        {"type": "attribution_reversal", **decided, **reversal},
        {"type": "erasure", "tenant": "shop", "erasedAt": _TIME, "userId": "u-17", "anonymousIds": ["visitor-1"]},
        {"type": "shop:receipt"},
    ]
    return [_record({"id": time_uuid(), **value}) for value in values]


def _record(value: Mapping[str, Any], number: int = 1) -> Record:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Record(value["type"], _AT + number, body, number)


def placed(record: Record) -> Record:
    """The record with the next position, as the journal returns it."""
    return replace(record, position=next(_positions))
