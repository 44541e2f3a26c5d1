"""In every sink, a derived record has the time of receipt of what decided it, and belongs to its visitor.

The journal appends it later, and much later if the order came from a file.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestd.api.events import Record
from ingestd.api.times import format_time, parse_time
from ingestd.plugins.sinks.clickhouse.rows import lines_of
from ingestd.plugins.sinks.clickhouse.rows import row_of as clickhouse_row_of
from ingestd.plugins.sinks.clickhouse.table import Layout
from ingestd.plugins.sinks.columns import read
from ingestd.plugins.sinks.kafka.messages import MessageMaker, TopicTemplate
from ingestd.plugins.sinks.parquet.rows import make_table
from ingestd.plugins.sinks.postgres.rows import row_of

APPENDED = 1_795_000_000_000
DECIDED_AT, ORDER_AT = "2026-10-03T10:00:00.000Z", "2026-10-02T09:30:00.000Z"
DERIVED = {
    "id": "a",
    "tenant": "shop",
    "decidedAt": DECIDED_AT,
    "orderAt": ORDER_AT,
    "anonymousId": "v",
    "userId": None,
}


def record(type_: str, **members: Any) -> Record:
    return Record(type_, APPENDED, json.dumps({"type": type_, **members}, separators=(",", ":")).encode(), 7)


RECORDS = [
    pytest.param(record("attribution", **DERIVED), (DECIDED_AT, ORDER_AT, "shop:v"), id="attribution"),
    pytest.param(record("attribution_reversal", **DERIVED), (DECIDED_AT, ORDER_AT, "shop:v"), id="reversal"),
    pytest.param(
        record("attribution", **DERIVED, **{"import": {"at": format_time(APPENDED)}}),
        (DECIDED_AT, ORDER_AT, "shop:v"),
        id="imported attribution",
    ),
    pytest.param(
        record("erasure", id="e", tenant="shop", erasedAt=format_time(APPENDED)),
        (format_time(APPENDED), None, "shop"),
        id="erasure",
    ),
    pytest.param(
        record(
            "event", id="e", tenant="shop", anonymousId="v", receivedAt=format_time(APPENDED), timestamp=ORDER_AT,
            decidedAt=DECIDED_AT, data={"decidedAt": DECIDED_AT},
        ),
        (format_time(APPENDED), ORDER_AT, "shop:v"),
        id="event with such a member",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("derived", "expected"), RECORDS)
async def test_the_times_and_the_key_of_a_record(derived: Record, expected: tuple[str, str | None, str]) -> None:
    received_at, timestamp, key = expected
    assert format_time(derived.received_at()) == received_at
    columns = read(derived)
    (row,) = make_table([columns], [derived]).to_pylist()
    found = [
        None if row[name] is None else round(row[name].timestamp() * 1000) for name in ("received_at", "timestamp")
    ]
    assert found == [parse_time(received_at), timestamp and parse_time(timestamp)]
    layout = Layout("26.9", frozenset(), range(1971, 2105), (), frozenset())
    (text,) = [text async for text in lines_of([clickhouse_row_of(derived, layout)])]
    line = json.loads(text)
    assert line["received_at"] == received_at
    assert parse_time(line.get("timestamp", "")) == (timestamp and parse_time(timestamp))
    copied = row_of(derived)
    assert _postgres_time(received_at) in copied.head
    assert timestamp is None or _postgres_time(timestamp) in copied.head
    message = MessageMaker(TopicTemplate("events")).make(derived)
    assert (message.key, format_time(message.at)) == (key.encode(), received_at)


def _postgres_time(text: str) -> bytes:
    at = parse_time(text)
    assert at is not None
    return ((at - 946_684_800_000) * 1000).to_bytes(8, signed=True)
