"""The course of sales over time: the hours of up to two days, otherwise the days."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from ..attribution.report import number
from .periods import Periods, TimeZone
from .report import Line

__all__ = ["Course"]

_HOUR = 3_600_000
_BY_HOUR = 49 * _HOUR  # two days have so many when clocks change
_BEFORE = -1_000_000


class Course:
    """The parts of a period, each with a number from 0 on. Those of the period before count from `first` on."""

    first = _BEFORE

    def __init__(self, periods: Periods, zone: TimeZone) -> None:
        self._span, self._before = periods.span, periods.before
        self._zone = zone.zone
        self._by_hour = self._span.until - self._span.since <= _BY_HOUR
        self._parts = self._index(self._span.until - 1, self._span.since) + 1

    def number(self, at: int) -> int | None:
        """The number of the part of an instant, None for an instant outside of the report."""
        if self._span.since <= at < self._span.until:
            return self._index(at, self._span.since)
        if self._before is not None and self._before.since <= at < self._span.since:
            return _BEFORE + self._index(at, self._before.since)
        return None

    def members(self, lines: Iterable[Line]) -> dict[str, Any]:
        """The sums of each part: sessions, and in each currency orders and net revenue. `lines` have these numbers."""
        found: dict[str, Any] = {"unit": "hour" if self._by_hour else "day", "labels": self._labels()}
        currencies: dict[str, dict[str, list[float]]] = {}
        for line in lines:
            index, ending = (line.number, "") if line.number >= 0 else (line.number - _BEFORE, "_before")
            if index >= self._parts:  # months differ in length
                continue
            of_currency = currencies.setdefault(line.row.currency or "", {})
            for host, name, value in (
                (found, "sessions", line.row.sessions or 0),
                (of_currency, "orders", number(line.row.orders)),
                (of_currency, "net", number(line.row.net)),
            ):
                column = host.setdefault(f"{name}{ending}", [0] * self._parts)
                column[index] = round(column[index] + value, 2)
        return {**found, "currencies": currencies}

    def _labels(self) -> list[str]:
        """The days, or the local times at which the hours begin."""
        begin = self._span.since
        if self._by_hour:
            return [f"{self._local(begin + index * _HOUR):%Y-%m-%d %H:%M}" for index in range(self._parts)]
        return [f"{self._local(begin).date() + timedelta(days=index)}" for index in range(self._parts)]

    def _index(self, at: int, begin: int) -> int:
        if self._by_hour:
            return (at - begin) // _HOUR
        return self._local(at).toordinal() - self._local(begin).toordinal()

    def _local(self, at: int) -> datetime:
        return datetime.fromtimestamp(at / 1000, self._zone)
