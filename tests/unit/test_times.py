from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.times import format_time, parse_time


@given(st.integers(-62135596800000, 253402300799999))
def test_a_formatted_time_is_read_back_exactly(at: int) -> None:
    assert parse_time(format_time(at)) == at


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), st.integers(-1439, 1439))
def test_any_offset_names_the_same_instant(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_time(moment.isoformat()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T04:05:06Z", "2026-11-21T04:05:06.000Z"),
        ("2026-11-21t04:05:06.5z", "2026-11-21T04:05:06.500Z"),
        ("2026-11-21 04:05:06.7899999+02:00", "2026-11-21T02:05:06.789Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999Z"),
    ],
)
def test_rfc_3339_forms(text: str, expected: str) -> None:
    at = parse_time(text)
    assert at is not None
    assert format_time(at) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21",
        "2026-11-21T04:05Z",
        "2026-11-21T04:05:06",
        "20261121T040506Z",
        "2026-02-30T00:00:00Z",
        "2026-W47-6T04:05:06Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T04:05:06Z\n",
        "٢٠٢٦-11-21T04:05:06Z",
        "0000-01-01T00:00:00Z",
    ],
)
def test_anything_else_is_no_time(text: str) -> None:
    assert parse_time(text) is None
