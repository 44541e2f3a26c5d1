"""When and where something happened: late scripts, wrong clocks, prepared pages, campaigns, and what must not leave."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ingestd.api.times import parse_time
from tests.support.browser import Browser
from tests.support.browser_visits import KEPT, MakeSite, arrived, click, numbers
from tests.support.clients import wait_until
from tests.support.daemon import Shop
from tests.support.journeys import attributions
from tests.support.shop_pages import CLIENT_PATH, LOADED
from tests.support.tab import AnyBrowser

LATE = "document.head.append(Object.assign(document.createElement('script'), {{ type: 'module', src: '{0}" + CLIENT_PATH
LATE += "' }}))"
CAMPAIGN = {"source": "newsletter", "medium": "email"}


def age(record: dict[str, Any]) -> float:
    """How long before its receipt the event happened, in seconds."""
    received, happened = parse_time(record["receivedAt"]), parse_time(record["timestamp"])
    assert received is not None
    assert happened is not None
    return (received - happened) / 1000


def test_a_late_script_finds_address_title_time_and_campaign_of_each_call(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    place.loads = False
    tab = browser.tab()
    tab.open(f"{place.origin}/?utm_source=newsletter&utm_medium=email")
    tab.wait_for("document.readyState === 'complete' && window.ingestd")
    tab.evaluate("window.kept = ingestd.track, history.replaceState({}, '', '/p-1'), document.title = 'Product 1', 0")
    tab.evaluate("ingestd.page(); kept('Product Clicked', { number: 1 }); ingestd.ready(() => (window.begun = true))")
    assert tab.evaluate("ingestd.anonymousId()") is None
    tab.evaluate("new Promise((done) => setTimeout(done, 600))")
    tab.evaluate(LATE.format(place.daemon))
    tab.wait_for(f"{LOADED} && window.begun")
    tab.evaluate("kept('Product Clicked', { number: 2 })")
    wait_until(lambda: numbers(shop, place) == [1, 2])
    first, second, *_ = arrived(shop, place)
    assert first["context"]["page"] == {
        "url": f"{place.origin}/?utm_source=newsletter&utm_medium=email", "referrer": "", "title": "A shop",
    }  # fmt: skip
    assert second["context"]["page"]["title"] == "Product 1"
    assert second["context"]["page"]["url"] == f"{place.origin}/p-1"
    assert all(record["context"]["campaign"] == CAMPAIGN for record in arrived(shop, place))
    assert age(first) >= max(0.6, age(arrived(shop, place)[-1]))


def test_lines_of_an_older_first_script_find_the_campaign_of_the_landing_page(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    place.loads = False
    place.pages["/landing"] = (
        "<!doctype html><title>Landing</title><script>window.ingestd = { calls: [] };"
        "for (const name of ['init', 'page']) ingestd[name] = (...given) => ingestd.calls.push([name, ...given]);"
        f"ingestd.init({{ host: '{place.daemon}', key: '{place.key}' }}); ingestd.page()</script>"
    )
    tab = browser.tab()
    tab.open(f"{place.origin}/landing?utm_source=newsletter&utm_medium=email")
    tab.wait_for("document.readyState === 'complete' && window.ingestd")
    tab.evaluate(f"history.replaceState({{}}, '', '/p-1'), void {LATE.format(place.daemon)}")
    wait_until(lambda: bool(arrived(shop, place)))
    assert arrived(shop, place)[0]["context"]["campaign"] == CAMPAIGN


def test_a_wrong_clock_of_the_device_is_corrected(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    places = {days: site(beforeConsent="wait") for days in (-400, 3)}
    tabs = []
    for days, place in places.items():
        tab = browser.tab()
        tab.run_first(
            f"{{ const Right = Date, wrong = () => Right.now() + {days} * 86400e3;"
            " window.Date = class extends Right {"
            " constructor(...given) { super(...(given.length ? given : [wrong()])) } static now() { return wrong() }"
            " } }"
        )
        place.visit(tab)
        tabs.append(tab)
    tab.evaluate("new Promise((done) => setTimeout(done, 1200))")
    for tab in tabs:
        click(tab, 1)
        tab.evaluate("ingestd.consent(true)")
    for place in places.values():
        wait_until(lambda place=place: numbers(shop, place) == [1])  # type: ignore[misc]
        waited, clicked = arrived(shop, place)
        assert age(waited) - age(clicked) >= 1.2
        assert 0 <= age(clicked) < 20


def test_a_page_that_is_only_prepared_is_nobodys_visit(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site(interval=0)
    tab = browser.tab()
    tab.run_first("Object.defineProperty(document, 'prerendering', { get: () => !window.shown })")
    place.visit(tab, "/?utm_source=newsletter&utm_medium=email")
    click(tab, 1)
    tab.evaluate("new Promise((done) => setTimeout(done, 200))")
    assert tab.evaluate(KEPT) == []
    assert [url for url in tab.requests if url.endswith("/batch")] == []
    tab.evaluate("window.shown = true, document.dispatchEvent(new Event('prerenderingchange'))")
    wait_until(lambda: numbers(shop, place) == [1])
    assert [record["context"]["campaign"] for record in arrived(shop, place)] == [CAMPAIGN] * 2


def test_chromium_prepares_pages_and_only_the_one_that_is_shown_sends(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    if not isinstance(browser, Browser):
        pytest.skip("Firefox prepares no pages")
    place = site()
    rules = '{"prerender": [{"urls": ["/shown", "/never"], "eagerness": "immediate"}]}'
    place.pages["/start"] = (
        f'<!doctype html><script type="speculationrules">{rules}</script>'
        "<script>setInterval(async () => { if (await (await fetch('/go')).text() === 'go') location = '/shown' }, 100)"
        "</script>"
    )
    place.pages["/go"] = "wait"
    browser.call("Target.createTarget", url=f"{place.origin}/start")  # attached to no session, which would prevent it
    time.sleep(1.5)
    assert arrived(shop, place) == []
    place.pages["/go"] = "go"
    went = time.time()
    wait_until(lambda: bool(arrived(shop, place)))
    (view,) = arrived(shop, place)
    assert view["context"]["page"]["url"] == f"{place.origin}/shown"
    assert (parse_time(view["timestamp"]) or 0) >= went * 1000 - 1


def test_a_restored_page_is_a_view_if_told_to(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site(restored=True)
    tab = place.open(browser)
    restore = "dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))"
    wait_until(lambda: len(arrived(shop, place, "Page View")) == 1)
    tab.evaluate(f"void {restore}")
    wait_until(lambda: len(arrived(shop, place, "Page View")) == 2)
    # Another page has taken the visitor's refusal while this one slept.
    tab.evaluate(f"localStorage['ingestd.consent'] = 'no', document.cookie = 'ingestd.consent=no', {restore}")
    click(tab, 1)
    assert tab.evaluate("ingestd.anonymousId()") is None
    assert tab.evaluate("localStorage['ingestd.id']") is None


def test_a_page_that_the_browser_restores_keeps_its_visitor_and_campaign_before_consent(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(beforeConsent="wait")
    place.pages["/blank"] = "<!doctype html><title>blank</title>"
    tab = place.open(browser, "/?utm_source=newsletter&utm_medium=email")
    tab.evaluate("addEventListener('pageshow', () => (window.restored = true)), history.replaceState({}, '', '/')")
    tab.evaluate(f"void (location.href = '{place.origin}/blank')")
    tab.wait_for("document.title === 'blank'")
    tab.evaluate("void setTimeout(() => history.back())")
    tab.wait_for("window.restored")
    tab.evaluate("ingestd.consent(true)")
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    assert len({record["anonymousId"] for record in arrived(shop, place)}) == 1
    assert [record["context"]["campaign"] for record in arrived(shop, place)] == [CAMPAIGN] * 2


GOOGLE = {"source": "google", "medium": "cpc"}
LINKS = [
    ("?UTM_SOURCE=newsletter&Utm_Medium=email", CAMPAIGN),
    ("#utm_source=newsletter&utm_medium=email", CAMPAIGN),
    ("#/cart?utm_source=newsletter&utm_medium=email", CAMPAIGN),
    ("?utm_nooverride=1&utm_source=paypal", GOOGLE),
    ("?utm_source=&utm_medium=%20&utm_id=1", GOOGLE),
    ("?ScCid=Sc7", {"click_id": "Sc7", "click_id_type": "ScCid"}),
    ("?epik=e&utm_source=pins", {"source": "pins", "click_id": "e", "click_id_type": "epik"}),
]


def test_the_campaign_of_a_later_link(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    tab = (place := site()).open(browser)
    for number, (link, _) in enumerate(LINKS):
        tab.evaluate(f"localStorage['ingestd.campaign'] = JSON.stringify({{ found: {GOOGLE}, seen: Date.now() }})")
        place.visit(tab, f"/landing{link}")
        click(tab, number)
    tab.evaluate("history.pushState({}, '', '/?utm_source=inside')")  # a router
    click(tab, 99)
    wait_until(lambda: len(numbers(shop, place)) == len(LINKS) + 1)
    campaigns = {
        each["data"]["number"]: each["context"].get("campaign") for each in arrived(shop, place, "Product Clicked")
    }
    assert campaigns == {**{number: wanted for number, (_, wanted) in enumerate(LINKS)}, 99: {"source": "inside"}}


def test_consent_on_the_second_page_keeps_the_campaign_that_its_referrer_names(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(beforeConsent="wait")
    tab = place.open(browser, "/?utm_source=newsletter&utm_medium=email&token=secret")
    tab.evaluate("void (location.href = '/second')")
    tab.wait_for(f"location.pathname === '/second' && {LOADED}")
    tab.evaluate("ingestd.consent(true); ingestd.track('Order Completed', { order_id: location.host, revenue: 10 })")
    wait_until(lambda: bool(arrived(shop, place, "Order Completed")))
    order = arrived(shop, place, "Order Completed")[0]
    assert order["context"]["campaign"] == CAMPAIGN
    assert order["context"]["page"]["referrer"] == f"{place.origin}/?utm_source=newsletter&utm_medium=email"
    assert attributions(shop, [place.name])[place.name]["touchpoint"]["source"] == "newsletter"
    # After a sign-out it stays away, though the referrer still names it.
    tab.evaluate("ingestd.reset()")
    tab.reload()
    tab.wait_for(f"performance.getEntriesByType('navigation')[0].type === 'reload' && {LOADED}")
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    assert "campaign" not in arrived(shop, place)[-1]["context"]


def test_no_fragment_and_no_secret_leave_the_page(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    tab = place.open(browser, "/reset?a=1&reset_token=SECRET&APIKey=SECRET&next=%2F%3Fcode%3DSECRET#token=SECRET")
    tab.evaluate("void (location.href = '/next#SECRET')")
    tab.wait_for(f"location.pathname === '/next' && {LOADED}")
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    assert [record["context"]["page"]["url"] for record in arrived(shop, place)] == [
        f"{place.origin}/reset?a=1", f"{place.origin}/next", f"{place.origin}/next",
    ]  # fmt: skip
    assert arrived(shop, place)[-1]["context"]["page"]["referrer"] == f"{place.origin}/reset?a=1"
    assert "SECRET" not in str(arrived(shop, place))
    place.options = {"secrets": ["hush"]}
    place.visit(tab, f"/?token=1&hush=2&long={'x' * 5000}")
    wait_until(lambda: len(arrived(shop, place, "Page View")) == 3)
    url = arrived(shop, place, "Page View")[-1]["context"]["page"]["url"]
    assert url.startswith(f"{place.origin}/?token=1&long=xxx")
    assert len(url) < 4096
