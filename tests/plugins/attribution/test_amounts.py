"""The amounts of refunds, and equal currencies."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.plugins.attribution.amounts import MAX_AMOUNT, amount_of_refund, currency_code, is_ignored, number_of

NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
NO_NUMBERS = st.sampled_from([None, True, False, "30.00", "", "1e3", [30], {"amount": 30}, 10**400])
ANYTHING = NUMBERS | NO_NUMBERS


@pytest.mark.parametrize(
    ("amounts", "products", "asked"),
    [
        # The refund's revenue, or else its total, or else its value,
        ((10, 20, 30), [{"price": 5}], 10),
        ((None, 20, 30), [{"price": 5}], 20),
        ((None, None, 30), [{"price": 5}], 30),
        ((0, 20, 30), [{"price": 5}], 0),
        # or else the worth of its items,
        ((None, None, None), [{"price": 5}], 5),
        ((None, None, None), [{"price": 0.1, "quantity": 3}], 0.3),
        ((None, None, None), [{"price": 19.99, "quantity": 2}, {"product_id": "gift"}, {"price": 0.02}], 40),
        ((None, None, None), [{"price": 5, "quantity": 0}], 0),
        ((None, None, None), [{"price": 0}], 0),
        ((None, None, None), [{"price": 5, "quantity": "2"}], 5),
        ((None, None, None), [{"price": 10}, {"price": -3}], 7),
        # Items without a price add nothing.
        ((None, None, None), [{"product_id": "p", "quantity": 2}], 0),
        ((None, None, None), [{"price": None}, {"price": "5"}, {"price": True}], 0),
        # or else the rest of the order.
        ((None, None, None), None, None),
        ((None, None, None), [], None),
        ((None, None, None), {"price": 5}, None),
        ((None, None, None), [5, "5", None, [{"price": 5}]], None),
        # Only numbers are amounts.
        ((None, None, "30.00"), None, None),
        ((None, None, True), [{"price": 5}], 5),
        ((False, 20, 30), None, 20),
        # An amount that is too large is ignored, and never means the rest of the order.
        ((10**400, 20, 30), None, 20),
        ((10**12 + 1, None, 30), None, 30),
        ((10**12, 20, 30), None, 10**12),
        ((-(10**12) - 1, None, None), None, 0),
        ((1e300, None, None), [{"price": 5}], 5),
        ((None, None, None), [{"price": 1e13}, {"price": 5}, {"price": 1, "quantity": 1e13}], 5),
        ((None, None, None), [{"price": 1e7, "quantity": 1e7}], 0),
        # The sign does not count.
        ((-10, 20, 30), None, 10),
        ((None, None, None), [{"price": -5, "quantity": 2}], 10),
        ((None, None, None), [{"price": 5, "quantity": -2}], 10),
    ],
)
def test_the_amount_of_a_refund(amounts: tuple[Any, ...], products: Any, asked: float | None) -> None:
    assert amount_of_refund(amounts, products) == (None if asked is None else Decimal(str(asked)))


ITEMS = st.lists(
    st.fixed_dictionaries({}, optional={"price": ANYTHING, "quantity": ANYTHING, "product_id": st.just("p")})
    | ANYTHING,
    max_size=4,
)


@given(st.tuples(ANYTHING, ANYTHING, ANYTHING), ITEMS | ANYTHING)
@example((None, None, None), [{"price": 1e6, "quantity": 1e5}, {"price": 5e-324, "quantity": 5e-324}])
def test_amounts_are_exact_and_never_negative(amounts: tuple[Any, ...], products: Any) -> None:
    expected: Fraction | None = None
    for amount in amounts:
        if expected is None and number_of(amount) is not None:
            expected = Fraction(str(amount))
    if expected is None and isinstance(products, list):
        for item in products:
            if isinstance(item, dict):
                expected = expected or Fraction(0)
            if (
                isinstance(item, dict)
                and number_of(item.get("price")) is not None
                and not is_ignored(item.get("quantity"))
            ):
                quantity = number_of(item.get("quantity"))
                price = Fraction(str(item["price"])) * Fraction("1" if quantity is None else str(quantity))
                expected = (expected or Fraction(0)) + price
    if (expected is None and any(map(is_ignored, amounts))) or abs(expected or Fraction(0)) > MAX_AMOUNT:
        expected = Fraction(0)
    found = amount_of_refund(amounts, products)
    assert (None if found is None else Fraction(found)) == (None if expected is None else abs(expected))


@given(ANYTHING)
def test_an_amount_is_a_number_of_at_most_a_million_million(value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_amount = is_number and abs(Decimal(str(value))) <= 10**12
    assert number_of(value) is (value if is_amount else None)
    assert is_ignored(value) == (is_number and not is_amount)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_infinite_number_is_not_an_amount(value: float) -> None:
    assert number_of(value) is None
    assert is_ignored(value)


@pytest.mark.parametrize("sent", ["EUR", "eur", "Eur", " EUR", "eur\n", "\u00a0eUr\u3000"])
def test_a_currency_is_compared_trimmed_and_in_capitals(sent: str) -> None:
    assert currency_code(sent) == "EUR"


@pytest.mark.parametrize("sent", [None, "", " ", "\t\n", "\u00a0"])
def test_a_blank_currency_is_none(sent: str | None) -> None:
    assert currency_code(sent) is None


@given(st.text(max_size=200))
def test_the_code_of_a_currency_is_short_and_ignores_case_and_blanks(sent: str) -> None:
    code = currency_code(sent)
    assert code is None or 0 < len(code) <= 80
    assert currency_code(f" {sent}\n") == code
    assert currency_code(sent.upper()) == code
