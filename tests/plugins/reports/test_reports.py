"""Reports over a real journal: sums equal those of an independent count, and none depends on the order of records."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Record
from ingestd.api.times import parse_time
from ingestd.plugins.attribution.arrivals import Arrivals
from ingestd.plugins.attribution.reading import Seen, read
from ingestd.plugins.attribution.report import Row, total
from ingestd.plugins.attribution.touches import Exclusions, Touch
from ingestd.plugins.reports.columns import UNKNOWN, columns_of
from ingestd.plugins.reports.periods import TimeZone
from ingestd.plugins.reports.reading import ReportRules
from ingestd.plugins.reports.report import Report
from ingestd.plugins.sources import Channels, SourceRules
from ingestd.support.unusable_ids import UnusableIds
from tests.support.attribution import START, Shop, attributing
from tests.support.attribution_reference import Rules
from tests.support.journals import read_all

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

HOUR, DAY = 3_600_000, 86_400_000
RULES = Rules(window=2 * DAY, late=DAY, model="last_touch", max_touches=10, max_visitors=4)
ARRIVALS = Arrivals(Exclusions((), (), ()), SourceRules(), "fallback")
IDS = UnusableIds()
PRODUCTS = [
    [{"name": "Shirt", "price": 19.99, "quantity": 2}, {"name": "Hat", "price": 10}],
    [{"name": "Shirt", "price": 20}, {"sku": "s-1", "price": 5, "quantity": 3}, {"name": "Gift", "price": 0}],
    [{"name": "Gift"}, {"name": "Card"}, {"name": "Stamp"}],
    [],
    "none",
]


def traffic(events: int, seed: int) -> list[Record]:
    """Ten days of a shop: visits with pages, orders with products, refunds, and orders that are signed later."""
    chance, shop, records = random.Random(seed), Shop(), []
    sessions: dict[str, int] = {}
    last: dict[str, int] = {}
    for number in range(events):
        shop.now += chance.randrange(2 * 10 * DAY // events)
        visitor = f"visitor-{chance.randrange(25)}"
        # A session that began before a report is known by an event in the day before it.
        if shop.now - last.get(visitor, 0) >= DAY or chance.random() < 0.2:
            sessions[visitor] = number
        context: dict[str, Any] = {"page": {"path": chance.choice(["/", "/sale", "/Sale", "/shoes?x=1"])}}
        if chance.random() < 0.5:
            context["campaign"] = {
                "source": chance.choice(["google", "Google", "bing", None]), "medium": chance.choice(["cpc", "email"]),
                "term": chance.choice(["a", None]),
            }  # fmt: skip
        kind, age = chance.random(), chance.choice([0, 0, 0, HOUR])
        user = chance.choice([None, None, f"user-{chance.randrange(8)}"])
        signed = kind >= 0.9 or (kind >= 0.7 and chance.random() < 0.3)
        if not signed:
            last[visitor] = shop.now
        if kind < 0.7:
            records.append(
                shop.event("Page View", visitor, context=context, age=age, session=sessions[visitor], user=user)
            )
        elif kind < 0.9:
            data = {
                "order_id": f"o-{number - chance.choice([0, 0, 0, 3])}",
                "revenue": chance.choice([40, 12.5, 0.01, 99.99]),
                "currency": chance.choice(["EUR", "eur", "EUR", "CHF"]),
                "products": chance.choice(PRODUCTS),
            }
            records.append(
                shop.event("Order Completed", visitor, data, signed=signed, session=sessions[visitor], user=user)
            )
        else:
            data = {"order_id": f"o-{number - chance.randrange(9)}", "revenue": chance.choice([5, 0.03])}
            records.append(shop.event("Order Refunded", visitor, data, session=sessions[visitor], signed=True))
    return records


async def journal(folder: Path, records: Sequence[Record]) -> list[Record]:
    async with attributing(folder, RULES) as attribution:
        await attribution.append(records)
        await attribution.work_off(repeat(100), records[-1].at)
        return [*await read_all(attribution.backend.journal)]


def touch_of(record: Record) -> Touch | None:
    seen = read(record, ARRIVALS, IDS)
    return seen.touch if isinstance(seen, Seen) else None


def rows(records: Iterable[Record], *by: str, **options: Any) -> list[Row]:
    report = Report(columns_of(by), read_touch=touch_of, **options)
    for record in records:
        report.add(record)
    return [line.row for line in report.lines()]


def is_visit(body: Mapping[str, Any]) -> bool:
    """Whether a session has the event. The signed orders of this shop name sessions that it has stored."""
    return bool(body["type"] == "event" and not (body["signed"] and body["key"].startswith("Order ")))


def numbers(since: int, until: int) -> Any:
    return lambda at: 0 if since <= at < until else None


class Counted:
    """The report of sources by an independent count over the bodies of records, in lower case."""

    def __init__(self, records: Sequence[Record], since: int, until: int) -> None:
        bodies = [record.decode() for record in records]
        self.sessions: Counter[str] = Counter()
        self.visitors: dict[str, set[str]] = defaultdict(set)
        self.money: dict[tuple[str, str], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
        self.new: Counter[tuple[str, str]] = Counter()
        self.assisted: Counter[tuple[str, str]] = Counter()
        self._count_sessions([each for each in bodies if is_visit(each)], since, until)
        self._count_orders(bodies, since, until)

    def _count_sessions(self, events: list[Any], since: int, until: int) -> None:
        by_session = defaultdict(list)
        for position, each in enumerate(events):
            if not (each["signed"] and each["key"].startswith("Order ")):
                by_session[each["sessionId"]].append((each["timestamp"], position, each))
        for some in by_session.values():
            first = min((each for _, _, each in some), key=lambda each: each["receivedAt"])
            if since <= instant(first["receivedAt"]) < until:
                campaigns = [each["context"].get("campaign") for *_, each in sorted(some, key=lambda each: each[:2])]
                source = next((name(each) for each in campaigns if each), "(direct)")
                self.sessions[source] += 1
                self.visitors[source].add(first["anonymousId"])

    def _count_orders(self, bodies: list[Any], since: int, until: int) -> None:
        gone = {each["attributionId"] for each in bodies if each.get("reason") == "superseded"}
        orders = [each for each in bodies if each["type"] == "attribution" and each["id"] not in gone]
        known: set[Any] = set()
        for order in sorted(orders, key=lambda each: (each["orderAt"], each["id"])):
            names = {("visitor", order["anonymousId"]), ("user", order["userId"])} - {("user", None)}
            is_new = not names & known
            known |= names
            if not since <= instant(order["decidedAt"]) < until:
                continue
            value = order["value"]
            key = name(order["touchpoint"] or {"source": "(direct)"}), value["currency"].upper()
            reversed_ = [each["value"]["revenue"] for each in bodies if each.get("attributionId") == order["id"]]
            amounts = [
                Decimal(1),
                Decimal(str(value["revenue"])),
                sum((Decimal(str(each)) for each in reversed_), Decimal(0)),
            ]
            self.money[key] = [a + b for a, b in zip(self.money[key], amounts, strict=True)]
            self.new[key] += is_new
            for source in {name(each) for each in order["touchpoints"]} - {key[0]}:
                self.assisted[source, key[1]] += 1


def name(campaign: Mapping[str, Any]) -> str:
    return (campaign["source"] or "(not set)").lower()


def instant(text: str) -> int:
    found = parse_time(text)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_sums_equal_an_independent_count(tmp_path: Path, seed: int) -> None:
    records = await journal(tmp_path, traffic(600, seed))
    for since, until in [(0, 2**60), (START + 2 * DAY, START + 7 * DAY)]:
        found = rows(records, "source", numbers=numbers(since, until), since=since - DAY, until=until)
        counted = Counted(records, since, until)
        assert len(counted.money) >= 6
        labels = {row: row.campaign.label.lower() for row in found}
        assert {labels[row]: row.sessions for row in found if row.sessions} == counted.sessions
        assert {labels[row]: row.visitors for row in found if row.visitors} == {
            source: len(some) for source, some in counted.visitors.items()
        }
        assert {row.currency for row in found if row.sessions is not None} == {"EUR"}
        assert {(labels[row], row.currency): [*row[2:5]] for row in found if row.orders} == counted.money
        assert {(labels[row], row.currency): row.new for row in found if row.new} == +counted.new
        assert all((row.new or 0) + (row.returning or 0) == row.orders for row in found)
        assert {(labels[row], row.currency): row.assisted for row in found if row.assisted} == counted.assisted


def shuffled(records: Sequence[Record], seed: int) -> list[Record]:
    """The records in another order: only an attribution comes after its order, and a reversal after its attribution."""
    kinds = {"event": 0, "attribution": 1, "attribution_reversal": 2}
    mixed = random.Random(seed).sample(records, len(records))
    return sorted(mixed, key=lambda record: kinds[record.type])


BY = [["source"], ["medium", "campaign"], ["campaign"], ["term"], ["landing"], ["product"], ["source", "product"]]


async def test_no_row_depends_on_the_order_of_records(tmp_path: Path) -> None:
    records = await journal(tmp_path, traffic(300, 3))

    @given(st.integers(), st.sampled_from(BY), st.booleans())
    def check(seed: int, by: list[str], keep_case: bool) -> None:
        mixed = shuffled(records, seed)
        # A refund beyond the rest of its order is cut, so the reversals of an order are the same in any order.
        assert rows(mixed, *by, keep_case=keep_case) == rows(records, *by, keep_case=keep_case)

    check()


async def test_all_reports_have_the_same_totals(tmp_path: Path) -> None:
    records = await journal(tmp_path, traffic(400, 4))
    totals: set[Any] = set()
    events = [body for body in (record.decode() for record in records) if is_visit(body)]
    sessions = {"EUR": len({each["sessionId"] for each in events}), "CHF": None}
    for by in [*BY, ["model"]]:
        for model in ("last_touch", "linear", "time_decay"):
            found = rows(records, *by, models=(model,))
            for currency in ("EUR", "CHF"):
                some = total([row for row in found if row.currency == currency])
                totals.add((currency, *some[2:6]))
                assert some.sessions == (sessions[currency] if "product" not in by else None)
    for currency in ("EUR", "CHF"):
        paths = [row for row in rows(records, "source", paths=True) if row.currency == currency]
        totals.add((currency, *total(paths)[2:6]))
    assert len(totals) == 2


async def test_days_add_up_to_all(tmp_path: Path) -> None:
    records = await journal(tmp_path, traffic(400, 5))
    by_day: Counter[str] = Counter()
    orders = Decimal(0)
    for day in range(12):
        since = START + day * DAY
        for row in rows(records, "medium", numbers=numbers(since, since + DAY), since=since - DAY, until=since + DAY):
            by_day[row.campaign.label] += row.sessions or 0
            orders += row.orders
    whole = rows(records, "medium")
    assert {row.campaign.label: row.sessions for row in whole if row.sessions} == +by_day
    assert sum(row.orders for row in whole) == orders


async def test_each_day_stands_beside_the_day_before(tmp_path: Path) -> None:
    records = await journal(tmp_path, traffic(300, 6))
    report = Report(columns_of(["source"]), (None, "linear"), numbers=lambda at: (at - START) // DAY, first=3, last=11)
    for record in records:
        report.add(record)
    lines = report.lines(compare=True)
    found = {(line.number, line.row.campaign, line.row.currency): line for line in lines}
    assert {line.number for line in lines} <= set(range(3, 12))
    for (number, *of), line in found.items():
        assert line.before is not None
        if number > 3:
            before = found.get((number - 1, *of))  # type: ignore[arg-type]  # mypy sees a list of objects
            assert line.before[:6] == (before.row[:6] if before is not None else (*of, 0, 0, 0, 0))
        (linear,) = line.by_model
        assert linear[:2] == line.row[:2]
    for number in range(3, 12):
        for currency in ("EUR", "CHF"):
            some = [line for line in lines if (line.number, line.row.currency) == (number, currency)]
            assert sum(line.row.net for line in some) == sum(line.by_model[0].net for line in some)


def visit(shop: Shop, session: int, *pages: tuple[str, str | None], age: int = 0) -> list[Record]:
    """The pages of a session: the query of each and the page before."""
    records = []
    for query, referrer in pages:
        shop.now += 1000
        page = {"url": f"https://shop.example/{query}", "referrer": referrer}
        records.append(shop.event("Page View", f"v-{session}", context={"page": page}, session=session, age=age))
    return records


def test_a_session_belongs_to_its_first_touchpoint_whatever_kind_it_is() -> None:
    shop, google = Shop(), "https://www.google.com/"
    mail = "?utm_source=news&utm_medium=email"
    records = [
        *visit(shop, 1, ("", google), (mail, google), ("shoes", google)),  # a page of one document repeats its referrer
        *visit(shop, 2, ("", None), (mail, None), ("?gclid=x", google)),
        *visit(shop, 3, ("?gclid=x", google), ("cart", "https://www.paypal.com/")),
        *visit(shop, 4, ("", None), ("shoes", "https://shop.example/"), ("thanks", "https://www.paypal.com/")),
        *visit(shop, 5, ("", None)),
        *visit(shop, 5, (mail, None), age=HOUR),  # it happened before, and came late
    ]
    rules = ReportRules(ARRIVALS, Channels(), TimeZone("UTC"), DAY)
    found = {
        row.campaign.fields: row.sessions for row in rows(records, "channel", "source", channel=rules.channels.of_texts)
    }
    assert found == {
        ("Organic Search", "google"): 1, ("Email", "news"): 2, ("Paid Search", "google"): 1, ("Direct", "(direct)"): 1,
    }  # fmt: skip
    assert rows(records[::-1], "channel", channel=rules.channels.of_texts) == rows(
        records, "channel", channel=rules.channels.of_texts
    )


async def test_the_products_of_a_forgotten_order_are_unknown(tmp_path: Path) -> None:
    shop = Shop()
    order = shop.event("Order Completed", "v", {"order_id": "o", "revenue": 5, "products": [{"name": "Hat"}]})
    derived = (await journal(tmp_path, [order]))[1:]
    gone = {**order.decode(), "anonymousId": None, "sessionId": None, "data": {}, "context": {}, "erased": True}
    erased = Record("event", order.at, msgspec.json.encode(gone))
    for records, product in ([order, *derived], "Hat"), ([erased, *derived], UNKNOWN):
        (row,) = rows(records, "product")
        assert row.campaign.fields[0] == product
        assert row.revenue == 5


def test_a_session_counts_once_although_a_backend_names_it_days_later() -> None:
    shop = Shop()
    visited = shop.touch("v", "news", session=1)
    shop.now += 5 * DAY
    data = {"order_id": "o"}
    later = [shop.event(f"Order {each}", "v", data, signed=True, session=1) for each in ("Completed", "Refunded")]
    begun = shop.event("Order Completed", "w", data, signed=True, session=2, is_new=True)
    later.append(shop.event("Order Cancelled", "order 7", data, signed=True, session=4, is_new=True))
    sent = shop.event("Page View", "x", signed=True, session=3)
    for since, sessions in (START, 1), (START + 3 * DAY, 2):
        found = rows([visited, *later, begun, sent], "source", since=since, numbers=numbers(since, since + 3 * DAY))
        assert sum(row.sessions or 0 for row in found) == sessions
