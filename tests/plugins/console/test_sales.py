"""Sales for the page of marketers: the figures of a report over the whole journal, and what a bound leaves out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingestd.api import times
from ingestd.api.errors import BadRequest, NotFound
from ingestd.api.events import Record
from ingestd.plugins.console.disclosure import Disclosure
from ingestd.plugins.console.sales import Sales
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.costs import Cost, change
from ingestd.plugins.reports.periods import Periods, TimeZone
from ingestd.plugins.reports.reading import ReportRules
from ingestd.plugins.reports.report import Report
from ingestd.plugins.reports.sales import Shop, latest_orders, make_sales
from ingestd.plugins.reports.text import Form, members
from ingestd.plugins.sources import Channels
from ingestd.scheduling.demand import Demand
from tests.plugins.reports.test_reports import ARRIVALS, DAY, IDS, RULES, touch_of, traffic
from tests.support.attribution import START, attributing
from tests.support.backends import PluginDaemon
from tests.support.journals import read_all

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

ZONE = TimeZone("Europe/Berlin")
BY_RULES = ReportRules(ARRIVALS, Channels(), ZONE, 400 * DAY)
SHAPE = Disclosure("shape", (), ())
BY = columns_of(["channel", "source", "medium", "campaign"])


async def no_pause() -> None:
    """Take all the time."""


def day(number: int) -> date:
    return date(2096, 10, 2) + timedelta(days=number)  # START is in the morning of the first one


@asynccontextmanager
async def selling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Shop, Sequence[Record]]]:
    """A shop with ten days of traffic, and its records."""
    records = traffic(600, 17)
    async with attributing(folder, RULES) as attribution:
        await attribution.append(records)
        await attribution.work_off([200] * 10, records[-1].at)
        monkeypatch.setattr(times, "now", lambda: START + 10 * DAY)
        daemon = PluginDaemon(attribution.backend)
        yield (
            Shop(daemon, BY_RULES),
            [*await read_all(attribution.backend.journal)],
        )


def reported(records: Sequence[Record], first: date, last: date, *, compare: bool) -> list[Mapping[str, Any]]:
    """The rows of the command, over all records."""
    periods = Periods(first, last, ZONE, compare=compare)
    report = Report(
        BY, numbers=periods.number, read_touch=touch_of, unusable_ids=IDS,
        channel=BY_RULES.channels.of_texts, since=periods.since - DAY, until=periods.until,
    )  # fmt: skip
    for record in records:
        report.add(record)
    rows = [members(line, Form(BY, compare=compare)) for line in report.lines(compare=compare)]
    return [{**row, "new": None, "returning": None} for row in rows]  # that needs the orders of all time


async def test_a_part_of_the_journal_gives_the_figures_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, records):
        for given, first, last, compare in [
            ({}, day(4), day(10), True),
            ({"days": "1"}, day(10), day(10), True),
            ({"days": "30", "compare": "0"}, day(-19), day(10), False),
            ({"since": f"{day(3)}", "until": f"{day(5)}"}, day(3), day(5), True),
            ({"since": f"{day(8)}", "until": f"{day(99)}"}, day(8), day(10), True),
        ]:
            found = await make_sales(shop, given, no_pause)
            assert (found["since"], found["until"], found["notes"]) == (f"{first}", f"{last}", [])
            assert found["rows"] == reported(records, first, last, compare=compare)
            assert (found["before"] is not None) is compare
            agrees(found)
        assert found["tenants"] == ["shop"]


def test_rows_are_made_with_a_look_at_the_clock_for_each_session_order_and_row() -> None:
    looks: list[None] = []
    report = Report(BY, read_touch=touch_of, rest=lambda: looks.append(None))
    for record in traffic(600, 7):
        report.add(record)
    assert not looks
    sessions = report.sessions().total()
    assert len(looks) == sessions > 100
    rows = report.lines()
    assert len(looks) > 2 * sessions + len(rows)


async def test_many_rows_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, _):
        whole = await make_sales(shop, {}, no_pause)
        found = await make_sales(shop._replace(most_rows=3), {}, no_pause)
        assert [row["channel"] for row in found["rows"]][3:] == ["(others)"] * 2  # of two currencies
        for name in ("orders", "net", "net_before", "sessions", "sessions_before"):
            sums = [sum(row[name] or 0 for row in each["rows"]) for each in (found, whole)]
            assert sums[0] == pytest.approx(sums[1])
        assert found["rows"][:3] == sorted(whole["rows"], key=lambda row: -row["net"])[:3]


async def test_costs_count_in_the_period_in_which_their_day_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, _):
        costs = {
            day(number): [
                Cost("google", "cpc", None, "EUR", Decimal(number + 1)), Cost("Bing", None, "x", "CHF", Decimal("0.5"))
            ]
            for number in range(11)
        }  # fmt: skip
        await change(shop.daemon.store, "shop", costs, life=400 * DAY, dry_run=False)
        for given, first, last in [
            ({}, 4, 10),
            ({"days": "1"}, 10, 10),
            ({"since": f"{day(3)}", "until": f"{day(5)}"}, 3, 5),
        ]:
            for most_rows in (2000, 1):
                rows = (await make_sales(shop._replace(most_rows=most_rows), given, no_pause))["rows"]
                for ending, days in (
                    ("", range(first, last + 1)),
                    ("_before", range(max(0, 2 * first - last - 1), first)),
                ):
                    for currency, sums in (("EUR", sum(days) + len(days)), ("CHF", len(days) / 2)):
                        some = [row[f"cost{ending}"] or 0 for row in rows if row["currency"] == currency]
                        assert sum(some) == sums


async def test_the_orders_of_a_row_add_up_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, records):
        found = await make_sales(shop, {}, no_pause)
        for row in found["rows"]:
            fields = tuple(each and each.casefold() for each in (row[name] for name in BY))
            some = [
                (order["net"] * share, share)
                for order in found["orders"]
                for names, share in order["shares"]
                if tuple(each and each.casefold() for each in names) == fields and order["currency"] == row["currency"]
            ]
            assert sum(share for _, share in some) == pytest.approx(row["orders"])
            assert sum(net for net, _ in some) == pytest.approx(row["net"])
        latest = await latest_orders(shop, 10, no_pause)
        gone = {each.decode()["attributionId"] for each in records if each.type == "attribution_reversal"}
        assert latest == found["orders"][: len(latest)]
        assert len(gone) > len(latest) >= 5  # an order that was sent again later is not listed twice


async def test_orders_without_a_decision_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = traffic(100, 7)
    monkeypatch.setattr(times, "now", lambda: records[-1].at)
    async with attributing(tmp_path, RULES) as attribution:
        await attribution.append(records)
        shop = Shop(PluginDaemon(attribution.backend), BY_RULES)
        found = await make_sales(shop, {"days": "30"}, no_pause)
        orders = sum(record.envelope().key == "Order Completed" for record in records)
        assert found["notes"] == [f"Missing: {orders} orders that attribution has not read yet."]
        assert (await make_sales(shop, {"days": "30", "tenant": "outlet"}, no_pause))["notes"] == []


def agrees(found: Mapping[str, Any]) -> None:
    """Asserts that the parts of the course add up to the rows."""
    course, rows = found["course"], found["rows"]
    endings = ["", "_before"] if found["before"] else [""]
    for ending in endings:
        assert sum(course.get(f"sessions{ending}", [])) == sum(row[f"sessions{ending}"] or 0 for row in rows)
        for currency, columns in course["currencies"].items():
            for name in ("net", "orders"):
                some = [row[f"{name}{ending}"] for row in rows if row["currency"] == currency]
                assert sum(columns.get(f"{name}{ending}", [])) == pytest.approx(sum(some))


async def test_hours_of_two_days_and_days_of_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, _):
        for given, unit, parts in [
            ({"days": "1"}, "hour", 24),
            ({"since": f"{day(9)}"}, "hour", 48),
            ({"since": f"{day(8)}"}, "day", 3),
            ({"since": "2096-03-25", "until": "2096-03-25"}, "hour", 23),  # summer time begins
        ]:
            course = (await make_sales(shop, given, no_pause))["course"]
            assert (course["unit"], len(course["labels"])) == (unit, parts)


async def test_a_bound_leaves_out_the_comparison_and_then_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, records):
        count = len(records)
        found = await make_sales(shop._replace(most=count - 1), {"days": "30"}, no_pause)
        assert (found["before"], found["since"]) == (None, f"{day(2)}")
        assert found["notes"] == [f"Exact since {day(2)}: with earlier days there are more than {count - 1:,} records."]
        assert found["rows"] == reported(records, day(2), day(10), compare=False)
        found = await make_sales(shop._replace(most=count * 9 // 10), {"days": "7"}, no_pause)
        assert (found["before"], found["since"]) == (None, f"{day(4)}")
        without = "Without comparison: with the time before there are more than"
        assert found["notes"] == [f"{without} {count * 9 // 10:,} records."]
        with pytest.raises(BadRequest, match="have more than 10 records"):
            await make_sales(shop._replace(most=10), {"days": "1"}, no_pause)


@pytest.mark.parametrize(
    "given",
    [{"days": "2"}, {"since": "yesterday"}, {"since": "2096-10-05", "until": "2096-10-04"}, {"since": "2090-01-01"},
     {"since": "2097-01-01"}],
)  # fmt: skip
async def test_another_period_is_refused(
    given: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with selling(tmp_path, monkeypatch) as (shop, _):
        with pytest.raises(BadRequest):
            await make_sales(shop, given, no_pause)


class Counting:
    """Makes sales that count how often they are made, and at most one at a time."""

    made = running = most = 0

    async def make_sales(self, given: Mapping[str, str], pause: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        self.running += 1
        self.most = max(self.most, self.running)
        await pause()
        await asyncio.sleep(0)
        self.running -= 1
        self.made += 1
        return {"made": self.made, "orders": [], "csv": f"{self.made}\r\n"}

    async def latest_orders(self, count: int, pause: Callable[[], Awaitable[None]]) -> list[dict[str, Any]]:
        return []


class Selling(Counting):
    """Makes a report with an order of each source."""

    def __init__(self, *sources: str) -> None:
        super().__init__()
        self._sources = sources

    async def make_sales(self, given: Mapping[str, str], pause: Callable[[], Awaitable[None]]) -> dict[str, Any]:
        orders = [
            {
                **dict.fromkeys(("at", "tenant", "order", "event", "currency", "revenue", "reversed", "net"), each),
                "shares": [(("Email", each, None, None), 1.0)],
            }
            for each in self._sources
        ]
        return await super().make_sales(given, pause) | {"orders": orders}


@pytest.mark.parametrize(("source", "listed"), [("GOOGLE", ["Google", "google"]), ("straße", ["Straße"])])
async def test_the_orders_of_a_row_differ_in_case_as_its_sources_do(source: str, listed: list[str]) -> None:
    maker = Selling("Google", "Straße", "STRASSE", "google")
    sales = Sales({"attribution": maker}.get, [Demand()], disclosure=lambda: SHAPE)
    found = json.loads(await sales.render_orders({"days": "7", "channel": "email", "source": source}))
    assert [each["net"] for each in found["orders"]] == listed


async def test_one_report_is_made_at_a_time_and_kept_for_a_minute() -> None:
    maker, now = Counting(), [0.0]
    sales = Sales({"attribution": maker}.get, [Demand()], disclosure=lambda: SHAPE, clock=lambda: now[0])
    week, today = {"days": "7", "other": "1"}, {"days": "1"}
    answers = await asyncio.gather(*(sales.render(each) for each in (week, today, week, today)))
    assert answers == [b'{"made":1}', b'{"made":2}'] * 2
    now[0] = 59
    assert await sales.render({"days": "7", "other": "2"}) == b'{"made":1}'
    now[0] = 60
    assert await sales.render(week) == b'{"made":3}'
    assert await sales.render_csv(week) == b"3\r\n"
    assert maker.most == 1
    sales.forget()  # a person was forgotten
    made = asyncio.create_task(sales.render(week))
    await asyncio.sleep(0)
    sales.forget()  # while a report is made
    assert await made == b'{"made":4}'
    assert await sales.render(week) == b'{"made":5}'
    with pytest.raises(NotFound):
        await Sales(lambda name: None, [Demand()], disclosure=lambda: SHAPE).render(week)
