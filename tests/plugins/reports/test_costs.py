"""Costs in a real store, and beside the revenue of a report."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import CommandError
from ingestd.api.store import key_digest
from ingestd.api.times import now
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.plugins.attribution.report import total
from ingestd.plugins.reports.columns import columns_of
from ingestd.plugins.reports.cost_file import CostFile, read_cost_file
from ingestd.plugins.reports.costs import Changes, Cost, change, days_of, read_costs, scan_costs
from ingestd.plugins.reports.periods import Periods, TimeZone
from ingestd.plugins.reports.report import Report
from tests.support.backends import sqlite_backend

YEAR = 366 * 86_400_000
TODAY = datetime.fromtimestamp(now() / 1000, UTC).date()
PRESENT = Periods(TODAY, None, TimeZone("UTC"))
FIRST, LAST = date(2026, 1, 1), date(2026, 12, 31)
HEADER = "day,source,medium,campaign,currency,cost,clicks,impressions"


def cost(
    source: str, amount: str, currency: str = "EUR", medium: str | None = "cpc", campaign: str | None = None
) -> Cost:
    return Cost(source, medium, campaign, currency, Decimal(amount))


def read(folder: Path, text: str, encoding: str = "utf-8") -> CostFile:
    (folder / "costs.csv").write_text(text, encoding=encoding)
    return read_cost_file(folder / "costs.csv", oldest=FIRST, newest=LAST)


def test_columns_have_any_order_and_case_and_lines_any_end(tmp_path: Path) -> None:
    text = 'Cost;Currency; DAY ;"Source";medium\r\n1.50;eur ;2026-11-01; Google ;\r\n\r\n0;CHF;2026-11-02;"a;b";cpc\r\n'
    found = read(tmp_path, text, "utf-8-sig")
    assert found.costs == {
        date(2026, 11, 1): [cost("Google", "1.50", medium=None)], date(2026, 11, 2): [cost("a;b", "0", "CHF")],
    }  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_spreadsheets_separate_and_encode_a_table_in_several_ways(
    tmp_path: Path, separator: str, encoding: str
) -> None:
    lines = ["", "day,source,medium,currency,cost", "2026-11-01,größe,cpc,EUR,1.50"]
    text = "\r\n".join(lines).replace(",", separator)
    assert read(tmp_path, text, encoding).costs == {date(2026, 11, 1): [cost("größe", "1.50")]}


def test_a_line_replaces_an_earlier_one_of_its_day_and_campaign(tmp_path: Path) -> None:
    lines = ["2026-11-01,google,cpc,x,EUR,1,2,3", "2026-11-01,Google,CPC,X,eur,4,,", "2026-11-01,google,cpc,x,CHF,5,,"]
    found = read(tmp_path, "\n".join([HEADER, *lines]))
    assert found.repeated == 1
    assert [str(each.cost) for each in found.costs[date(2026, 11, 1)]] == ["4", "5"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("01.11.2026,x,,,EUR,1,,", "day: expected a date such as 2026-11-01, got '01.11.2026'"),
        ("2026-02-30,x,,,EUR,1,,", "day: expected a date"),
        ("2025-12-31,x,,,EUR,1,,", "day: expected 2026-01-01 to 2026-12-31, got 2025-12-31"),
        ("2026-11-01, ,,,EUR,1,,", "source: expected a text"),
        ("2026-11-01,x,,, ,1,,", "currency: expected a currency"),
        ('2026-11-01,x,,,EUR,"1,5",,', "cost: expected a number such as 12.50, got '1,5'"),
        ("2026-11-01,x,,,EUR,-1,,", "cost: expected"),
        ("2026-11-01,x,,,EUR,NaN,,", "cost: expected"),
        ("2026-11-01,x,,,EUR,1000000000001,,", "cost: expected"),
        ("2026-11-01,x,,,EUR,1,1.5,", "clicks: expected a whole number, got '1.5'"),
        ("2026-11-01,x,,,EUR,1,,many", "impressions: expected a whole number"),
        ("2026-11-01,x,,,EUR", "expected as many fields as the header has"),
    ],
)
def test_each_fault_is_told_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, fault: str
) -> None:
    with pytest.raises(CommandError, match="2 faulty lines, so nothing was imported"):
        read(tmp_path, f"{HEADER}\n{line}\n2026-11-01,good,,,EUR,1,,\n{line}")
    told = capsys.readouterr().err.splitlines()
    assert [each.partition("costs.csv")[2].partition(fault)[0] for each in told] == [":2: ", ":4: "]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1: expected a header such as day,source,"),
        ("Campaign report\n\nDay,Campaign,Clicks,Impr.,Cost", "1: expected a header such as day,source,"),
        ("Day,Campaign name,Amount spent (EUR)", "1: there is no column 'campaign name'; did you mean campaign?"),
        ("\n\nday,sorce,currency,cost", "3: there is no column 'sorce'"),
        ("day,sorce,currency,cost", "1: there is no column 'sorce'; did you mean source?"),
        ("day,source,cost", "1: the header lacks currency"),
        ("day,source,source,currency,cost", "1: the header has a column twice"),
        (f'{HEADER}\n2026-11-01,"x', ":2: "),
        (f"{HEADER}\n{'x' * 2_000_000}", ":2: field larger"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(CommandError) as raised:
        read(tmp_path, text)
    assert fault in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        read_cost_file(tmp_path / "none.csv", oldest=FIRST, newest=LAST)
    with pytest.raises(CommandError, match="expected UTF-8"):
        read(tmp_path, f"{HEADER}\n2026-11-01,größe,,,EUR,1,,", "latin-1")


@given(st.text() | st.lists(st.text(alphabet='0123456789-,;"\n\r eE.\0x'), max_size=4).map(f"{HEADER}\n".join))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_text(text, encoding="utf-8", errors="replace")
    with suppress(CommandError):
        read_cost_file(file, oldest=FIRST, newest=LAST)


async def test_costs_of_a_day_are_replaced_listed_and_removed(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        store = backend.store

        async def changed(*costs: Cost, **options: bool) -> Changes:
            return await change(store, "shop", {TODAY: costs}, life=YEAR, **{"dry_run": False, **options})

        async def stored() -> list[str]:
            costs = read_costs(store, "shop", PRESENT, YEAR)
            return [f"{number} {each.source} {each.cost}" async for number, each in costs]

        one, two = cost("google", "1.10"), cost("bing", "2")
        assert await changed(one, two, dry_run=True) == Changes(new=2)
        assert await stored() == []
        assert await changed(one, two) == Changes(new=2)
        assert await changed(one, two) == Changes(same=2)
        assert await changed(cost("google", "7")) == Changes(replaced=1)
        assert await stored() == ["0 google 7", "0 bing 2"]
        assert [(tenant, day, len(some)) async for tenant, day, some in scan_costs(store)] == [("shop", TODAY, 2)]
        assert [each async for each in read_costs(store, "outlet", PRESENT, YEAR)] == []
        # A copy to other partitions finds the tenant of the entry by these texts.
        parts = await AttributionPlugin(AttributionPlugin.Options()).state_parts(store)
        digests = {f"attribution-cost:{key_digest(tenant, text)}" for tenant, texts in parts.items() for text in texts}
        assert {key async for key, _ in store.scan("attribution-cost")} <= digests
        many = [cost(f"source-{index}", "1") for index in range(5001)]
        with pytest.raises(CommandError, match="would have 5003 costs; a day has at most 5000"):
            await changed(*many)
        assert await changed(replace=True) == Changes(removed=2)
        assert await days_of(store) == {}


async def test_a_day_with_too_many_costs_leaves_all_days_as_they_were(tmp_path: Path) -> None:
    days = [TODAY - timedelta(days=age) for age in range(100)]
    costs = {day: [cost("google", "1")] for day in days} | {TODAY: [cost(f"s-{index}", "1") for index in range(5001)]}
    async with sqlite_backend(tmp_path) as backend:
        with pytest.raises(CommandError, match=f"{TODAY} would have 5001 costs; a day has at most 5000"):
            await change(backend.store, "shop", costs, life=YEAR, dry_run=False)
        assert await days_of(backend.store) == {}


def test_costs_stand_beside_the_revenue_of_their_currency() -> None:
    body = {
        "id": "a", "type": "attribution", "tenant": "shop", "decidedAt": "2026-11-01T00:00:00.000Z", "orderId": "o",
        "orderEventId": "e", "anonymousId": "v", "userId": None, "model": "last_touch",
        "value": {"revenue": 30, "total": None, "currency": "EUR"}, "touchpoint": {"eventId": "t"},
        "credits": {"last_touch": [{"eventId": "t", "weight": 1.0}]},
        "touchpoints": [{"eventId": "t", "source": "google", "medium": "cpc", "name": "x"}],
    }  # fmt: skip
    report = Report(columns_of(["source"]))
    report.add_derived(body)
    assert report.takes_costs
    for each in (cost("Google", "5"), cost("GOOGLE", "2.5"), cost("google", "9", "CHF"), cost("bing", "1")):
        report.add_cost(each, 0)
    rows = [line.row for line in report.lines()]
    found: dict[Any, Any] = {(row.campaign.label, row.currency): (row.orders, row.cost) for row in rows}
    assert found == {("google", "EUR"): (1, Decimal("7.5")), ("bing", "EUR"): (0, 1), ("google", "CHF"): (0, 9)}
    assert total([row for row in rows if row.currency == "EUR"]).cost == Decimal("8.5")
    assert not Report(columns_of(["source", "landing"])).takes_costs
