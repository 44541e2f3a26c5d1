"""The operators' page has the figures of `ingestd attribution report`, by period, tenant and model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count, repeat
from pathlib import Path

import msgspec
import pytest

from ingestd.api.events import Record
from ingestd.api.panels import Panel
from ingestd.api.store import state_key
from ingestd.api.times import parse_time
from ingestd.plugins.attribution.campaigns import DIRECT_DIGEST, OTHERS
from ingestd.plugins.attribution.marks import DecidedOrder
from ingestd.plugins.attribution.models import MODELS, Model
from ingestd.plugins.attribution.panel import show
from ingestd.plugins.attribution.report import Row, money
from ingestd.plugins.attribution.rollups import (
    DAY,
    HOUR,
    PERIODS,
    add_all,
    order_change,
    read,
    read_tenants,
    reversal_change,
    rows_of,
    sum_up,
)
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.report import Report
from tests.support.attribution import START, Attribution, Shop, attributing
from tests.support.attribution_reference import Rules

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

RULES = Rules(window=2 * DAY, late=DAY, model="last_touch", max_touches=10, max_visitors=4)


def busy(events: int, seed: int) -> list[Record]:
    """Six weeks of two shops: public and signed orders, and refunds that are partial, repeated or early."""
    chance, shop, records = random.Random(seed), Shop(), []
    for number in range(events):
        shop.now += chance.randrange(2 * 42 * DAY // events)
        visitor, tenant = f"visitor-{chance.randrange(12)}", chance.choice(["shop", "shop", "outlet"])
        order_id, signed = f"o-{number - chance.choice([0, 0, 1, 2, 5])}", chance.random() < 0.5
        kind = chance.random()
        if kind < 0.4:
            campaign = {name: chance.choice(["a", "b", "c", ""]) for name in ("source", "medium", "name", "term")}
            records.append(shop.event("Page View", visitor, context={"campaign": campaign}, tenant=tenant))
        elif kind < 0.7:
            amounts = {"revenue": chance.choice([40, 12.5, 0.1, 99.99, -3]), "currency": chance.choice(["EUR", "eur "])}
            data = {
                "order_id": order_id,
                **chance.choice([amounts, amounts, amounts, {"total": 7, "currency": "CZK"}, {}]),
            }
            records.append(shop.event("Order Completed", visitor, data, tenant=tenant, signed=signed))
        else:
            key = chance.choice(["Order Refunded"] * 4 + ["Order Cancelled"])
            data = {"order_id": order_id, **chance.choice([{}, {"revenue": 5}, {"revenue": 0.03, "refund_id": "r"}])}
            records.append(shop.event(key, "backend", data, tenant=tenant, signed=signed))
    return records


def cells(rows: Sequence[Row]) -> list[tuple[str | None, ...]]:
    """The cells as the page shows them, sorted, because rows with equal figures may have any order."""
    found = [(row.campaign.label, row.currency, f"{row.orders:.2f}", *map(money, row[3:6])) for row in rows]
    return sorted(found, key=str)


async def on_the_page(
    attribution: Attribution, now: int, period: str = "month", tenant: str | None = None, model: Model = "last_touch"
) -> list[tuple[str | None, ...]]:
    rollups = await read(attribution.backend.store.begin(now), PERIODS[period], tenant)
    return cells(rows_of(sum_up(rollups), model))


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_page_has_the_figures_of_the_report(tmp_path: Path, seed: int) -> None:
    records = busy(500, seed)
    now = records[-1].at
    async with attributing(tmp_path, RULES) as attribution:
        sizes = random.Random(seed)
        await attribution.append(records)
        await attribution.work_off((sizes.randrange(1, 60) for _ in count()), now)
        derived = [msgspec.json.decode(body) for body in await attribution.derived()]
        assert {each.get("reason") for each in derived} == {None, "refund", "cancel", "superseded"}
        for name, period in PERIODS.items():
            for tenant in (None, "shop", "outlet", "nobody"):
                for model in MODELS:
                    report = Report(columns_of(["campaign"]), [model], keep_case=True)
                    for body in derived:
                        if tenant in {None, body["tenant"]} and at(body) >= period.since(now):
                            report.add_derived(body)
                    assert await on_the_page(attribution, now, name, tenant, model) == cells(
                        [line.row for line in report.lines() if line.row.orders]
                    )
        whole = await on_the_page(attribution, now)
        assert len(whole) > 20
        assert any(row[4] != "0.00" for row in whole)


def at(body: dict[str, str]) -> int:
    found = parse_time(body["decidedAt"])
    assert found is not None
    return found


async def test_an_order_counts_in_the_periods_day_week_and_month_and_not_after_them(tmp_path: Path) -> None:
    shop = Shop()
    async with attributing(tmp_path, RULES) as attribution:
        await attribution.append([shop.order("v")])
        await attribution.work_off(repeat(10), START)
        last = {"day": 23 * HOUR, "week": 6 * DAY, "month": 29 * DAY}
        for period, life in last.items():
            length = PERIODS[period].length
            begin = START // length * length
            assert await on_the_page(attribution, begin + life, period) == [
                ("(direct)", None, "1.00", "40.00", "0.00", "40.00")
            ]
            assert await on_the_page(attribution, begin + life + length, period) == []


async def test_decisions_late_by_more_than_a_month_are_in_no_rollup(tmp_path: Path) -> None:
    shop = Shop()
    async with attributing(tmp_path, RULES) as attribution:
        await attribution.append([shop.order("v"), shop.refund()])
        await attribution.work_off(repeat(10), START + 40 * DAY)
        state = attribution.backend.store.begin(START)
        assert [await read(state, period, None) for period in PERIODS.values()] == [[], [], []]
        assert await read_tenants(state) == []


async def test_a_refund_counts_in_the_period_of_its_order(tmp_path: Path) -> None:
    shop = Shop()
    async with attributing(tmp_path, RULES) as attribution:
        old = shop.order("v", "o-old", 100)
        shop.now += 10 * DAY
        new = [shop.order("v", "o-new", 30), shop.refund("o-old", 25), shop.refund("o-new", 10)]
        await attribution.append([old, *new])
        await attribution.work_off(repeat(2), shop.now)
        assert await on_the_page(attribution, shop.now, "week") == [
            ("(direct)", None, "1.00", "30.00", "10.00", "20.00")
        ]
        assert await on_the_page(attribution, shop.now, "month") == [
            ("(direct)", None, "2.00", "130.00", "35.00", "95.00")
        ]


async def test_a_rollup_of_many_campaigns_is_bounded_and_loses_no_order(tmp_path: Path) -> None:
    """Nor a refund: it counts in the row of its order."""
    shop, records = Shop(), []
    for number in range(400):
        campaign = {"source": f"{number}-" + "x" * 200}
        records.append(shop.event("Page View", f"v{number}", context={"campaign": campaign}))
        currency = "EUR" if number < 250 else f"C{number}" * 50
        data = {"order_id": f"o-{number}", "revenue": 10, "currency": currency}
        records += [shop.event("Order Completed", f"v{number}", data), shop.refund(f"o-{number}", 4)]
    async with attributing(tmp_path, RULES) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(100), shop.now)
        rollups = await read(attribution.backend.store.begin(shop.now), PERIODS["month"], None)
        sums = sum_up(rollups)
        assert len(sums) <= 121
        assert all(
            all(len(field or "") <= 80 for field in each.campaign) and len(each.currency or "") <= 80 for each in sums
        )
        rows = [row for row in rows_of(sums, "linear") if row.currency == "EUR"]
        assert rows[-1].campaign == OTHERS
        assert sum(row.orders for row in rows) == 250
        assert (sum(row.revenue for row in rows), sum(row.reversed for row in rows)) == (2500, 1000)
        assert sum(row.orders for row in rows_of(sums, "linear")) == 400


async def give_way() -> None:
    """Yields to nothing: the test has no other tasks."""


async def test_an_order_decided_by_an_earlier_version_is_in_no_rollup(tmp_path: Path) -> None:
    mark = DecidedOrder(
        START, 1, "a", 10, None, "EUR", "0", is_reversed=False, reversals=0, touches=[], model="linear", half_life=DAY
    )
    after = msgspec.structs.replace(mark, reversed="4", reversals=1)
    assert reversal_change("shop", mark, after) is None
    known = [msgspec.structs.replace(each, campaigns=[]) for each in (mark, after)]
    change = reversal_change("shop", *known)
    assert change is not None
    async with attributing(tmp_path, RULES) as attribution:
        store = attribution.backend.store
        state = store.begin(START, step=True)
        await add_all(state, [change], give_way)  # a reversal without the rollup of its order counts nowhere
        assert await on_the_page(attribution, START) == []
        await add_all(state, [order_change("shop", known[0], []), change], give_way)
        await store.commit(state)
        assert await on_the_page(attribution, START) == [("(direct)", "EUR", "1.00", "10.00", "4.00", "6.00")]


async def test_a_refund_counts_although_the_order_is_in_the_sums_of_another_partition(tmp_path: Path) -> None:
    """A tenant that was moved brings its own sums, and the sums of all tenants stay."""
    mark = DecidedOrder(
        START, 1, "a", 10, None, "EUR", "0", is_reversed=False, reversals=0, touches=[], model="linear", half_life=DAY,
        campaigns=[],
    )  # fmt: skip
    change = reversal_change("shop", mark, msgspec.structs.replace(mark, reversed="4", reversals=1))
    assert change is not None
    async with attributing(tmp_path, RULES) as attribution:
        store = attribution.backend.store
        state = store.begin(START, step=True)
        await add_all(state, [order_change("shop", mark, [])], give_way)
        for name, length in (("hour", HOUR), ("day", DAY)):
            await state.delete(state_key("attribution-rollup-all", "", f"{name}:{START // length}"))
        await add_all(state, [change], give_way)
        await store.commit(state)
        (row,) = sum_up(await read(store.begin(START), PERIODS["day"], None))
        assert (row.orders[0], row.revenue[0], row.reversed[0]) == (0, 0, 4)
        assert await on_the_page(attribution, START, tenant="shop") == [
            ("(direct)", "EUR", "1.00", "10.00", "4.00", "6.00")
        ]


async def test_the_panel_has_filters_for_period_and_tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = START + 5 * HOUR
    monkeypatch.setattr("ingestd.api.times.now", lambda: now)
    shop = Shop()
    async with attributing(tmp_path, RULES) as attribution:

        async def panel(**selection: str) -> Panel:
            return await show(attribution.backend.store, "linear", "/etc/ingestd.toml", selection)

        assert [(each.name, each.chosen) for each in (await panel()).filters] == [("period", "day")]
        data = {"order_id": "o-1", "revenue": 10.005, "currency": "EUR"}
        await attribution.append([shop.event("Order Completed", "v", data)])
        await attribution.work_off(repeat(10), now)
        assert [each.name for each in (await panel()).filters] == ["period"]  # one tenant, so no filter
        await attribution.append([shop.event("Order Completed", "v", data, tenant="it's")])
        await attribution.work_off(repeat(10), now)
        found = await panel(period="a year", tenant="it's")
        period, tenant = found.filters
        assert [(each.value, each.title) for each in period.options] == [
            ("day", "24 hours"), ("week", "7 days"), ("month", "30 days"),
        ]  # fmt: skip
        assert [(each.value, each.title) for each in tenant.options] == [
            ("", "All tenants"), ("it's", "it's"), ("shop", "shop"),
        ]  # fmt: skip
        assert (period.chosen, tenant.chosen, found.chosen) == ("day", "it's", "linear")
        assert found.tables[0].rows == [["(direct)", 1, 10, 0, 10]]  # rounded to even, as in the report
        for model, note in (await panel(tenant="it's")).notes.items():
            assert f"""--since 2096-10-01T13:00:00Z --tenant 'it'"'"'s' --model {model} --keep-case --config """ in note
        assert [[*row] for row in (await panel(period="month")).tables[0].rows] == [["(direct)", 2, 20.01, 0, 20.01]]
        unknown = await panel(tenant="SHOP")
        assert (unknown.tables, unknown.filters[1].chosen) == ([], None)


async def test_the_rollups_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    """Their campaigns have one text. Reversals of their orders count in their rows."""
    numbers = [[1.0] * 5, [10.0] * 5, [0.0] * 5]
    rows = [(7, "google / cpc", "EUR", *numbers), (DIRECT_DIGEST, "(direct)", "EUR", *numbers)]
    mark = DecidedOrder(
        START, 1, "a", 10, None, "EUR", "0", is_reversed=False, reversals=0, touches=[("e", 0)], model="linear",
        half_life=DAY, campaigns=[7],
    )  # fmt: skip
    change = reversal_change("shop", mark, msgspec.structs.replace(mark, reversed="4", reversals=1))
    assert change is not None
    shop = Shop()
    visit = shop.event("Page View", "v", context={"campaign": {"source": "google", "medium": "cpc"}})
    async with attributing(tmp_path, RULES) as attribution:
        state = attribution.backend.store.begin(START, step=True)
        day = f"day:{START // DAY}"
        for key in state_key("attribution-rollup", "shop", day), state_key("attribution-rollup-all", "", day):
            await state.put(key, msgspec.json.encode(rows).decode())
        await add_all(state, [change], give_way)
        await attribution.backend.store.commit(state)
        assert (
            await on_the_page(attribution, START, tenant="shop")
            == await on_the_page(attribution, START)
            == [
                ("(direct)", "EUR", "1.00", "10.00", "0.00", "10.00"),
                ("google / cpc", "EUR", "1.00", "10.00", "4.00", "6.00"),
            ]
        )
        order = shop.event("Order Completed", "v", {"order_id": "o", "revenue": 5, "currency": "EUR"})
        await attribution.append([visit, order])
        await attribution.work_off(repeat(10), START)
        row = ("google / cpc", "EUR", "2.00", "15.00", "4.00", "11.00")  # one row, although its fields are known now
        assert row in await on_the_page(attribution, START, tenant="shop")
