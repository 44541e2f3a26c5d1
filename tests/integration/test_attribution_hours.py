"""What the operators' page says that campaigns brought in the last day."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ingestd.plugins.attribution.hours import OTHERS, Decided, add_all, read_day, sum_up
from ingestd.plugins.attribution.journeys import Candidates
from ingestd.plugins.attribution.marks import Order
from ingestd.plugins.attribution.models import MODELS
from ingestd.plugins.attribution.panel import show
from ingestd.plugins.attribution.touches import Touch
from ingestd.store import Store
from tests.support.backends import sqlite_backend

HOUR = 3_600_000
NOW = 500_000 * HOUR + 1234
HALF_LIFE = 7 * 24 * HOUR


def decided(
    *sources: str | None,
    at: int = NOW,
    revenue: float | None = 10,
    currency: str | None = "EUR",
    tenant: str = "shop",
    order_id: str | None = "o",
    signed: bool = False,
) -> Decided:
    """An order with a touch of each source, an hour apart."""
    touches = [
        (
            Touch(
                number, at - (len(sources) - number) * HOUR, f"e{number}", None, source, None, None, None, None, None
            ),
            "v",
        )
        for number, source in enumerate(sources)
    ]
    order = Order(tenant, "e", 100, at, at, order_id, "v", None, revenue, None, currency, signed)
    return Decided(order, Candidates(touches, [], 0), supersedes=signed)


async def sums(
    store: Store, *steps: Sequence[Decided], now: int = NOW
) -> dict[tuple[str, str, str | None], list[float]]:
    """The orders of each model, after these steps."""
    for step in steps:
        state = store.begin(NOW, step=True)
        await add_all(state, step, HALF_LIFE)
        await store.commit(state)
    rows = sum_up(await read_day(store.begin(now)))
    return {(row.tenant, row.campaign, row.currency): [round(each, 6) for each in row.orders] for row in rows}


async def test_each_model_gives_its_shares_and_they_sum_to_the_orders(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        steps = [decided("a", "b", "c"), decided()], [decided("a", at=NOW - 5 * HOUR)]
        found = await sums(backend.store, *steps)
        shares = {campaign: dict(zip(MODELS, orders, strict=True)) for (_, campaign, _), orders in found.items()}
        assert shares["(direct)"] == dict.fromkeys(MODELS, 1)
        assert [shares[each]["last_touch"] for each in "abc"] == [1, 0, 1]
        assert [shares[each]["first_touch"] for each in "abc"] == [2, 0, 0]
        assert [shares[each]["position_based"] for each in "abc"] == [1.4, 0.2, 0.4]
        for model in MODELS:
            assert sum(each[model] for each in shares.values()) == pytest.approx(3)


async def test_what_is_older_than_a_day_is_neither_shown_nor_kept(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        old = decided("old", at=NOW - 24 * HOUR)
        assert await sums(backend.store, [old, decided("new")]) == {("shop", "new", "EUR"): [1] * 5}
        assert len(await sums(backend.store, now=NOW + 23 * HOUR)) == 1
        assert await sums(backend.store, now=NOW + 24 * HOUR) == {}


async def test_however_many_campaigns_there_are_what_is_kept_is_bounded_and_no_order_is_lost(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        campaigns = [decided("x" * 200 + str(number), f"c{number}") for number in range(300)]
        currencies = [decided("a", currency=f"C{number}" * 50) for number in range(100)]
        found = await sums(backend.store, campaigns, currencies)
        assert len(found) <= 81
        assert ("", OTHERS, "EUR") in found
        assert all(len(campaign) <= 80 and len(currency or "") <= 80 for _, campaign, currency in found)
        for place in range(len(MODELS)):
            assert sum(orders[place] for orders in found.values()) == pytest.approx(400)


@pytest.mark.parametrize("together", [True, False])
async def test_an_order_that_was_superseded_does_not_count(tmp_path: Path, *, together: bool) -> None:
    """Whether both come in one step or not, in the same hour or not, and whatever rows it was counted in."""
    crowd = [decided(f"c{number}", order_id=None) for number in range(80)]
    public = [
        decided("thief", "shared", at=NOW - HOUR, revenue=1000, order_id="o-1"),
        decided("thief", revenue=70, order_id="o-2"),  # among the others
        decided("thief", at=NOW - 30 * HOUR, order_id="o-3"),  # not of the last day
    ]
    signed = [decided("shop", order_id=f"o-{number}", signed=True) for number in (1, 2, 3)]
    steps = [[*crowd, *public, *signed]] if together else [crowd, public, signed]
    async with sqlite_backend(tmp_path / "with") as one, sqlite_backend(tmp_path / "without") as other:
        found = await sums(one.store, *steps)
        rows = sum_up(await read_day(one.store.begin(NOW)))
        assert ("shop", "thief", "EUR") not in found
        expected = await sums(other.store, [*crowd, *signed])
        assert {name: pytest.approx(shares) for name, shares in expected.items()} == found
        assert sum(row.revenue[0] for row in rows) == pytest.approx(830)
        assert [entry async for entry in one.store.scan("attribution-counted")] == []


async def test_case_and_blanks_of_a_currency_do_not_matter(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        step = [decided("a", currency=currency) for currency in ("EUR", "eur", " Eur\n", None, "", " ")]
        assert await sums(backend.store, step) == {("shop", "a", "EUR"): [3] * 5, ("shop", "a", None): [3] * 5}


async def test_currencies_are_told_apart_and_shops_named_where_there_are_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.times.now", lambda: NOW)
    async with sqlite_backend(tmp_path) as backend:
        await sums(backend.store, [decided("a"), decided("a", tenant="other"), decided("b", currency="SEK", revenue=3)])
        panel = await show(backend.store, "linear")
        assert panel.chosen == "linear"
        assert {table.title for table in panel.tables} == {"EUR", "SEK"}
        first = panel.tables[0]
        assert [*first.rows] == [("other: a", 1, 10), ("shop: a", 1, 10)]
        assert first.total == ("Total", 2, 20)
