"""The periods of a report: dates and times in the shop's time zone, days of 23 and 25 hours, and the time before."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.times import now, parse_time
from ingestd.plugins.reports.periods import EVERY, Every, Periods, TimeZone, instant

HOUR = 3_600_000
BERLIN = TimeZone("Europe/Berlin")


def at(text: str) -> int:
    found = parse_time(text)
    assert found is not None
    return found


def periods(
    since: str,
    until: str | None = None,
    *,
    zone: str = "Europe/Berlin",
    every: Every | None = None,
    compare: bool = False,
) -> Periods:
    end = None if until is None else instant(until)
    return Periods(instant(since), end, TimeZone.parse(zone), every=every, compare=compare)


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-01", "2026-11-30", ("2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z")),
        ("2026-03-29", "2026-03-29", ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")),  # 23 hours
        ("2026-10-25", "2026-10-25", ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z")),  # 25 hours
        ("2026-11-01T08:30", "2026-11-01 09:00:30", ("2026-11-01T07:30:00Z", "2026-11-01T08:00:30Z")),
        ("2026-11-01T08:30:00Z", "2026-11-01T08:31:00+05:30", ("2026-11-01T08:30:00Z", "2026-11-01T03:01:00Z")),
        ("2026-10-25T02:30", "2026-10-25T03:00", ("2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z")),  # the first 02:30
        ("2026-03-29T02:30", "2026-03-29T03:30", ("2026-03-29T01:30:00Z", "2026-03-29T01:30:00Z")),  # there is no 02:30
    ],
)
def test_dates_and_times_are_of_the_time_zone(since: str, until: str, expected: tuple[str, str]) -> None:
    assert tuple(periods(since, until).span) == tuple(map(at, expected))


def test_a_day_without_a_midnight_begins_with_its_first_instant() -> None:
    assert periods("2026-04-24", "2026-04-24", zone="Africa/Cairo").span == (
        at("2026-04-23T22:00:00Z"), at("2026-04-24T21:00:00Z"),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-02-30", "2026-1-1", "2026-11-01T25:00", "", "30"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a date such as"):
        instant(text)


@pytest.mark.parametrize("name", ["Europe/Berlni", "Europe", "", "../../etc/passwd", "/etc/passwd", "x\0", "CEST+2", 7])
def test_unknown_time_zones_are_refused(name: object) -> None:
    with pytest.raises(ValueError, match="expected a time zone such as"):
        TimeZone.parse(name)


@pytest.mark.parametrize(
    ("since", "until", "before"),
    [
        ("2026-11-01", "2026-11-30", ("2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z")),  # the month before
        ("2026-10-01", "2026-12-31", ("2026-06-30T22:00:00Z", "2026-09-30T22:00:00Z")),
        ("2026-01-01", "2026-12-31", ("2024-12-31T23:00:00Z", "2025-12-31T23:00:00Z")),
        ("2026-10-25", "2026-10-25", ("2026-10-23T22:00:00Z", "2026-10-24T22:00:00Z")),  # a day, and not 25 hours
        ("2026-11-02", "2026-11-08", ("2026-10-25T23:00:00Z", "2026-11-01T23:00:00Z")),
        ("2026-11-01T00:00:00Z", "2026-11-02T12:00:00Z", ("2026-10-30T12:00:00Z", "2026-11-01T00:00:00Z")),
    ],
)
def test_the_time_before_is_of_the_same_length(since: str, until: str, before: tuple[str, str]) -> None:
    made = periods(since, until, compare=True)
    assert made.before == tuple(map(at, before))
    begin, end = map(at, before)
    assert [made.number(each) for each in (begin - 1, begin, end - 1, end)] == [None, -1, -1, 0]
    assert made.since == begin


@pytest.mark.parametrize(
    ("now_", "before"),
    [
        ("2026-11-28T20:15:00Z", ("2026-09-30T22:00:00Z", "2026-10-28T20:15:00Z")),
        ("2026-03-31T21:30:00Z", ("2026-01-31T23:00:00Z", "2026-02-28T23:00:00Z")),  # February is shorter
        ("2026-12-01T10:00:00Z", ("2026-10-31T23:00:00Z", "2026-11-01T10:00:00Z")),
    ],
)
def test_the_month_so_far_is_compared_with_that_part_of_the_month_before(
    monkeypatch: pytest.MonkeyPatch, now_: str, before: tuple[str, str]
) -> None:
    monkeypatch.setattr("ingestd.api.times.now", lambda: at(now_))
    made = periods(f"{now_[:8]}01", compare=True)
    assert made.before == tuple(map(at, before))
    assert made.number(made.span.since - 1) == (-1 if made.before.until == made.span.since else None)


def test_without_an_end_the_time_before_is_as_long_as_from_then_to_now() -> None:
    made = periods("2h", compare=True)
    assert made.before is not None
    assert made.before.until - made.before.since == pytest.approx(2 * HOUR, abs=60_000)
    assert made.number(now() + HOUR) == 0  # records may come while the report is made


@pytest.mark.parametrize(
    ("every", "labels"),
    [
        ("day", ["2026-10-24", "2026-10-25", "2026-10-26", "2026-11-01"]),
        ("week", ["2026-10-19", "2026-10-19", "2026-10-26", "2026-10-26"]),
        ("month", ["2026-10", "2026-10", "2026-10", "2026-11"]),
    ],
)
def test_days_weeks_and_months(every: Every, labels: list[str]) -> None:
    made = periods("2026-10-01", "2026-11-30", every=every)
    instants = map(
        at, ["2026-10-24T21:59:59.999Z", "2026-10-25T22:59:59.999Z", "2026-10-25T23:00:00Z", "2026-11-01T12:00:00Z"]
    )
    numbers = [made.number(each) for each in instants]
    assert [made.label(each) for each in numbers if each is not None] == labels
    assert made.number(at("2026-09-30T21:59:59.999Z")) is None


@given(st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)), st.sampled_from(EVERY), st.integers(0, 400 * 24))
def test_each_period_is_compared_with_the_one_before(begin: datetime, every: Every, hours: int) -> None:
    made = Periods(begin, begin + timedelta(days=30), BERLIN, every=every, compare=True)
    instant_ = made.since + hours * HOUR
    local = datetime.fromtimestamp(instant_ / 1000, ZoneInfo("Europe/Berlin")).date()
    number = made.number(instant_)
    if number is None:
        # Behind the end, or in the part of the first period that is before the begin.
        assert instant_ >= made.until or instant_ < made.span.since
        return
    starts: dict[Every, date] = {
        "day": local, "week": local - timedelta(days=local.weekday()), "month": local.replace(day=1),
    }  # fmt: skip
    assert made.label(number) == starts[every].isoformat()[: 7 if every == "month" else 10]
    assert (number >= made.first) == (instant_ >= made.span.since)


@pytest.mark.parametrize("since", ["0000-01-01T00:00:00Z", "0001-01-01", "9999-12-31"])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Adak", "UTC"])
@pytest.mark.parametrize("every", [None, *EVERY])
def test_the_ends_of_the_calendar(since: str, zone: str, every: Every | None) -> None:
    made = periods(since, "9999-12-31", zone=zone, every=every, compare=True)
    for each in (made.span.since, at("2026-01-01T00:00:00Z"), made.span.until - 1):
        number = made.number(each)
        if number is not None:
            made.label(number)
            assert made.text(each)
