"""Rows of the report and of the operators' page: sums of orders, revenue and reversals by campaign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext
from itertools import groupby
from typing import Any, NamedTuple

from .amounts import EXACT, decimal, is_ignored, number_of, worth
from .campaigns import OTHERS, TOTAL, Campaign

__all__ = ["Row", "amount_of", "divide", "is_too_large", "money", "number", "ranked", "total"]

_SUMS = ("orders", "revenue", "reversed", "new", "returning")
_CENT = Decimal("0.01")
_LARGE = Decimal(10) ** 12
_FINE = 6  # decimals of sums that count: the page's sums of floats have no more, and both show the same cents


class Row(NamedTuple):
    """One campaign in one currency. `orders` adds up shares of orders. Reversals do not reduce it.

    The members with a default are None where nobody has counted them. Sessions have no currency: they are in the rows
    of one.
    """

    campaign: Campaign
    currency: str | None
    orders: Decimal
    revenue: Decimal
    reversed: Decimal
    net: Decimal
    sessions: int | None = None
    visitors: int | None = None
    new: Decimal | None = None
    """Orders that are the first of their customer."""
    returning: Decimal | None = None
    assisted: int | None = None
    """Orders in which the campaign had a touchpoint and no credit."""
    converted: Decimal | None = None
    """Orders in all currencies, in the row that has the sessions."""
    cost: Decimal | None = None
    clicks: int | None = None
    impressions: int | None = None
    exact_orders: Decimal | None = None
    exact_net: Decimal | None = None
    """Not rounded: a row may have a thousandth of an order."""


def total(rows: Sequence[Row]) -> Row:
    """The sum of rows of one currency. Visitors are not added up, because one may be in several rows."""
    with localcontext(EXACT):
        columns = (
            [each for each in column if each is not None] for column in zip(*(row[2:] for row in rows), strict=True)
        )
        sums: list[Any] = [sum(column) if column else None for column in columns]
    return Row(TOTAL, rows[0].currency, *sums)._replace(visitors=None)


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The rows by currency, then by net revenue, orders and sessions, the largest first. `OTHERS` comes last.

    Amounts are in cents, and orders in hundredths. In each currency they add up to the rounded sums of all.
    """
    found: list[Row] = []
    with localcontext(EXACT):
        fine = [
            row._replace(
                **{name: _fine(getattr(row, name)) for name in _SUMS}, exact_orders=row.orders, exact_net=row.net
            )
            for row in rows
        ]
        fine.sort(
            key=lambda row: (
                row.currency or "", row.campaign.kind == OTHERS.kind, row.reversed - row.revenue, -row.orders,
                -(row.sessions or 0), row.campaign.label,
            )
        )  # fmt: skip
        for _, some in groupby(fine, key=lambda row: row.currency):
            block = [*some]
            columns = {name: _in_cents([getattr(row, name) for row in block]) for name in _SUMS}
            for index, row in enumerate(block):
                cents = row._replace(**{name: column[index] for name, column in columns.items()})
                found.append(cents._replace(net=cents.revenue - cents.reversed))
    return found


def _fine(amount: Decimal | None) -> Any:
    return None if amount is None else round(amount, _FINE)


def _in_cents(amounts: Sequence[Decimal | None]) -> Sequence[Any]:
    """The amounts rounded down, and then up by a cent where most is missing, so that their sum is the rounded sum."""
    given = [amount for amount in amounts if amount is not None]
    if len(given) < len(amounts):
        return amounts
    found = [amount.quantize(_CENT, ROUND_FLOOR) for amount in given]
    missing = (round(sum(given, Decimal(0)), 2) - sum(found)) / _CENT
    for index in sorted(range(len(found)), key=lambda index: found[index] - given[index])[: int(missing)]:
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


def money(amount: Decimal) -> str:
    """The amount with two decimals for people, or in exponent notation from 10^12 on."""
    return f"{amount:z.2f}" if abs(amount) < _LARGE else f"{amount:.2e}"
