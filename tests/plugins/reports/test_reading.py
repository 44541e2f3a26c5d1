"""What a report reads of records: the page of an event, and the products of an order."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.plugins.reports.reading import page_path, products
from tests.support.attribution import Shop

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(-1e300, 1e300) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["price", "quantity", "name"]), each),
    max_leaves=8,
)  # fmt: skip


def on_page(**page: Any) -> Record:
    return Shop().event("Page View", "v", context={"page": page})


@pytest.mark.parametrize(
    ("page", "path"),
    [
        ({"path": "/sale", "url": "https://shop.example/other"}, "/sale"),
        ({"path": "/sale?utm_source=x#top"}, "/sale"),
        ({"url": "https://shop.example/shoes/?a=/b"}, "/shoes/"),
        ({"url": "https://shop.example"}, "/"),
        ({"url": "https://shop.example/gr%C3%B6%C3%9Fe"}, "/größe"),
        ({"url": "/relative"}, "/relative"),
        ({"url": "shop.example/x"}, None),
        ({"url": "https://[broken/"}, None),
        ({"url": 7, "path": "sale"}, None),
        ({"path": "/" + "x" * 5000}, "/" + "x" * 255),
        ({}, None),
    ],
)
def test_the_path_of_a_page(page: dict[str, Any], path: str | None) -> None:
    assert page_path(on_page(**page)) == path


def order(lines: Any) -> Record:
    return Shop().event("Order Completed", "v", {"order_id": "o", "products": lines})


@pytest.mark.parametrize(
    ("lines", "shares"),
    [
        ([{"name": "a", "price": 3, "quantity": 2}, {"name": "b", "price": 2}], {"a": 0.75, "b": 0.25}),
        ([{"name": "a", "price": 1}, {"name": " a ", "price": 1}, {"sku": "s", "price": 2}], {"a": 0.5, "s": 0.5}),
        (
            [{"name": "a"}, {"name": "a"}, {"product_id": "p", "price": 0}, {"ean": "e"}],
            {"a": 0.5, "p": 0.25, "e": 0.25},
        ),
        ([{"name": "a", "price": 5}, {"name": "free"}, {"name": "back", "price": -5}], {"a": 1}),
        ([{"name": "a", "price": 1e300}, {"price": 2, "quantity": "3"}], {None: 1}),
        ([], {None: 1}),
        ("none", {None: 1}),
        ([7, None], {None: 1}),
    ],
)
def test_an_order_is_divided_by_price_times_quantity(lines: Any, shares: dict[str | None, float]) -> None:
    assert {name: float(share) for name, share in products(order(lines))} == shares


@given(JSON)
def test_any_products_have_shares_that_sum_to_the_whole(lines: Any) -> None:
    found = products(order(lines))
    assert found
    assert all(share > 0 for _, share in found)
    assert abs(sum((Fraction(share) for _, share in found), Fraction(0)) - 1) < Fraction(1, 10**20)
    assert all(isinstance(share, Decimal) for _, share in found)


def test_an_order_of_thousands_of_products_has_a_hundred_rows() -> None:
    found = products(order([{"name": f"p-{index}", "price": 1 + index // 3000} for index in range(3100)]))
    assert len(found) == 100
    shares = dict(found)
    assert float(shares["(others)"]) == pytest.approx((3200 - 99 * 2) / 3200)
    assert float(sum(shares.values())) == 1
