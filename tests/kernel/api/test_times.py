from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api import times
from ingestd.api.options import since
from ingestd.api.times import FIRST, LAST, format_time, parse_time
from ingestd.plugins.tools.sinks.moments import parse_point


@st.composite
def rfc_3339(draw: st.DrawFn) -> str:
    """Any `date-time` of RFC 3339, section 5.6, most of them at an end of the calendar."""
    year = draw(st.sampled_from([0, 1, 4, 1999, 2000, 9999]) | st.integers(0, 9999))
    month = draw(st.sampled_from([1, 2, 12]) | st.integers(1, 12))
    leap_year = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 29 if month == 2 and leap_year else 28 if month == 2 else 30 if month in {4, 6, 9, 11} else 31
    day = draw(st.sampled_from([1, last]) | st.integers(1, last))
    hour, minute = draw(st.sampled_from([(0, 0), (23, 59)]) | st.tuples(st.integers(0, 23), st.integers(0, 59)))
    second = draw(st.sampled_from([0, 59, 60]) | st.integers(0, 60))
    fraction = draw(st.just("") | st.text("0123456789", min_size=1, max_size=40).map(".{}".format))
    away = draw(st.tuples(st.sampled_from("+-"), st.sampled_from([0, 1, 23]), st.sampled_from([0, 59])))
    offset = draw(st.sampled_from(["Z", "z"]) | st.just("{}{:02}:{:02}".format(*away)))
    between = draw(st.sampled_from("Tt "))
    return f"{year:04}-{month:02}-{day:02}{between}{hour:02}:{minute:02}:{second:02}{fraction}{offset}"


@given(rfc_3339())
@example("0000-01-01T00:00:00+23:59")
@example("0001-01-01T00:00:00+00:01")
@example("9999-12-31T23:59:60-23:59")
def test_every_rfc_3339_time_is_an_instant_that_can_be_shown(text: str) -> None:
    at = parse_time(text)
    assert at is not None
    assert parse_time(format_time(at)) == min(max(at, FIRST), LAST)
    assert since(text) == at
    assert parse_point(text) == (None, at)


@given(st.integers(FIRST, LAST))
def test_a_formatted_time_is_read_back_exactly(at: int) -> None:
    assert parse_time(format_time(at)) == at


@given(st.integers())
def test_any_instant_can_be_shown_and_earlier_ones_sort_first(at: int) -> None:
    assert parse_time(format_time(at)) == min(max(at, FIRST), LAST)
    assert format_time(at - 1) <= format_time(at)


def test_year_0_is_a_proleptic_leap_year() -> None:
    assert (parse_time("0000-03-01T00:00:00Z") or 0) - (parse_time("0000-02-29T00:00:00Z") or 0) == 86_400_000
    assert (parse_time("0001-01-01T00:00:00Z") or 0) - (parse_time("0000-01-01T00:00:00Z") or 0) == 366 * 86_400_000


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
        "0000-00-00T00:00:00Z",
        "2026-11-21T04:05:61Z",
        "2026-11-21T04:05:06+24:00",
        "10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
    ],
)
def test_anything_else_is_not_a_time(text: str) -> None:
    assert parse_time(text) is None


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The milliseconds that pass before each look at a clock of the machine, while the list has any."""
    passed, pauses = 0, [0]

    def look(since: int) -> int:
        nonlocal passed
        passed += 1_000_000 * pauses.pop(0) if pauses else 0
        return since + passed

    clocks = SimpleNamespace(
        time_ns=lambda: look(1_795_233_906_000_000_000),
        clock_gettime_ns=lambda _: look(77_000_000_000),
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
    )
    monkeypatch.setattr(times, "time", clocks)
    yield pauses
    times.go_by_system_clock()


@pytest.mark.parametrize(
    "pauses", [[0, 50, 0], [0, 0, 50], [50, 0, 3, 0, 7, 0, 0, 0, 0, 5], [9, 9, 9, 9, 9, 9, 9, 0, 0]]
)
def test_a_pause_between_two_looks_does_not_make_the_own_clock_wrong(looks: list[int], pauses: list[int]) -> None:
    looks[:] = pauses
    times.keep_own_clock()
    assert times.system_clock_ahead() == 0
