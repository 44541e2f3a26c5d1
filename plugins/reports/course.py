"""The course of sales over time: the hours of up to two days, otherwise the days."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

from ..attribution.amounts import EXACT
from ..attribution.report import number
from .periods import Periods, TimeZone
from .report import Report

__all__ = ["Course"]

_HOUR = 3_600_000
_BY_HOUR = 49 * _HOUR  # two days have so many when clocks change
_BEFORE = -1_000_000


class Course:
    """The parts of a period, each with a number from 0 on. Those of the period before have negative numbers."""

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

    @staticmethod
    def whole(number: int) -> int:
        """0 for the parts of the period, -1 for those of the period before."""
        return 0 if number >= 0 else -1

    def members(self, report: Report) -> dict[str, Any]:
        """The sums of each part: sessions, and in each currency orders and net revenue, of a report by these parts."""
        found: dict[str, Any] = {"unit": "hour" if self._by_hour else "day", "labels": self._labels()}
        currencies: dict[str, Any] = {}
        for part, sessions in report.sessions().items():
            self._add(found, "sessions", part, sessions)
        with localcontext(EXACT):
            for order in report.orders():
                of_currency = currencies.setdefault(order.currency or "", {})
                self._add(of_currency, "orders", order.number, 1)
                self._add(of_currency, "net", order.number, order.revenue - order.reversed)
        for columns in currencies.values():
            columns |= {name: [number(Decimal(each)) for each in column] for name, column in columns.items()}
        return {**found, "currencies": currencies}

    def _add(self, columns: dict[str, list[Any]], name: str, part: int, value: int | Decimal) -> None:
        index, ending = (part, "") if part >= 0 else (part - _BEFORE, "_before")
        if index < self._parts:  # months differ in length
            columns.setdefault(f"{name}{ending}", [0] * self._parts)[index] += value

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
