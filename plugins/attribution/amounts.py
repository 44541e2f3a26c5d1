"""Amounts and currencies: what orders, refunds and items are worth, computed exactly."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from decimal import Context, Decimal, localcontext
from typing import Any

__all__ = ["EXACT", "amount_of_refund", "currency_code", "decimal", "finite_number", "worth"]

EXACT = Context(prec=1500)
"""Enough digits for exact sums and products of any numbers that JSON brings. Small numbers cost no more for it."""

_MAX_CURRENCY = 80  # characters: callers choose currencies, and state and reports keep them


def finite_number(value: Any) -> int | float | None:
    """The value if it is a number that can be an amount, else None. A boolean is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None  # an integer may be larger than any float


def decimal(value: float) -> Decimal:
    """The number as it was written: 0.1 is one tenth."""
    return Decimal(str(value))


def worth(revenue: float | None, total: float | None) -> int | float | None:
    """What an order is worth: its revenue, or else its total."""
    return revenue if revenue is not None else total


def amount_of_refund(amounts: Iterable[Any], products: Any) -> Decimal | None:
    """The first of the amounts that is a number, else what the items are worth. None where there is neither.

    An amount counts by its size: some clients write refunds as negative numbers.
    """
    numbers = (number for number in map(finite_number, amounts) if number is not None)
    given = next(numbers, None)
    amount = _worth_of_items(products) if given is None else decimal(given)
    return None if amount is None else amount.copy_abs()


def _worth_of_items(products: Any) -> Decimal | None:
    """The sum of price times quantity. None where there is no item.

    An item without a price adds nothing: a refund that names some items must not take the whole order back.
    """
    items = [item for item in products if isinstance(item, dict)] if isinstance(products, list) else []
    if not items:
        return None
    total = Decimal(0)
    with localcontext(EXACT):
        for item in items:
            price, quantity = finite_number(item.get("price")), finite_number(item.get("quantity"))
            if price is not None:
                total += decimal(price) * decimal(1 if quantity is None else quantity)
    return total


def currency_code(currency: str | None) -> str | None:
    """The form in which currencies are compared: trimmed and in capitals. A blank one is none."""
    return (currency.strip().upper()[:_MAX_CURRENCY].rstrip() or None) if currency is not None else None
