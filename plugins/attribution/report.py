"""The report: sums of orders, revenue and reversals by campaign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from itertools import groupby
from typing import Any, NamedTuple

from .amounts import EXACT, currency_code, decimal, is_ignored, number_of, worth
from .campaigns import DIRECT, OTHERS, TOTAL, Campaign, add_weights
from .record_size import texts_of

__all__ = ["BY", "Report", "Row", "amount_of", "divide", "number", "ranked"]

_Shares = tuple[tuple[Campaign, Decimal], ...]
BY = {name: (name,) for name in ("source", "medium", "name")} | {"campaign": ("source", "medium", "name")}
"""The fields of touchpoints by which the report groups."""

_SUMS = ("orders", "revenue", "reversed")
_CENT = Decimal("0.01")
_FINE = 6  # decimals of sums that count: the page's sums of floats have no more, and both show the same cents


class Row(NamedTuple):
    """One campaign in one currency. `orders` adds up shares of orders. Reversals do not reduce it."""

    campaign: Campaign
    currency: str | None
    orders: Decimal
    revenue: Decimal
    reversed: Decimal
    net: Decimal


class _Order:
    """An order that counts: the shares of its campaigns, and its sums of orders, revenue and reversals."""

    __slots__ = ("currency", "shares", "sums")

    def __init__(self, shares: _Shares, currency: str | None) -> None:
        self.shares = shares
        self.currency = currency
        self.sums = [Decimal(0), Decimal(0), Decimal(0)]


class Report:
    """Adds up attributions and reversals. If `model` is None, each order counts by the model of its attribution.

    `by` is one of `BY`.
    """

    def __init__(self, by: str, model: str | None) -> None:
        self._names = BY[by]
        self._model = model
        self._sums: dict[tuple[Campaign, str | None], list[Decimal]] = {}
        self.not_counted = 0
        """Orders with an amount that is too large to count."""
        self._orders: dict[str, _Order] = {}
        """The orders by the id of their attribution."""
        self._equal: dict[_Shares, _Shares] = {}
        self._reversals: set[str] = set()

    def add(self, body: Mapping[str, Any]) -> None:
        """Add a record. A repeated record counts once.

        A reversal counts in the rows of its attribution, and only if the attribution was added before. A superseded
        order does not count.
        """
        amount = amount_of(body["value"]) or Decimal(0)
        with localcontext(EXACT):
            if body["type"] == "attribution":
                if body["id"] not in self._orders:
                    self.not_counted += is_too_large(body)
                    order = _Order(self._shares_of(body), currency_code(body["value"]["currency"]))
                    self._orders[body["id"]] = order
                    self._count(order, [Decimal(1), amount, Decimal(0)])
            elif body["attributionId"] in self._orders and body["id"] not in self._reversals:
                self._reversals.add(body["id"])
                order = self._orders[body["attributionId"]]
                if body["reason"] == "superseded":
                    self._count(order, [-sum_ for sum_ in order.sums])
                else:
                    self._count(order, [Decimal(0), Decimal(0), amount])

    def _shares_of(self, body: Mapping[str, Any]) -> _Shares:
        campaigns = {event_id: self._campaign_of(texts) for event_id, texts in texts_of(body)}
        touchpoints = body["credits"][self._model or body["model"]]
        weights = add_weights(((campaigns[each["eventId"]], each["weight"]) for each in touchpoints), DIRECT)
        shares = tuple((campaign, sum(map(decimal, parts), Decimal(0))) for campaign, parts in weights.items())
        return self._equal.setdefault(shares, shares)  # many orders have equal shares

    def _campaign_of(self, touchpoint: Mapping[str, Any] | None) -> Campaign:
        if touchpoint is None:
            return OTHERS
        return Campaign("campaign", tuple(touchpoint[name] or None for name in self._names))

    def _count(self, order: _Order, amounts: Sequence[Decimal]) -> None:
        """Add the amounts to the order's sums, and each campaign's share of them to the campaign's sums."""
        for column, amount in enumerate(amounts):
            if not amount:
                continue
            order.sums[column] += amount
            parts = divide(amount, [weight for _, weight in order.shares])
            for (campaign, _), part in zip(order.shares, parts, strict=True):
                sums = self._sums.setdefault((campaign, order.currency), [Decimal(0), Decimal(0), Decimal(0)])
                sums[column] += part

    def rows(self) -> list[Row]:
        with localcontext(EXACT):
            return ranked(
                Row(campaign, currency, orders, revenue, reversed_, revenue - reversed_)
                for (campaign, currency), (orders, revenue, reversed_) in self._sums.items()
                if orders  # 0 if all of them have been superseded
            )

    @staticmethod
    def total(rows: Sequence[Row]) -> Row:
        """The sum of rows of one currency."""
        with localcontext(EXACT):
            sums = (sum(column, Decimal(0)) for column in zip(*(row[2:] for row in rows), strict=True))
            return Row(TOTAL, rows[0].currency, *sums)


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The rows by currency, then by net revenue and orders, the largest first. `OTHERS` comes last in a currency.

    Amounts are in cents, and orders in hundredths. In each currency they add up to the rounded sums of all.
    """
    found: list[Row] = []
    with localcontext(EXACT):
        fine = [row._replace(**{name: round(getattr(row, name), _FINE) for name in _SUMS}) for row in rows]
        fine.sort(
            key=lambda row: (
                row.currency or "", row.campaign == OTHERS, row.reversed - row.revenue, -row.orders, row.campaign.label,
            )
        )  # fmt: skip
        for _, some in groupby(fine, key=lambda row: row.currency):
            block = [*some]
            columns = (_in_cents([getattr(row, name) for row in block]) for name in _SUMS)
            for row, orders, revenue, reversed_ in zip(block, *columns, strict=True):
                found.append(Row(row.campaign, row.currency, orders, revenue, reversed_, revenue - reversed_))
    return found


def _in_cents(amounts: Sequence[Decimal]) -> list[Decimal]:
    """The amounts rounded down, and then up by a cent where most is missing, so that their sum is the rounded sum."""
    found = [amount.quantize(_CENT, ROUND_FLOOR) for amount in amounts]
    missing = (round(sum(amounts, Decimal(0)), 2) - sum(found)) / _CENT
    for index in sorted(range(len(found)), key=lambda index: found[index] - amounts[index])[: int(missing)]:
        found[index] += _CENT
    return found


def amount_of(value: Mapping[str, Any]) -> Decimal | None:
    """The amount of a record's `value`, or None if neither revenue nor total counts."""
    amount = worth(number_of(value["revenue"]), number_of(value["total"]))
    return None if amount is None else decimal(amount)


def is_too_large(body: Mapping[str, Any]) -> bool:
    """Whether an attribution has an amount that is too large to count. An earlier version kept it in `value`."""
    value = body["value"]
    return bool(body.get("notCounted")) or is_ignored(value["revenue"]) or is_ignored(value["total"])


def divide(amount: Decimal, weights: Sequence[Decimal]) -> list[Decimal]:
    """Parts of an amount by weights that sum to about 1. The last part is the rest, so the parts sum to the amount."""
    with localcontext(EXACT):
        parts = [amount * weight for weight in weights[:-1]]
        return [*parts, amount - sum(parts)]


def number(amount: Decimal) -> int | float:
    """The number in cents for JSON. Whole numbers have no decimal point, and huge ones stay finite."""
    with localcontext(EXACT):
        amount = round(amount, 2)
    whole = int(amount)
    return whole if whole == amount or abs(whole) >= 2**53 else float(amount)
