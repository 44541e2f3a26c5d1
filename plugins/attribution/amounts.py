"""Amounts and currencies of orders, refunds and items, computed exactly."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context, Decimal, localcontext
from typing import Any

__all__ = [
    "EXACT",
    "MAX_AMOUNT",
    "amount_of_refund",
    "currency_code",
    "decimal",
    "is_ignored",
    "number_of",
    "recorded_currency",
    "worth",
]

EXACT = Context(prec=1500)
"""Enough digits for exact sums and products of all numbers in JSON. Small numbers cost no more with it."""

MAX_AMOUNT = 10**12
"""The largest absolute amount that counts. An absurd amount would hide the digits of all others in a sum."""

_MAX_CURRENCY = 20  # characters: callers choose currencies, and state, records and reports keep them


def number_of(value: Any) -> int | float | None:
    """The value if it is a number within `MAX_AMOUNT`, else None. A boolean is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= MAX_AMOUNT else None  # false for NaN and infinity


def is_ignored(value: Any) -> bool:
    """Whether the value is a number that does not count: too large, or not finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and number_of(value) is None


def decimal(value: float) -> Decimal:
    """The number exactly as written: 0.1 is one tenth."""
    return Decimal(str(value))


def worth(revenue: float | None, total: float | None) -> int | float | None:
    """The value of an order: its revenue, or else its total."""
    return revenue if revenue is not None else total


def amount_of_refund(amounts: Iterable[Any], products: Any) -> Decimal | None:
    """The first of the amounts that is a number, else the value of the items. None without either.

    The sign does not matter, because some clients write refunds as negative numbers. If nothing but a too large
    amount is given, the result is 0, because it must not reverse the whole order.
    """
    amounts = [*amounts]
    given = next((number for number in map(number_of, amounts) if number is not None), None)
    amount = _worth_of_items(products) if given is None else decimal(given)
    if amount is None:
        return Decimal(0) if any(map(is_ignored, amounts)) else None
    return amount.copy_abs() if abs(amount) <= MAX_AMOUNT else Decimal(0)


def _worth_of_items(products: Any) -> Decimal | None:
    """The sum of price times quantity. None without items.

    An item without a price adds nothing, because a refund that names some items must not reverse the whole order.
    """
    items = [item for item in products if isinstance(item, dict)] if isinstance(products, list) else []
    if not items:
        return None
    total = Decimal(0)
    with localcontext(EXACT):
        for item in items:
            price, quantity = number_of(item.get("price")), number_of(item.get("quantity"))
            if price is not None and not is_ignored(item.get("quantity")):
                total += decimal(price) * decimal(1 if quantity is None else quantity)
    return total


def recorded_currency(currency: str | None) -> str | None:
    """The currency in records: as sent, unless it is much longer than any currency."""
    return currency if currency is None or len(currency) <= _MAX_CURRENCY else currency.strip()[:_MAX_CURRENCY]


def currency_code(currency: str | None) -> str | None:
    """The form in which currencies are compared: trimmed and in capitals. None for a blank text."""
    return (currency.strip().upper()[:_MAX_CURRENCY].rstrip() or None) if currency is not None else None
