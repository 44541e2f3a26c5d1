"""SDKs for browsers in Chromium, on pages of another origin: what arrives, and that no other host is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import Browser, Tab
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.journeys import attributions
from tests.support.sdk_journeys import UNUSUAL, record_of, summary
from tests.support.sdk_pages import SdkPages, make_calls, sdk_pages
from tests.support.sdks import SERVER_SDKS, Call, Start

BACKEND = SERVER_SDKS[0]
QUERY = "?utm_source=newsletter&utm_medium=e-mail&utm_campaign=žluté+jaro"
CAMPAIGN = {"source": "newsletter", "medium": "e-mail", "name": "žluté jaro"}
PRODUCT = {"product_id": "p-1", "name": "Kočárek 🛒", "price": 19.9, "quantity": 2}

# One of the SDKs makes `{}` of an empty list in a list of traits.
TRAITS = {**UNUSUAL, "email": "žofie@example.com", "list": [1, None, {"list": [None, False]}]}


@dataclass(frozen=True)
class Case:
    """A block of lines in docs/sdks.md."""

    package: str
    block: int
    paths: set[str]
    """The paths of its requests."""
    batches: bool = False
    """Whether the order of calls is kept. Without batches, each call is a request."""
    has_screens: bool = True

    @property
    def name(self) -> str:
        words = re.findall("[a-z]+", self.package.lower().replace("'", ""))
        return "-".join([*words, str(self.block)])


@dataclass(frozen=True)
class Visit:
    case: Case
    tab: Tab
    calls: list[Call]
    records: list[dict[str, Any]]


ANALYTICS_NEXT = {"/v1/p", "/v1/t", "/v1/i", "/v1/s", "/v1/g", "/v1/a"}
CASES = [
    Case("@segment/analytics-next", 0, ANALYTICS_NEXT),
    Case("Segment's snippet", 0, {"/v1/projects/segments-snippet-0/settings", *ANALYTICS_NEXT}),
    Case("@segment/analytics-next", 1, {"/v1/projects/segment-analytics-next-1/settings", "/v1/b"}, batches=True),
    Case(
        "@rudderstack/analytics-js",
        0,
        {"/v1/page", "/v1/track", "/v1/identify", "/v1/group", "/v1/alias"},
        has_screens=False,
    ),
    Case("@rudderstack/analytics-js", 1, {"/sourceConfig/", "/v1/batch"}, batches=True, has_screens=False),
    Case("@rudderstack/analytics-js", 2, {"/sourceConfig/", "/beacon/v1/batch"}, batches=True, has_screens=False),
]


@dataclass(frozen=True)
class Place:
    shop: Shop
    daemon: Daemon
    browser: Browser
    pages: SdkPages

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.daemon.port}"

    def records(self, tenant: str) -> list[dict[str, Any]]:
        """The records of events and identify requests, in order."""
        return [record for record in self.shop.stored(f'"{tenant}"') if "endpoint" in record]

    def opened(self, case: Case, path: str = "") -> Tab:
        tab = self.browser.tab()
        tab.open(self.pages.publish(case.package, self.host, case.name, case.block) + path)
        return tab


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Each case has a key of its own, and so a tenant: one browser runs them all."""
    new = tmp_path_factory.mktemp
    keys = ", ".join(f'{{ id = "{case.name}", kind = "public", tenant = "{case.name}" }}' for case in CASES)
    shop = Shop(new("shop"), {"plugins.keys": f"declared = [{keys}]"})
    with shop.serve() as daemon, sdk_pages(new("pages")) as pages, Browser(new("profile")) as browser:
        yield Place(shop, daemon, browser, pages)


def calls_of(case: Case) -> list[Call]:
    user = f"{case.name}-user"
    calls: list[Call] = [
        ("page", {"category": "Shop", "name": "Home 🏠", "properties": {"section": "sale"}}),
        ("track", {"event": "Product Viewed", "properties": {**PRODUCT, **UNUSUAL}}),
        ("identify", {"userId": user, "traits": TRAITS}),
        ("track", {"event": "product_added", "properties": PRODUCT}),
        ("screen", {"name": "Cart", "properties": UNUSUAL}),
        ("group", {"groupId": f"{case.name}-group", "traits": {"plan": "gold"}}),
        ("alias", {"userId": user, "previousId": f"{case.name}-phone"}),
        ("track", {"event": "Cart Viewed", "properties": {"cart_id": "c-1"}}),
    ]
    return [call for call in calls if case.has_screens or call[0] != "screen"]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def visit(request: pytest.FixtureRequest, place: Place) -> Iterator[Visit]:
    """A visit to one page. Without batches, each call waits for the one before, so that their order is known.

    All calls wait for the first one: an SDK that is still starting may send a later call before it.
    """
    case: Case = request.param
    tab = place.opened(case, QUERY)
    calls = calls_of(case)
    for number, call in enumerate(calls):
        make_calls(tab, [call])
        if not case.batches or number == 0:
            wait_until(lambda number=number: len(place.records(case.name)) > number)  # type: ignore[misc]
    wait_until(lambda: len(place.records(case.name)) == len(calls))
    yield Visit(case, tab, calls, place.records(case.name))
    tab.open("about:blank")


def test_the_records_are_what_the_page_has_sent(visit: Visit) -> None:
    visitor = visit.records[0]["anonymousId"]
    user = None
    for call, record in zip(visit.calls, visit.records, strict=True):
        user = call[1].get("userId", user)
        told = record_of(call) | {"userId": user}
        told["anonymousId"] = told["anonymousId"] or visitor
        stored = summary(record)
        if "data" in told and call[0] in {"page", "screen"}:  # the SDK adds what it knows of the page
            stored["data"] = {name: value for name, value in stored["data"].items() if name in told["data"]}
        assert stored == told


def test_each_record_has_the_page_and_its_campaign(visit: Visit) -> None:
    url = visit.tab.evaluate("location.href")
    for record in visit.records:
        assert record["context"]["page"]["url"] == url
        assert record["context"]["campaign"] == CAMPAIGN
    assert visit.records[0]["data"]["url"] == url


def test_a_visit_is_one_session(visit: Visit) -> None:
    visitor = visit.records[0]["anonymousId"]
    sessions = [record["sessionId"] for record in visit.records if record["anonymousId"] == visitor]
    assert len({*sessions}) == 1
    assert [record["sessionIsNew"] for record in visit.records][:2] == [True, False]


def test_the_page_asks_its_own_host_and_the_daemon_alone(visit: Visit, place: Place) -> None:
    own = visit.tab.evaluate("location.host")
    asked = {urlsplit(url).netloc for url in visit.tab.requests if not url.startswith("data:")}
    assert asked == {place.host, own}
    assert visit.tab.complaints == []


def test_each_path_has_a_preflight_unless_it_takes_beacons(visit: Visit, place: Place) -> None:
    """A beacon has no header that would need one."""
    sent = {urlsplit(url).path for url in visit.tab.requests if urlsplit(url).netloc == place.host}
    asked = {urlsplit(url).path for url in visit.tab.preflights}
    simple = {"/beacon/v1/batch", f"/v1/projects/{visit.case.name}/settings"}
    assert asked == sent - simple
    assert sent == visit.case.paths


def test_an_order_of_the_backend_is_credited_to_the_campaign_of_the_page(
    visit: Visit, place: Place, start: Start
) -> None:
    """The backend's SDK knows the user alone. An alias is an arrival of the old id, with the campaign of the page."""
    order = f"{visit.case.name}-order"
    program = start(BACKEND, place.host, visit.case.name)
    event = {"event": "Order Completed", "properties": {"order_id": order, "revenue": 39.8, "currency": "CZK"}}
    program.make([("track", {"userId": f"{visit.case.name}-user", **event})])
    assert program.end() == []
    touchpoint = attributions(place.shop, [order])[order]["touchpoint"]
    assert {name: touchpoint[name] for name in CAMPAIGN} == CAMPAIGN
    arrivals = {record["anonymousId"]: record for record in reversed(visit.records)}  # the first record of each visitor
    assert touchpoint["eventId"] == max(arrivals.values(), key=lambda record: record["timestamp"])["id"]


def test_a_beacon_is_sent_when_the_visitor_leaves_the_page(place: Place) -> None:
    tab = place.browser.tab()
    tab.open(place.pages.publish("@rudderstack/analytics-js", place.host, place.shop.public.id, block=2))
    tab.wait_for("window.isReady")
    make_calls(tab, [("track", {"event": "Signed Out", "properties": {}})])
    tab.open("about:blank")
    wait_until(lambda: [record["key"] for record in place.records(place.shop.tenant)] == ["Signed Out"])
