"""The operators' page in a browser: its content, its updates, its isolation and its accessibility."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser, Tab
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop, run_ingestd
from tests.support.forked import short_times
from tests.support.redis_server import RedisServer, redis_server
from tests.support.redis_shop import RedisShop
from tests.support.sink_desk import Desk

CAMPAIGN = {"source": "newsletter", "medium": "email", "name": "<img src=x onerror=boom()>"}
SHOWN = "newsletter / email / <img src=x onerror=boom()>"
TODAY = datetime.now(UTC).date()
MODELS = ["last_touch", "first_touch", "linear", "position_based", "time_decay"]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """A page has its charts when a daemon has two samples."""
    with short_times(overview=0.5):
        yield


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Daemon]]:
    """A daemon with content for each part of the page, including a failing sink."""
    down = 'type = "webhook"\nurl = "http://127.0.0.1:1/in"'
    shop = Shop(tmp_path_factory.mktemp("crowded"), {"sinks.crm": down, "http": 'shutdown_timeout = "100ms"'})
    with shop.serve() as daemon:
        fill(shop, daemon)
        yield shop, daemon


def fill(shop: Shop, daemon: Daemon) -> None:
    key = shop.public.id
    event = {"key": "Product Viewed", "anonymousId": "visitor-1", "data": {}}
    for body in [event, {**event, "messageId": "m"}, {**event, "messageId": "m"}]:
        assert daemon.post("/track", body, key).status == 200
    assert daemon.post("/track", {**event, "data": {"price": "1"}}, key).status == 400
    assert daemon.post("/track", {**event, "key": "nothing of ours"}, key).status == 404
    assert daemon.post("/track", event, "wrong").status == 401
    assert daemon.post("/track", {**event, "context": {"campaign": CAMPAIGN}}, key).status == 200
    assert daemon.post("/identify/public", {"anonymousId": "visitor-2"}, key).status == 200
    for number, visitor in enumerate(["visitor-1", "visitor-3"]):
        data = {"order_id": f"o-{number}", "revenue": 40.5, "currency": "EUR"}
        order = {"key": "Order Completed", "anonymousId": visitor, "data": data}
        assert daemon.post_signed(order, shop.server).status == 200
    assert daemon.post("/batch", {"events": [event, event]}, key).status == 200
    wait_until(lambda: orders_of(status(daemon)) == 2 and sink(daemon, "crm")["state"] == "failing")


def status(daemon: Daemon) -> Any:
    return daemon.ops("/status.json").json()


def sink(daemon: Daemon, name: str) -> Any:
    return next(each for each in status(daemon)["sinks"] if each["sink"] == name)


def orders_of(shown: Any) -> float:
    """The orders in the first table of the first panel."""
    tables = shown["panels"][0]["tables"]
    return sum(row[1] for row in tables[0]["rows"]) if tables else 0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def selling(
    request: pytest.FixtureRequest, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Shop, Daemon]]:
    """A daemon with orders of two tenants: refunded in part, early and by items, cancelled, superseded."""
    folder = tmp_path_factory.mktemp("selling")
    shop = Shop(folder) if request.param == "sqlite" else RedisShop(folder, redis=redis)
    outlet = shop.create_key("server", "outlet")
    with shop.serve() as daemon:
        for visitor, source in (("ann", "newsletter"), ("bob", "search")):
            touch = {
                "key": "Page View",
                "anonymousId": visitor,
                "data": {},
                "context": {"campaign": {"source": source}},
            }
            assert daemon.post_signed(touch, shop.server).status == 200
            assert daemon.post_signed(touch, outlet).status == 200
        early = {"order_id": "o-1", "revenue": 0.7, "currency": "EUR", "refund_id": "r"}
        sent = [
            (shop.server, "Order Refunded", "backend", early),
            (shop.server, "Order Completed", "ann", {"order_id": "o-1", "revenue": 40.5, "currency": "EUR"}),
            (shop.server, "Order Refunded", "backend", {"order_id": "o-1", "revenue": 10.1, "currency": "eur"}),
            (shop.server, "Order Refunded", "backend", early),  # twice
            (shop.server, "Order Completed", "bob", {"order_id": "o-2", "total": 1234.56, "currency": " eur"}),
            (shop.server, "Order Cancelled", "backend", {"order_id": "o-2"}),
            (shop.server, "Order Completed", "eve", {"order_id": "o-3", "total": 19.9, "currency": "CZK"}),
            (outlet, "Order Completed", "bob", {"order_id": "o-1", "total": 5000, "currency": "EUR"}),
            (outlet, "Order Refunded", "backend", {"order_id": "o-1", "products": [{"price": 12.5, "quantity": 2}]}),
        ]
        public = {"key": "Order Completed", "anonymousId": "eve", "data": {"order_id": "o-1", "revenue": 999}}
        assert daemon.post("/track", public, shop.public.id).status == 200
        for key, name, visitor, data in sent:
            assert daemon.post_signed({"key": name, "anonymousId": visitor, "data": data}, key).status == 200
        reversals = 'ingestd_attribution_reversals_total{result="reversed"}'
        wait_until(lambda: daemon.metric(reversals) == 5)  # one of them of the order that was superseded
        costs = f"day,source,currency,cost\n{TODAY},newsletter,EUR,9.90\n{TODAY},newsletter,USD,5\n"
        (folder / "costs.csv").write_text(costs)
        run_ingestd("costs", "import", str(folder / "costs.csv"), "--tenant", "shop", config=shop.config)
        # The metric may be ahead of the journal, and the page keeps sales for a minute.
        wait_until(lambda: sum(each["net"] for each in orders_listed(daemon)) == pytest.approx(5024.6))
        yield shop, daemon


def orders_listed(daemon: Daemon) -> Any:
    return daemon.ops("/orders.json").json()["orders"]


def control(title: str) -> str:
    """A JavaScript expression for the element with this label in the first panel."""
    return f"[...document.querySelectorAll('#panels label')].find(each => each.textContent === '{title}').control"


def opened(browser: Browser, daemon: Daemon, *, width: int = 1280) -> Tab:
    tab = browser.tab(width=width, height=812 if width < 800 else 900)
    tab.open(f"http://127.0.0.1:{daemon.ops_port}/")
    tab.wait_for("document.querySelector('#sinks td') && document.querySelectorAll('canvas').length === 3")
    return tab


def test_the_status_counts_events(crowded: tuple[Shop, Daemon]) -> None:
    shown = status(crowded[1])
    assert (shown["ready"], shown["problem"]) == (True, None)
    assert {name: each["total"] for name, each in shown["events"]["byOutcome"].items()} == {
        "accepted": 7, "duplicate": 1, "invalid": 1, "unknown_key": 1, "unauthorized": 1,
    }  # fmt: skip
    assert shown["events"]["total"] == 11
    assert [(each["key"], each["total"]) for each in shown["events"]["byKey"]] == [
        ("Product Viewed", 7), ("", 2), ("Order Completed", 2),
    ]  # fmt: skip
    assert shown["identifies"]["accepted"]["total"] == 1
    assert shown["sessions"]["total"] == 3  # a visitor each
    assert {each["operation"]: each["total"] for each in shown["latency"]} == {
        "track": 7, "track-batch": 1, "customer-events": 2, "identify": 1,
    }  # fmt: skip
    assert all(0 < each["p50Seconds"] <= each["p99Seconds"] for each in shown["latency"])


def test_the_status_has_the_reasons_of_refused_events(crowded: tuple[Shop, Daemon]) -> None:
    shown = status(crowded[1])["refusals"]
    assert [(each["key"], each["pointer"], each["reason"], each["total"]) for each in shown] == [
        ("Product Viewed", "/data/price", "type", 1), ("", "", "unknown_key", 1), ("", "", "invalid_key", 1),
    ]  # fmt: skip
    assert {each["endpoint"] for each in shown} == {"track"}
    assert all(each["lastAt"].endswith("Z") for each in shown)


def test_the_status_has_sinks_and_other_consumers(crowded: tuple[Shop, Daemon]) -> None:
    shop, daemon = crowded
    records = 7 + 1 + 2  # events, an identify request, attributions
    wait_until(lambda: sink(daemon, "archive")["delivered"]["total"] == records)
    archive, crm = sink(daemon, "archive"), sink(daemon, "crm")
    assert archive == {
        "sink": "archive", "type": "jsonl", "state": "running", "delivered": {"lastMinute": records, "total": records},
        "filtered": 0, "retries": 0, "pending": 0, "oldestPendingSeconds": 0, "deadLetters": 0,
        "deadLettersCommand": f"ingestd sinks dead-letters list archive --config {shop.config}",
        "lastDeadLetterReason": None, "lastError": None,
    }  # fmt: skip
    assert (crm["state"], crm["pending"], crm["delivered"]["total"]) == ("failing", records, 0)
    assert crm["oldestPendingSeconds"] > 0
    assert "refused" in crm["lastError"]
    (attribution,) = status(daemon)["consumers"]
    assert (attribution["consumer"], attribution["state"]) == ("attribution", "running")
    assert status(daemon)["journal"]["records"] == records


def test_the_status_has_orders_and_revenue_by_campaign_for_each_model(crowded: tuple[Shop, Daemon]) -> None:
    (panel,) = status(crowded[1])["panels"]
    assert (panel["choose"], panel["chosen"]) == ("Model", "last_touch")
    assert [table["choice"] for table in panel["tables"]] == MODELS
    for table in panel["tables"]:
        assert table["title"] == "EUR"
        assert [column["title"] for column in table["columns"]] == ["Campaign", "Orders", "Revenue", "Reversed", "Net"]
        assert sorted(table["rows"]) == [["(direct)", 1, 40.5, 0, 40.5], [SHOWN, 1, 40.5, 0, 40.5]]
        assert table["total"] == ["Total", 2, 81, 0, 81]


def label(row: Mapping[str, Any]) -> str:
    return " / ".join(row[name] for name in ("source", "medium", "name") if row[name])


@pytest.mark.parametrize(("period", "tenant"), [("day", ""), ("week", "shop"), ("month", "outlet")])
def test_the_status_has_the_figures_of_the_report(selling: tuple[Shop, Daemon], period: str, tenant: str) -> None:
    shop, daemon = selling
    (panel,) = daemon.ops(f"/status.json?period={period}&tenant={tenant}").json()["panels"]
    assert [each["chosen"] for each in panel["filters"]] == [period, tenant]
    assert panel["note"] == panel["notes"]["last_touch"]
    match = re.search("“ingestd (attribution report [^”]*)”", panel["notes"]["linear"])
    assert match is not None
    command = shlex.split(match[1])
    assert command[-2:] == ["--config", str(shop.config)]
    told = [json.loads(line) for line in run_ingestd(*command, "--json").stdout.splitlines()]
    assert any(row["reversed"] for row in told)
    tables = [table for table in panel["tables"] if table["choice"] == "linear"]
    for table in tables:
        names = ["orders", "revenue", "reversed", "net"]
        shown = [row for row in told if row["currency"] == table["title"] and row["orders"]]
        rows = [[label(row), *(row[name] for name in names)] for row in shown]
        assert table["rows"] == rows
        sums = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
        assert table["total"] == ["Total", *(pytest.approx(each) for each in sums)]
    assert {table["title"] for table in tables} == {row["currency"] for row in told if row["orders"]}


@pytest.mark.parametrize("tenant", ["", "outlet"])
def test_the_sales_are_those_of_the_command(selling: tuple[Shop, Daemon], tenant: str) -> None:
    daemon = selling[1]
    sales = daemon.ops(f"/sales.json?days=7&tenant={tenant}").json()
    told = run_ingestd(*shlex.split(sales["command"])[1:], "--json").stdout.splitlines()
    needs_all = {"new": None, "returning": None}
    assert sales["rows"] == [json.loads(line) | needs_all for line in told]
    lines = csv.DictReader(run_ingestd(*shlex.split(sales["command"])[1:], "--csv").stdout.splitlines())
    file = daemon.ops(f"/sales.csv?days=7&tenant={tenant}")
    assert file.headers["content-type"] == "text/csv; charset=utf-8"
    given = csv.DictReader(file.body.decode().splitlines())
    assert [*given] == [each | {"new": "", "returning": ""} for each in lines]
    assert (sales["tenant"], sales["tenants"], sales["notes"]) == (tenant or None, ["outlet", "shop"], [])
    assert sum(row["net"] for row in sales["rows"] if row["currency"] == "EUR") == (4975 if tenant else 5004.7)
    assert sum(sales["course"]["currencies"]["EUR"]["net"]) == (4975 if tenant else 5004.7)
    assert daemon.ops("/sales.json?days=8").status == 400
    assert (
        daemon.request("GET", "/sales.json", None, port=daemon.ops_port, headers={"Origin": "http://x"}).status == 403
    )


def test_no_tenant_sees_another_and_an_unknown_one_sees_nothing(selling: tuple[Shop, Daemon]) -> None:
    _, daemon = selling
    for tenant in ("SHOP", "shop ", "*", "x" * 1000, "%00", "%C3%A9"):
        (panel,) = daemon.ops(f"/status.json?tenant={tenant.replace(' ', '%20')}").json()["panels"]
        assert (panel["tables"], panel["filters"][1]["chosen"]) == ([], None)
        assert [each["value"] for each in panel["filters"][1]["options"]] == ["", "outlet", "shop"]
    assert daemon.ops("/status.json?tenant=%FF").status == 400
    (panel,) = daemon.ops("/status.json?period=century&other=1").json()["panels"]
    assert [each["chosen"] for each in panel["filters"]] == ["day", ""]


def test_a_restart_forgets_no_order_of_the_day(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    order = {"key": "Order Completed", "anonymousId": "v", "data": {"order_id": "o", "total": 5}}
    with shop.serve() as daemon:
        assert daemon.post("/track", order, shop.public.id).status == 200
        assert daemon.post("/track", order, shop.public.id).status == 200  # it counts once
        wait_until(lambda: daemon.metric('ingestd_attribution_orders_total{result="repeated"}') == 1)
    with shop.serve() as daemon:
        assert status(daemon)["panels"][0]["tables"][0]["rows"] == [["(direct)", 1, 5, 0, 5]]


def test_the_last_errors_are_shown_without_quoted_values(crowded: tuple[Shop, Daemon]) -> None:
    shop, daemon = crowded
    again = {"key": "Order Completed", "anonymousId": "v", "data": {"order_id": "o-0", "revenue": 7}}
    assert daemon.post("/track", again, shop.public.id).status == 200
    wait_until(lambda: any("another value" in each["message"] for each in status(daemon)["errors"]))
    newest = next(each for each in status(daemon)["errors"] if "another value" in each["message"])
    assert newest["message"].startswith("the order '…' of shop was sent again with another value; its attribution ")
    assert (newest["level"], newest["logger"], newest["times"]) == ("warning", "ingestd.attribution", 1)
    (ignored,) = [each for each in shop.exported("--order", "o-0") if each.get("data", {}).get("revenue") == 7]
    assert newest["recordId"] == ignored["id"]
    daemon.read_log()
    assert any(ignored["id"] in line and newest["at"] in line for line in daemon.log)
    failing = next(each for each in status(daemon)["errors"] if each["message"].startswith("sink:crm: "))
    assert "refused" in failing["message"]
    text = json.dumps(status(daemon))
    for secret in (shop.public.id, shop.server.id, shop.server.secret, "visitor-", "o-0"):
        assert secret not in text


def test_simultaneous_requests_get_the_same_status(daemon: Daemon) -> None:
    """The status is made at most once a second. tests/plugins/console/test_dashboard.py tests the interval."""
    answers = [daemon.ops("/status.json").body for _ in range(20)]
    assert len({*answers}) < len(answers) / 2


@pytest.mark.parametrize("path", ["/", "/status.json"])
def test_the_page_only_reads_and_other_sites_cannot_use_it(path: str, daemon: Daemon) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert daemon.request(method, path, b"{}", port=daemon.ops_port).status == 405
    headers = daemon.ops(path).headers
    assert "access-control-allow-origin" not in headers
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert daemon.request("GET", path).status == 404  # the public listener


def test_the_page_may_load_nothing_from_elsewhere(daemon: Daemon) -> None:
    answer = daemon.ops("/")
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert (policy["connect-src"], policy["img-src"]) == ("'self'", "data:")
    for kind in ("script-src", "style-src"):
        assert re.fullmatch(r"('sha256-[\w+/]{43}=' ?)+", policy[kind])
    text = answer.body.decode()
    assert re.findall(r"<(?:script|link|img|iframe|style)[^>]* (?:src|href)=\"(?!data:)", text) == []
    assert re.findall(r"@import|url\((?!data:)", text) == []


def test_a_browser_shows_the_figures_and_updates_them(crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    shop, daemon = crowded
    tab = opened(browser, daemon)
    cells = """(id) => Object.fromEntries([...document.querySelectorAll(`#${id} tbody tr`)]
        .map(row => [row.cells[0].firstChild.textContent, row.lastChild.textContent]))"""
    assert tab.evaluate("document.getElementById('state').textContent") == "Ready"
    before = tab.evaluate(f"({cells})('keys')")
    shown = {each["key"] or "No known key": str(each["total"]) for each in status(daemon)["events"]["byKey"]}
    assert before == shown
    assert "failing" in tab.evaluate("document.getElementById('sinks').textContent")
    assert tab.evaluate("document.querySelectorAll('#panels img').length") == 0
    assert SHOWN in tab.evaluate("document.getElementById('panels').textContent")
    for _ in range(3):
        assert daemon.post("/track", {"key": "Cart Viewed", "anonymousId": "v", "data": {}}, shop.public.id).status
    tab.wait_for(f"({cells})('keys')['Cart Viewed'] === '3'")  # without being loaded again
    assert {url.removeprefix(f"http://127.0.0.1:{daemon.ops_port}") for url in tab.requests} <= {"/", "/status.json"}
    assert tab.requests.count(f"http://127.0.0.1:{daemon.ops_port}/") == 1
    assert tab.complaints == []


def test_a_browser_shows_why_events_are_refused(crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    shop, daemon = crowded
    tab = opened(browser, daemon)
    rows = "[...document.querySelectorAll('#refusals tbody tr')].map(row => [...row.cells].map(c => c.textContent))"
    known = next(row for row in tab.evaluate(rows) if row[0].startswith("Product Viewed"))
    assert known[1:3] == ["/data/price", "type"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d", known[5])
    event = {"key": "Order Updated", "anonymousId": "v", "data": {"products": [{"price": "<img src=x>"}]}}
    assert daemon.post("/track", event, shop.public.id).status == 400
    tab.wait_for(f"{rows}.some(row => row[0].startsWith('Order Updated') && row[1] === '/data/products/*/price')")
    assert tab.complaints == []


def test_a_browser_offers_the_models_and_keeps_the_choice(crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = opened(browser, crowded[1])
    select = control("Model")
    assert tab.evaluate(f"[...{select}.options].map(each => each.value)") == MODELS
    tab.evaluate(f"{select}.value = 'linear', {select}.dispatchEvent(new Event('change'))")
    for _ in range(2):
        tab.evaluate("ask()")  # the page does this every two seconds
    assert tab.evaluate(f"{select}.value") == "linear"
    assert tab.evaluate("location.search") == "?model=linear"


ROWS = """[...document.querySelectorAll('#panels tbody tr')]
    .map(row => [...row.cells].map(cell => cell.firstChild.textContent))"""
NEWSLETTER = ["newsletter", "1", "40.50", "10.80", "29.70"]
SALES_CELLS = ROWS.replace("#panels tbody tr", "#sales-table :is(tbody, tfoot) tr")
EUR_OF_ALL = ["5,004.70", "3", "1,668.23", "5", "80.0 %"]
OUTLET = ["search", "1", "5,000.00", "25.00", "4,975.00"]


def test_sales_begin_with_the_currency_of_most_orders(tmp_path: Path, browser: Browser) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        for number, currency in enumerate(["EUR", "EUR", None]):
            data = {"order_id": f"o-{number}", "revenue": 10, **({"currency": currency} if currency else {})}
            order = {"key": "Order Completed", "anonymousId": "ann", "data": data}
            assert daemon.post("/track", order, shop.public.id).status == 200
        wait_until(lambda: len(orders_listed(daemon)) == 3)
        tab = browser.tab(width=390, height=844)
        tab.open(f"http://127.0.0.1:{daemon.ops_port}/#sales")
        figure = "document.querySelector('#sales-figures dd')?.textContent"
        tab.wait_for(f"{figure} === '20.00EUR'")
        choice = "document.getElementById('sales-currency')"
        tab.evaluate(f"{choice}.value = '', {choice}.dispatchEvent(new Event('change'))")
        tab.wait_for(f"{figure} === '10.00'")
        assert tab.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('currency')") == ""


def test_a_browser_shows_sales(selling: tuple[Shop, Daemon], browser: Browser) -> None:
    width = 390 if isinstance(selling[0], RedisShop) else 1280  # the store changes nothing that a width would
    tab = browser.tab(width=width, height=844)
    tab.open(f"http://127.0.0.1:{selling[1].ops_port}/#sales")
    tab.wait_for("document.getElementById('sales-result')?.hidden === false")
    figures = "document.getElementById('sales-figures')"
    figure = f"{figures}.querySelector('dd')"
    assert tab.evaluate(f"{figure}.textContent") == "5,004.70EUR"
    assert tab.evaluate(f"{figure}.getBoundingClientRect().bottom") < 300  # the first thing
    assert "and 19.90 CZK" in tab.evaluate(f"{figures}.textContent")
    assert "Cost9.90EURand 5.00 USD" in tab.evaluate(f"{figures}.textContent")
    assert tab.evaluate(SALES_CELLS)[-1] == ["Total", *EUR_OF_ALL, "9.90", "505.53", "3.30"]
    assert tab.evaluate("document.getElementById('sales-costs').textContent").endswith(
        "Costs in USD are shown with that currency alone."
    )
    assert re.search(
        r"There is nothing to compare with from \S+ to \S+\.$",
        tab.evaluate("document.getElementById('sales-told').textContent"),
    )
    rows = "[...document.querySelectorAll('#sales-table tbody th')].map(each => each.textContent)"
    assert tab.evaluate(rows) == ["Unassigned", "Direct"]
    tab.evaluate("document.querySelector('#sales-table button').focus()")
    tab.press("Enter")
    assert tab.evaluate(rows) == ["Unassigned", "search", "newsletter", "Direct"]
    assert tab.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert [row[-3:] for row in tab.evaluate(SALES_CELLS)[1:3]] == [["–", "–", "–"], ["9.90", "3.00", "9.90"]]  # noqa: RUF001
    tab.evaluate("document.getElementById('sales-course-details').open = true")
    tab.wait_for("document.querySelectorAll('#sales-course-table tbody tr').length === 7")
    assert tab.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert tab.violations() == []
    tab.evaluate("document.querySelector('#sales-table .lists').click()")
    tab.wait_for("document.querySelectorAll('#sales-orders a').length === 3")
    tab.evaluate("URL.createObjectURL = (blob) => (blob.text().then((text) => (window.saved = text)), '#sales')")
    tab.evaluate("document.getElementById('sales-download').click()")
    assert tab.wait_for("window.saved").startswith("channel,source,medium,name,currency,orders,")
    tab.evaluate("location.hash = '#journey'")
    tab.wait_for("document.querySelectorAll('#journey-latest a').length === 4")
    assert tab.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert tab.violations() == []
    tab.evaluate("[...document.querySelectorAll('#journey-latest tr')].at(-1).querySelector('a').click()")
    tab.wait_for("document.getElementById('journey-result').hidden === false")
    assert tab.evaluate("document.querySelector('#journey-orders h3').textContent").startswith("Order of shop")
    assert tab.evaluate("document.getElementById('journey-latest').hidden")
    tab.evaluate("location.hash = '#sales?days=1&tenant=outlet&currency=EUR'")
    tab.wait_for(f"{figure}?.textContent === '4,975.00EUR'")
    assert tab.evaluate("document.getElementById('sales-days').value") == "1"
    tab.evaluate("document.getElementById('sales-earlier').click()")  # yesterday
    tab.wait_for(f"{figure}?.textContent === '0.00'")
    empty = "['sales-result', 'sales-nothing'].map((id) => document.getElementById(id).hidden)"
    assert tab.evaluate(empty) == [True, False]
    assert "since=" in tab.evaluate("location.hash")
    tab.evaluate("document.getElementById('sales-later').click()")
    tab.wait_for(f"{figure}?.textContent === '4,975.00EUR'")
    tab.evaluate("location.hash = '#sales?since=2099-01-01&until=2099-01-02'")
    tab.wait_for("document.getElementById('sales-told').textContent.startsWith('The period ends before')")
    assert tab.complaints in ([], ["Failed to load resource: the server responded with a status of 400 (Bad Request)"])


def test_a_browser_keeps_period_and_tenant_in_the_address(selling: tuple[Shop, Daemon], browser: Browser) -> None:
    _, daemon = selling
    tab = opened(browser, daemon)
    assert NEWSLETTER in tab.evaluate(ROWS)
    assert ["search", "2", "6,234.56", "1,259.56", "4,975.00"] in tab.evaluate(ROWS)
    tab.evaluate(f"{control('Tenant')}.focus()")
    tab.press("ArrowDown")
    tab.wait_for("document.getElementById('said').textContent === 'Tenant: outlet.'")
    assert tab.evaluate(ROWS) == [OUTLET]
    assert tab.evaluate(f"document.activeElement === {control('Tenant')}")  # the keyboard focus stays in the control
    tab.evaluate(f"{control('Period')}.focus()")
    tab.press("ArrowDown")
    tab.wait_for("document.getElementById('said').textContent === 'Period: 7 days.'")
    assert tab.evaluate("location.search") == "?tenant=outlet&period=week"
    tab.reload()
    tab.wait_for("document.querySelectorAll('#panels td').length")
    assert tab.evaluate(f"[{control('Period')}.value, {control('Tenant')}.value]") == ["week", "outlet"]
    assert tab.evaluate(ROWS) == [OUTLET]
    assert {name for role, name in tab.accessibility() if role == "combobox"} == {"Period", "Tenant", "Model"}
    assert tab.evaluate("document.documentElement.scrollWidth") == 1280
    assert tab.complaints == []


def test_a_browser_shows_no_orders_for_an_unknown_tenant(selling: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = browser.tab(width=320)
    tab.open(f"http://127.0.0.1:{selling[1].ops_port}/?tenant=elsewhere&period=month")
    tab.wait_for("document.body?.textContent.includes('This tenant has no orders')")
    assert tab.evaluate(f"{control('Tenant')}.selectedIndex") == -1
    assert tab.evaluate(ROWS) == []
    assert tab.evaluate("document.documentElement.scrollWidth") == 320
    assert tab.complaints == []


def test_a_browser_says_when_the_daemon_does_not_answer(tmp_path: Path, browser: Browser) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        tab = browser.tab()
        tab.open(f"http://127.0.0.1:{daemon.ops_port}/")
        tab.wait_for("document.body?.textContent.includes('No event has come')")
        assert tab.complaints == []
    tab.wait_for("!document.getElementById('stale').hidden")
    assert tab.evaluate("document.getElementById('said').textContent") == "The daemon does not answer."
    assert tab.evaluate("document.getElementById('state').textContent") == "No answer"


@pytest.mark.parametrize("width", [320, 375, 1280])
def test_nothing_is_wider_than_the_screen(width: int, crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = opened(browser, crowded[1], width=width)
    assert tab.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_overview_breaks_no_rule_of_accessibility(
    width: int, crowded: tuple[Shop, Daemon], browser: Browser
) -> None:
    tab = opened(browser, crowded[1], width=width)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    tab.wait_for("document.querySelectorAll('details table').length === 3")
    assert tab.violations() == []


@pytest.mark.parametrize("width", [375, 1280])
def test_a_screen_reader_finds_roles_and_names(width: int, crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = opened(browser, crowded[1], width=width)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    tab.wait_for("document.querySelectorAll('details table').length === 3")
    tree = tab.accessibility()
    roles = {role for role, _ in tree}
    assert {"banner", "main", "contentinfo", "heading", "table", "columnheader", "rowheader", "cell", "status"} <= roles
    named = {role: [name for each, name in tree if each == role] for role in roles}
    for role in ("region", "heading", "table", "image", "combobox", "button", "link", "columnheader", "rowheader"):
        assert all(named.get(role, [])), f"a {role} has no name"
    assert {
        "Events",
        "Latency",
        "Sessions",
        "Sinks",
        "Refused, by reason",
        "Orders and revenue by campaign",
        "Last errors",
    } <= {*named["region"]}
    assert named["combobox"] == ["Period", "Model"]
    pictures = " ".join(named["image"])
    assert re.search(r"Events, a second, .*: now Accepted \S+,", pictures)
    assert tab.evaluate("document.querySelectorAll('[aria-live], [role=status], [role=alert], [role=log]').length") == 1
    assert tab.evaluate("document.getElementById('said').textContent") == ""  # updates are not announced each time
    assert tab.complaints == []


VISIBLE = "[...document.querySelectorAll('.view')].filter(each => each.checkVisibility()).map(each => each.id)"
CURRENT = "[...document.querySelectorAll('.views [aria-current=page]')].map(each => each.textContent)"
VIEWS = {"#overview": "Overview", "#events": "Live events", "#journey": "Journey", "#dead-letters": "Dead letters"}


@pytest.mark.parametrize("width", [320, 1280])
def test_views_whose_data_come_late_do_not_move(width: int, crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = opened(browser, crowded[1], width=width)
    tab.observe_shifts()
    latency = {"latency": 800, "downloadThroughput": -1, "uploadThroughput": -1, "offline": False}
    tab.call("Network.emulateNetworkConditions", **latency)  # milliseconds: movements within 500 do not count
    for link in "#dead-letters", "#journey", "#events":
        tab.evaluate(f"document.querySelector('.views a[href=\"{link}\"]').focus()")
        tab.press("Enter")
        tab.wait_for(f"{VISIBLE}.join() === 'view-{link[1:]}'")
        if link == "#dead-letters":
            tab.wait_for("document.getElementById('dead-letters-sink').value !== ''")
    assert tab.shifts() == []


@pytest.mark.parametrize("width", [320, 1280])
def test_links_lead_to_the_views(width: int, crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    tab = opened(browser, crowded[1], width=width)
    assert tab.evaluate(VISIBLE) == ["view-overview"]
    assert tab.evaluate("document.title") == "ingestd"
    assert tab.evaluate(CURRENT) == ["Overview"]
    tab.observe_shifts()
    for link, name in reversed(VIEWS.items()):
        tab.evaluate(f"document.querySelector('.views a[href=\"{link}\"]').focus()")
        tab.press("Enter")
        tab.wait_for(f"location.hash === '{link}' && {VISIBLE}.join() === 'view-{link[1:]}'")
        assert tab.evaluate(CURRENT) == [name]
        expected = "ingestd" if name == "Overview" else f"{name} \N{EN DASH} ingestd"
        assert tab.evaluate("document.title") == expected
        assert tab.evaluate("[document.activeElement.id, scrollY]") == [f"view-{link[1:]}", 0]
        assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.evaluate("history.back()")
    tab.wait_for(f"{VISIBLE}.join() === 'view-events'")
    assert tab.shifts() == []
    assert ("navigation", "Views") in tab.accessibility()
    assert tab.complaints == []


def test_an_address_opens_its_view(crowded: tuple[Shop, Daemon], browser: Browser) -> None:
    for fragment, view in (("dead-letters", "dead-letters"), ("journey?order=1", "journey"), ("nothing", "overview")):
        tab = browser.tab()
        tab.open(f"http://127.0.0.1:{crowded[1].ops_port}/#{fragment}")
        tab.wait_for("document.getElementById('state')?.textContent === 'Ready'")
        assert tab.evaluate(VISIBLE) == [f"view-{view}"]
        assert tab.evaluate("document.activeElement === document.body")  # nothing takes the focus at the start


# The words of these cells that are on two lines.
BROKEN_WORDS = """((cells) => {
  const broken = [], found = document.querySelectorAll(cells);
  if (!found.length) return ["no cells"];
  for (const { firstChild } of found) {
    const range = document.createRange();
    for (const { 0: word, index } of firstChild.data.matchAll(/[^ ]+/g)) {
      range.setStart(firstChild, index);
      range.setEnd(firstChild, index + word.length);
      if (range.getClientRects().length > 1) broken.push(word);
    }
  }
  return broken;
})"""


@pytest.mark.usefixtures("told_sink")
def test_a_dead_letter_has_its_reason_and_the_command_beside_it(browser: Browser, desk: Desk) -> None:
    reason = "no customer has this number in the ledger, " * 5
    with desk.shop.serve() as daemon:
        desk.crm.tell(reject={1: reason})
        desk.send(daemon, 1)
        for width in (1280, 800, 375):
            tab = opened(browser, daemon, width=width)
            tab.wait_for("document.querySelector('#sinks').textContent.includes('dead-letters list crm')")
            text = tab.evaluate("document.querySelector('#sinks').textContent")
            command = f"ingestd sinks dead-letters list crm --config {desk.shop.config}"
            assert f"last dead letter: {reason.strip()}; {command}" in text
            assert tab.evaluate(f"{BROKEN_WORDS}('#errors td:nth-child(2), #sinks td.warn')") == []
            rows = tab.evaluate("document.querySelector('#errors tbody').textContent")
            (letter,) = [each["recordId"] for each in status(daemon)["errors"] if "dead letter" in each["message"]]
            assert f"record {letter}" in rows
            assert letter in {each["id"] for each in desk.shop.exported()}
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
