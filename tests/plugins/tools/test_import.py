"""Rules of `ingestd events import` that hold for any records and messages, with the real plugins and SQLite."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.times import format_time, parse_time
from ingestd.support.ids import named_time_uuid
from tests.support.examples import examples
from tests.support.import_target import Target

TEXTS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
UNKNOWN = st.dictionaries(st.text(string.ascii_lowercase, min_size=1, max_size=2), VALUES, max_size=2)
"""Members of `extra`. Their names are no fields of a request."""
SESSIONS = st.none() | st.uuids().map(str)
IDS = st.uuids(version=4).map(str)
TIMES = st.integers(1_000_000_000_000, 1_700_000_000_000)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record as a daemon writes it."""
    is_event = draw(st.booleans())
    received_at = draw(TIMES)
    timestamp = received_at - draw(st.integers(0, 10_000_000))
    return {
        "id": draw(IDS),
        "type": "event" if is_event else "identify",
        "tenant": draw(st.sampled_from(["shop", "other-shop"])),
        "endpoint": draw(st.sampled_from(["track", "customer-events", "segment"])),
        "signed": draw(st.booleans()),
        "receivedAt": format_time(received_at),
        "timestamp": format_time(timestamp),
        **({"key": "Page View", "data": draw(OBJECTS)} if is_event else {}),
        "anonymousId": draw(st.text(min_size=1, max_size=5)),
        "userId": draw(st.none() | st.text(min_size=1, max_size=5)),
        "sessionId": draw(SESSIONS),
        "sessionIsNew": draw(st.booleans()),
        "dispatchId": draw(st.none() | TEXTS),
        "messageId": draw(st.none() | st.sampled_from(["m-1", "m-2", "m-3"])),
        "context": draw(st.builds(lambda name: {"campaign": {"name": name}}, TEXTS) | st.just({})),
        "extra": draw(UNKNOWN),
        **({} if is_event else {"traits": draw(OBJECTS)}),
        **({} if draw(st.booleans()) else {"linked": draw(st.booleans())}),
    }


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """A message as Segment stores it."""
    at = format_time(draw(TIMES))
    kind = draw(st.sampled_from(["track", "page", "screen", "identify"]))
    return {
        "type": kind,
        "messageId": draw(st.text(min_size=1, max_size=3)),
        "anonymousId": draw(st.sampled_from(["v-1", "v-2", "v-3"])),
        "timestamp": at,
        "receivedAt": at,
        **({"event": "Page View"} if kind == "track" else {}),
        **({"traits": draw(OBJECTS)} if kind == "identify" else {"properties": draw(OBJECTS)}),
    }


def unmarked(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in {"endpoint", "import", "schema"}}


def is_repeated(record: dict[str, Any], kept: Sequence[dict[str, Any]]) -> bool:
    """Whether a record with the same message was received within a day of this one."""

    def message(each: dict[str, Any]) -> tuple[str, str | None]:
        return each["tenant"], each["messageId"]

    same = [received(other) for other in kept if message(other) == message(record)]
    return record["messageId"] is not None and any(abs(received(record) - each) <= 86_400_000 for each in same)


def received(record: dict[str, Any]) -> int:
    at = parse_time(record["receivedAt"])
    assert at is not None
    return at


def copies_of_a_message(*times: str) -> list[dict[str, Any]]:
    """Records with one message, received at these times."""
    record = {
        "type": "event", "tenant": "shop", "endpoint": "track", "signed": False, "key": "Page View", "data": {},
        "anonymousId": "visitor", "userId": None, "sessionId": None, "sessionIsNew": False, "dispatchId": None,
        "messageId": "m-1", "context": {}, "extra": {},
    }  # fmt: skip
    return [
        {"id": str(UUID(int=number)), **record, "receivedAt": at, "timestamp": at} for number, at in enumerate(times, 1)
    ]


@examples(25)
@given(lines=st.lists(records(), max_size=8), state=st.booleans())
@example(
    lines=copies_of_a_message("2021-01-01T00:00:00.000Z", "2021-01-01T00:00:00.001Z", "2001-01-01T00:00:00.000Z"),
    state=False,
)
def test_records_come_out_as_they_went_in_however_often_they_are_imported(
    lines: list[dict[str, Any]], *, state: bool
) -> None:
    kept: list[dict[str, Any]] = []
    for line in lines:
        if line["id"] not in {each["id"] for each in kept} and not is_repeated(line, kept):
            kept.append(line)
    with TemporaryDirectory() as folder:
        target, second = Target(Path(folder), "first"), Target(Path(folder), "second")
        target.take(lines)
        exported = target.exported()
        assert [unmarked(record) for record in exported] == [unmarked(record) for record in kept]
        target.take([*lines, *lines])
        assert target.exported() == exported
        second.take(exported, state=state)
        if not state:
            assert [unmarked(record) for record in second.exported()] == [unmarked(record) for record in kept]
        assert [each["import"]["endpoint"] for each in second.exported()] == [each["endpoint"] for each in kept]


@examples(15)
@given(lines=st.lists(messages(), max_size=8), state=st.booleans())
def test_messages_are_imported_once_whatever_is_repeated(lines: list[dict[str, Any]], *, state: bool) -> None:
    with TemporaryDirectory() as folder:
        once, twice = Target(Path(folder), "once"), Target(Path(folder), "twice")
        once.take(lines, tenant="shop", state=state)
        for _ in range(2):
            twice.take([*lines, *lines], tenant="shop", state=state)
        first, second = once.exported(), twice.exported()
        for record in [*first, *second]:
            del record["import"]["at"]
        assert first == second
        wanted = [*dict.fromkeys(line["messageId"] for line in lines)]
        stored = [record["messageId"] for record in first]
        assert (
            (sorted(stored) == sorted(wanted)) if state else (stored == wanted)
        )  # with state they are sorted a little
        assert all((record["sessionId"] is not None) == state for record in first)


def test_the_id_of_a_time_sorts_by_it_and_depends_on_all_parts() -> None:
    ids = [named_time_uuid(at, "a", "b") for at in (0, 1, 999_999_999_999, 2**48 - 1)]
    assert ids == sorted(ids)
    assert len({*ids, named_time_uuid(0, "a", "c"), named_time_uuid(0, "ab")}) == 6
    assert {each[14] for each in ids} == {"7"}
    assert {each[19] for each in ids} <= {*"89ab"}
