"""What people write in a shop's pages, and the ways in which a page gets the client."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

from scripts.demo_pages import PageHandler
from tests.support.browser_visits import NOTHING_WAITS, MakeSite, arrived, click, numbers
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.ports import free_port
from tests.support.recording_proxy import Exchange, recording_proxy
from tests.support.shop_pages import LOADED
from tests.support.tab import AnyBrowser

ROOT = Path(__file__).parents[3]


@contextmanager
def demo_shop(host: str, key: str) -> Iterator[str]:
    """The URL of the shop of `make demo`, whose pages send to this host."""
    handler = partial(PageHandler, {"host": host, "key": key, "operators": "/"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_calls_as_people_write_them(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    tab = place.open(browser)
    tab.evaluate("""{
        const own = { shop: 'outlet', variant: ['a'] }; ingestd.register(own); own.variant.push('later')
        ingestd.register({ variant: 'b' }); ingestd.register('gold')
        ingestd.page('Home'); ingestd.page('Kitchen', 'Cups', { sort: 'price' })
        ingestd.page({ own: 1 }, { dispatchId: 'm' })
        ingestd.track('order_completed', {
            order_id: 'o', revenue: '19.90', total: ' 24 ', tax: '-0.5', coupon: null, note: '12',
            products: [{ price: '2', quantity: 1, variant: null }],
        })
        ingestd.track('Promotion Viewed', { position: '2' })
        ingestd.track('Cart Viewed')
        ingestd.identify({ plan: 'gold' })
        ingestd.identify(17, { email: 'ann@shop.example' })
        ingestd.group('acme', { size: '5' })
        ingestd.alias('u-2', 'another-visitor')
        ingestd.reset(); ingestd.track('Signed Out', null)
    }""")
    wait_until(lambda: bool(arrived(shop, place, "Signed Out")))
    both = {"shop": "outlet", "variant": "b"}
    events = [(record["key"], record["data"]) for record in arrived(shop, place) if record["type"] == "event"]
    assert events == [
        ("Page View", {}),
        ("Page View", {**both, "name": "Home"}),
        ("Page View", {**both, "name": "Cups", "category": "Kitchen", "sort": "price"}),
        ("Page View", {**both, "own": 1}),
        ("Order Completed", {
            **both, "order_id": "o", "revenue": 19.9, "total": 24, "tax": -0.5, "note": "12",
            "products": [{"price": 2, "quantity": 1}],
        }),
        ("Promotion Viewed", {**both, "position": "2"}),
        ("Cart Viewed", both),
        ("Signed Out", {}),
    ]  # fmt: skip
    identifies = [record for record in arrived(shop, place) if record["type"] == "identify"]
    assert [(each["userId"], each["traits"]) for each in identifies] == [
        (None, {"plan": "gold"}), ("17", {"email": "ann@shop.example"}),
        ("17", {"groups": {"acme": {"size": "5"}}}), ("u-2", {}),
    ]  # fmt: skip
    assert identifies[-1]["anonymousId"] == "another-visitor"
    assert arrived(shop, place)[-1]["anonymousId"] == tab.evaluate("ingestd.anonymousId()") != events[0]
    context = arrived(shop, place)[0]["context"]
    device = "({ userAgent: navigator.userAgent, locale: navigator.language,"
    device += " viewport: { width: innerWidth, height: innerHeight },"
    device += " timezone: Intl.DateTimeFormat().resolvedOptions().timeZone })"
    assert {name: context[name] for name in ("userAgent", "locale", "viewport", "timezone")} == tab.evaluate(device)
    assert tab.complaints == []


def test_what_waits_is_sent_at_once_by_flush_and_the_first_event_without_it(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(interval=60_000)
    tab = place.open(browser)
    wait_until(lambda: len(arrived(shop, place)) == 1)
    tab.wait_for(NOTHING_WAITS)
    click(tab, 1)
    tab.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert numbers(shop, place) == []
    tab.evaluate("ingestd.flush()")
    wait_until(lambda: numbers(shop, place) == [1])


def test_before_send_changes_or_drops_an_event_and_one_that_throws_is_counted(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    place.before_send = """(event) => {
        if (event.key === 'Page View') return null
        if (event.data.number === 1) throw Error('of the shop')
        if (event.data.number === 2) return 'text'
        if (event.data.number === 3) return { ...event, data: { number: 33 } }
        if (event.data.number === 6) return Promise.resolve(event)
        event.context.page.title = 'hidden'
    }"""
    tab = place.open(browser)
    tab.evaluate("window.kept = { number: 4 }, ingestd.track('Product Clicked', kept)")
    click(tab, 1, 2, 3, 6, 5)
    wait_until(lambda: numbers(shop, place) == [4, 33, 5])
    assert tab.evaluate("kept") == {"number": 4}
    assert arrived(shop, place, "Page View") == []
    last = arrived(shop, place)[-1]["context"]
    assert last["page"]["title"] == "hidden"
    assert last["library"]["dropped"] == {"before_send": 3}


def test_a_single_page_shop_has_its_views_counted(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site(singlePage=True)
    tab = place.open(browser, "/?utm_source=newsletter")
    for code in (
        "history.replaceState({}, '', '/')",  # the shop tidies the address
        "history.pushState({}, '', '/p-1'), void (document.title = 'Product 1')",
        "history.pushState({}, '', '/p-1#reviews')",
        "history.pushState({}, '', '/p-1?colour=red'), history.replaceState({}, '', '/p-1?colour=blue')",
        "history.back()",
        "history.replaceState({}, '', '/p-2')",
    ):
        tab.evaluate(f"{code}, new Promise((done) => setTimeout(done, 100))")
    paths = ["/?utm_source=newsletter", "/p-1", "/p-1?colour=blue", "/p-1", "/p-2"]
    wait_until(lambda: len(arrived(shop, place)) == len(paths))
    pages = [record["context"]["page"] for record in arrived(shop, place)]
    assert [page["url"] for page in pages] == [place.origin + path for path in paths]
    assert [page["referrer"] for page in pages] == ["", *[place.origin + path for path in paths[:-1]]]
    assert pages[1]["title"] == "Product 1"
    for fragment in ("#/p-3", "#!/p-4", "#!/p-4?size=1", "#reviews"):
        tab.evaluate(f"location.hash = '{fragment}', new Promise((done) => setTimeout(done, 100))")
    wait_until(lambda: len(arrived(shop, place)) == len(paths) + 3)  # the path of `#reviews` is blank again
    assert {record["context"]["page"]["url"] for record in arrived(shop, place)[-3:]} == {f"{place.origin}/p-2"}


def test_pages_that_are_left_early_send_few_events_again(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    def slow(_: Exchange) -> bool:
        threading.Event().wait(0.15)
        return False

    with recording_proxy(daemon.port) as proxy:
        proxy.loses = slow
        place = site(f"http://{proxy.host}", interval=1000)
        tab = browser.tab()
        for number in range(5):
            place.visit(tab, f"/{number}")
        wait_until(lambda: len(arrived(shop, place)) == 5)
        sent = sum(len(json.loads(post.body)["events"]) for post in proxy.posts())
        tab.open("about:blank")
    assert sent <= 2 * 5  # even on a slow machine each is sent at most once more


def test_the_classic_script_needs_no_other_line_and_options_without_a_value_have_their_default(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    options = (
        "interval: null, beforeConsent: undefined, domain: undefined, before_send: undefined, secrets: 'Hush, one-time'"
    )
    init = f"ingestd.init({{ host: '{place.daemon}', key: '{place.key}', {options} }})"
    place.pages["/classic"] = (
        "<!doctype html><script id='ingestd' src='/ingestd.classic.js'></script>"
        f"<script>{init}; ingestd.page()</script>"
    )
    tab = browser.tab()
    tab.open(f"{place.origin}/classic?a=1&hush=SECRET&TIME=SECRET")
    wait_until(lambda: len(arrived(shop, place, "Page View")) == 1)
    assert arrived(shop, place)[0]["context"]["page"]["url"] == f"{place.origin}/classic?a=1"


def test_lines_that_run_again_or_stand_above_the_title_lose_no_call(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    """A shop that replaces its page by scripts runs the lines in it again, but no browser runs a module twice."""
    place = site()
    first, tag = place.scripts()
    tag = tag.replace("<script", "<script id='ingestd'")  # which is `window.ingestd`, too
    place.pages["/"] = f"<!doctype html><form id='ingestd'></form><script>{first}</script>{tag}<title>Below</title>"
    tab = place.open(browser)
    visitor = tab.evaluate("ingestd.anonymousId()")
    tab.evaluate(f"document.title = 'Second'; {first}")
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    assert [view["context"]["page"]["title"] for view in arrived(shop, place, "Page View")] == ["Below", "Second"]
    assert tab.evaluate("ingestd.anonymousId()") == visitor


def test_pages_work_while_ingestd_is_away(browser: AnyBrowser, site: MakeSite) -> None:
    """The lines of the documentation, those of its module, and the shop of `make demo`."""
    away = f"http://127.0.0.1:{free_port()}"
    place = site(away)
    module = re.search(r"```js\n(.*?)```", (ROOT / "docs" / "browser.md").read_text(), re.DOTALL)
    assert module is not None
    first, tag = place.scripts()
    script = f"<script type='module'>{module[1]}; document.title = 'ran'</script>"
    place.pages["/module"] = f"<!doctype html><title>x</title><script>{first}</script>{tag}{script}"
    tab = browser.tab()
    tab.open(f"{place.origin}/module")
    tab.wait_for("document.title === 'ran'")
    tab.evaluate("ingestd.track('Cart Viewed'); ingestd.ready(() => 0); ingestd.reset(); ingestd.anonymousId()")
    with demo_shop(away, place.key) as url:
        tab.open(f"{url}/?page=product&id=p-1")
        tab.wait_for("document.querySelector('#content h1')?.textContent === 'Stoneware mug'")
        tab.evaluate("document.querySelector('#content button').click()")
        tab.wait_for("document.querySelector('nav a').textContent === 'Cart (1)'")
        tab.open("about:blank")


def test_the_demo_shop_lists_what_it_sends_and_tells_the_decision(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    with demo_shop(f"http://127.0.0.1:{daemon.port}", shop.public.id) as url:
        tab = browser.tab()
        tab.open(url)
        listed = "[...document.querySelectorAll('#sent li')].map((each) => each.textContent)"
        for key in ("Page View", "Product List Viewed"):
            tab.wait_for(f"{listed}.some((each) => each.startsWith('{key} · ') && each.endsWith(' · stored'))")
        state = "document.getElementById('state').textContent"
        before = tab.evaluate(state)
        tab.evaluate("[...document.querySelectorAll('#choices button')].at(-1).click()")
        refused = tab.evaluate(state)
        assert refused != before
        tab.reload()
        tab.wait_for(f"performance.getEntriesByType('navigation')[0].type === 'reload' && {LOADED}")
        tab.wait_for(f"{state} === {json.dumps(refused)}")
        tab.wait_for("document.getElementById('waiting').textContent.startsWith('Nothing is sent')")
        assert tab.evaluate(listed) == []
        tab.open("about:blank")
