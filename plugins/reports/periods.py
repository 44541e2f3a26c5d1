"""Periods of a report in a shop's time zone: its begin and end, its days, weeks or months, and the period before it."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Literal, NamedTuple

from ingestd.api import times
from ingestd.api.options import since

__all__ = ["EVERY", "Every", "Instant", "Periods", "TimeZone", "instant"]

Every = Literal["day", "week", "month"]
EVERY: tuple[Every, ...] = ("day", "week", "month")

Instant = int | date
"""An instant in milliseconds, or a date, or a time (`datetime`) in the time zone of the report."""

_MONTHS = 12
_FIRST, _LAST = -62_135_500_000_000, 253_402_200_000_000  # milliseconds that have a date in every time zone
_LOCAL = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?))?", re.ASCII)


class TimeZone(str):
    """The name of a time zone of the tz database, such as `Europe/Berlin`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> TimeZone:
        """Raises `ValueError` for a name that this machine does not know."""
        try:
            cls(text).zone  # noqa: B018 - it is checked
        except (ValueError, OSError, LookupError, TypeError):
            raise ValueError('expected a time zone such as "Europe/Berlin"') from None
        return cls(text)

    @property
    def zone(self) -> tzinfo:
        if self == "UTC":
            return UTC
        from zoneinfo import ZoneInfo  # here, so that a daemon without another zone starts sooner

        return ZoneInfo(self)


def instant(text: str) -> Instant:
    """The argument type of commands: a date, a time, with or without an offset, or an age before the present."""
    local = _LOCAL.fullmatch(text)
    try:
        if local is None:
            return since(text)
        return datetime.fromisoformat(text) if local[2] else date.fromisoformat(text)
    except (ValueError, ArgumentTypeError):
        expected = "expected a date such as 2026-11-01, a time such as 2026-11-01T08:00, or an age such as 30d"
        raise ArgumentTypeError(expected) from None


class _Span(NamedTuple):
    """From `since`, included, to `until`, excluded, in milliseconds."""

    since: int
    until: int


class Periods:
    """The parts of a report's time, each with a number. A part is compared with the one of the number before.

    With `every`, these are days, weeks (from Monday) or months. Otherwise 0 is the whole time, and -1 the time before.
    """

    def __init__(
        self,
        since: Instant,
        until: Instant | None,
        zone: TimeZone,
        *,
        every: Every | None = None,
        compare: bool = False,
    ) -> None:
        """A date in `until` is included. None is the present, and has no end for records."""
        self._zone = zone.zone
        self._every = every
        begin = _milliseconds(since, self._zone)
        if isinstance(until, date) and not isinstance(until, datetime) and until < date.max:
            until += timedelta(days=1)
        end = max(begin, times.now()) if until is None else _milliseconds(until, self._zone)
        self.span = _Span(begin, end)
        self.before: _Span | None = None
        """The time that the first period is compared with."""
        self.until = times.LAST if until is None else end
        """The end for records, in milliseconds."""
        self.first = 0 if every is None else self._number(begin)
        """The number of the first period."""
        self.last = 0 if every is None else self._number(end - 1)
        """The number of the period that has the end, or the present."""
        if compare:
            self.before = self._span_before() if every is None else _Span(self._begin(self.first - 1), begin)

    @property
    def since(self) -> int:
        """The first instant that the report needs, in milliseconds."""
        return self.span.since if self.before is None else self.before.since

    def number(self, at: int) -> int | None:
        """The number of the period of an instant, or None for an instant outside of the report."""
        if self.span.since <= at < self.until:
            return 0 if self._every is None else self._number(at)
        if self.before is None or not self.before.since <= at < min(self.before.until, self.span.since):
            return None
        number = -1 if self._every is None else self._number(at)
        return number if number == self.first - 1 else None

    def number_of_day(self, day: date) -> int | None:
        """The number of the period in which a day begins, or None."""
        return self.number(_milliseconds(day, self._zone))

    @property
    def days(self) -> tuple[date, date]:
        """The first and the last day that the report needs."""
        first, last = (
            datetime.fromtimestamp(_bounded(at) / 1000, self._zone).date() for at in (self.since, self.span.until)
        )
        return first, last

    def label(self, number: int) -> str | None:
        """The day, the Monday of the week, or the month, as `2026-11-01` or `2026-11`. None without `every`."""
        if self._every is None:
            return None
        return self._date(number).isoformat()[: 7 if self._every == "month" else 10]

    def text(self, at: int) -> str:
        """An instant in the time zone, for people."""
        return datetime.fromtimestamp(_bounded(at) / 1000, self._zone).strftime("%Y-%m-%d %H:%M")

    def _span_before(self) -> _Span:
        """The time before of the same length: whole months before whole months, and whole days before whole days."""
        first, last = (datetime.fromtimestamp(_bounded(at) / 1000, self._zone) for at in self.span)
        begins, ends = (self._day_begins(at, each) for at, each in zip(self.span, (first, last), strict=True))
        if self.until == times.LAST and begins and first.day == 1 and _month_of(first) == _month_of(last):
            begin = _first_of(_month_of(first) - 1)  # the month so far is compared with that part of the month before
            end = datetime.combine(begin + (last.date() - first.date()), last.time())
            return _Span(_milliseconds(begin, self._zone), min(_milliseconds(end, self._zone), self.span.since))
        if not (begins and ends):
            return _Span(2 * self.span.since - self.span.until, self.span.since)
        if first.day == last.day == 1:
            month = 2 * _month_of(first) - _month_of(last)
            return _Span(_milliseconds(_first_of(month), self._zone), self.span.since)
        day = date.fromordinal(max(1, 2 * first.toordinal() - last.toordinal()))
        return _Span(_milliseconds(day, self._zone), self.span.since)

    def _day_begins(self, at: int, local: datetime) -> bool:
        return _milliseconds(local.date(), self._zone) == at

    def _number(self, at: int) -> int:
        return _NUMBERS[self._every or "day"](datetime.fromtimestamp(_bounded(at) / 1000, self._zone).date())

    def _begin(self, number: int) -> int:
        return _milliseconds(self._date(number), self._zone)

    def _date(self, number: int) -> date:
        if self._every == "month":
            return _first_of(number)
        return date.fromordinal(max(1, number if self._every == "day" else 7 * number + 1))


def _month_of(day: date) -> int:
    return _MONTHS * day.year + day.month - 1


def _first_of(month: int) -> date:
    return date(max(1, month // _MONTHS), month % _MONTHS + 1, 1)


_NUMBERS: dict[Every, Callable[[date], int]] = {
    "day": date.toordinal,
    "week": lambda day: (day.toordinal() - 1) // 7,  # the first day of the calendar is a Monday
    "month": _month_of,
}


def _bounded(at: int) -> int:
    return min(max(at, _FIRST), _LAST)


def _milliseconds(given: Instant, zone: tzinfo) -> int:
    """The instant. Of a time that a change of clocks repeats, it is the first; one that is left out is moved on."""
    if isinstance(given, int):
        return given
    local = given if isinstance(given, datetime) else datetime.combine(given, time())
    try:
        return round(local.replace(tzinfo=zone).timestamp() * 1000)
    except (OverflowError, ValueError):  # beyond the calendar by the offset
        return round(local.replace(tzinfo=UTC).timestamp() * 1000)
