"""What the client cannot send or keep: it is counted, and takes no other event with it."""

from __future__ import annotations

import itertools
import json
import socket
from typing import Any

import pytest

from tests.support.browser_visits import NOTHING_WAITS, MakeSite, arrived, click, dropped, numbers
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.recording_proxy import recording_proxy
from tests.support.tab import AnyBrowser

# What old libraries, browsers and attackers do to a page.
SPOILT = [
    """
    Array.prototype.toJSON = function () { return '[' + this.map((each) => JSON.stringify(each)).join(', ') + ']' }
    Date.prototype.toJSON = () => 'today'
    Object.prototype.toJSON = () => 'polluted'
    Object.assign(Object.prototype, { extra: 1, status: 500, code: 'x', domain: 'evil', signal: 1, source: 'x' })
    Array.prototype.reduce = Array.prototype.first = function () { return this[0] }
    Array.from = (list) => Array.prototype.slice.call(list); Function.prototype.bind = function () { return this }
    Object.defineProperty(Navigator.prototype, 'onLine', { value: false })
    """,
    """
    Object.defineProperty(window, 'localStorage', { get() { throw Error('broken') } })
    Object.defineProperty(Document.prototype, 'cookie', { get() { throw Error('no') }, set() { throw Error('no') } })
    """,
    """
    Object.keys = (object) => { const names = []; for (const name in object) names.push(name); return names }
    Object.defineProperty(window, 'localStorage', { value: null })
    """,
    "[Array, Object, String, Date, Map, Set, Promise, RegExp].forEach((kind) => Object.freeze(kind.prototype))",
    "Object.defineProperty(window, 'localStorage', { value: { getItem: () => null, setItem() {}, removeItem() {} } })",
    "Storage.prototype.getItem = () => { throw Error('broken') }",
    """
    for (const name of ['title', 'referrer']) // as a form or an image of this name does it
      Object.defineProperty(Document.prototype, name, { get: () => document.createElement('form') })
    """,
    "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') }",
    # Storage that keeps what it should remove, and storage that makes things up.
    "localStorage['ingestd.dropped'] = '[1'; Storage.prototype.removeItem = () => { throw Error('read only') }",
    "Object.defineProperty(window, 'localStorage', { value: { getItem: () => '', setItem() {}, removeItem() {} } })",
    "Object.defineProperty(window, 'localStorage', { value: { getItem: () => '[', setItem() {}, removeItem() {} } })",
    """
    const add = (name) => document.body.append(Object.assign(document.createElement('form'), { name }))
    addEventListener('DOMContentLoaded', () => ['title', 'referrer', 'cookie', 'hidden'].forEach(add))
    Intl.DateTimeFormat = () => { throw RangeError('of the locale') }
    """,
    """
    const send = fetch; let requests = 0
    window.fetch = (...given) => (requests++ ? send(...given) : { ok: true })
    """,
]


def test_events_arrive_from_pages_with_old_libraries_broken_storage_and_a_lying_network_state(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place, tabs = site(), []
    for number, code in enumerate(SPOILT):
        tab = browser.tab()
        tab.run_first(code)
        place.visit(tab, f"/{number}")
        click(tab, number)
        order = f"{{ order_id: 's-{number}', products: [{{ price: 1 }}], lost: NaN }}"
        tab.evaluate(f"ingestd.track('Order Completed', {order})")
        tabs.append(tab)
    wait_until(lambda: len(arrived(shop, place, "Order Completed")) == len(SPOILT))
    assert sorted(numbers(shop, place)) == list(range(len(SPOILT)))
    assert all(
        order["context"]["library"]["dropped"]["unserializable"] for order in arrived(shop, place, "Order Completed")
    )
    assert max(len([url for url in tab.requests if url.endswith("/batch")]) for tab in tabs) < 10
    assert all(order["data"]["products"] == [{"price": 1}] for order in arrived(shop, place, "Order Completed"))
    assert all("campaign" not in record["context"] for record in arrived(shop, place))


def test_values_that_json_lacks_do_not_cost_their_event(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    tab = (place := site()).open(browser)
    tab.evaluate("""{
        const round = { name: 'round' }; round.self = round
        let deep = {}; for (let depth = 0; depth < 20000; depth++) deep = { deep }
        ingestd.track('Order Completed', {
            order_id: 'o', row: 12345678901234567890n, map: new Map([['a', [1n]]]), set: new Set([1, 2]), round,
            when: new Date(0), never: new Date(NaN), money: { toJSON: () => '19.90' }, text: new String('boxed'),
            get broken() { throw Error('getter') }, none: NaN, element: document.body, f() {}, gone: undefined,
            half: 'shoes \\ud83d', ['key \\ude00']: 'whole \\ud83d\\ude00', nobody: { __proto__: null, a: 1 },
            coupon: null, products: [{ price: '19.90', quantity: ' 2 ', row: 7n }, undefined],
            deep, address: new URL('https://a.example/b'),
            node: { nodeType: 'page' }, moment: { valueOf: () => 7, toJSON: () => '12:00' },
            same: { a: 1, toJSON() { return this } }, later: { valueOf() { throw TypeError() }, toJSON: () => '13:00' },
        })
        document.title = 'Great shoes \\ud83d'
    }""")
    # The deep object keeps its first levels. Two more are the cyclic member, the date that is none, the getter,
    # the number that is none, and the element.
    lost = dropped(shop, place, tab, 1)
    assert lost == {"unserializable": 6}
    (order,) = arrived(shop, place, "Order Completed")
    data = order["data"]
    assert 90 < json.dumps(data.pop("deep")).count("deep") < 100
    assert data == {
        "order_id": "o", "row": "12345678901234567890", "map": {"a": ["1"]}, "set": [1, 2], "round": {"name": "round"},
        "when": "1970-01-01T00:00:00.000Z", "money": "19.90", "text": "boxed", "half": "shoes \ufffd",
        "key \ufffd": "whole \U0001f600", "nobody": {"a": 1}, "products": [{"price": 19.9, "quantity": 2, "row": "7"}],
        "address": "https://a.example/b", "node": {"nodeType": "page"}, "moment": "12:00", "same": {"a": 1},
        "later": "13:00",
    }  # fmt: skip
    assert arrived(shop, place)[-1]["context"]["page"]["title"] == "Great shoes \ufffd"


def test_what_others_have_written_into_storage_and_cookies_is_replaced_and_counted(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    tab = (place := site()).open(browser)
    first = tab.evaluate("ingestd.anonymousId()")
    place.pages["/blank"] = "x"
    tab.open(f"{place.origin}/blank")
    tab.wait_for("location.pathname === '/blank' && document.readyState === 'complete'")
    event = {"key": "Page View"}
    poison: dict[str, Any] = {
        "q1": "[1", "q2": [place.key, "text"], "q3": {"key": place.key, "event": 7},
        "q4": {"key": "no\nkey", "event": event},
        "q5": {"key": "n\u00f6\u2028", "event": event}, "q6": {"key": None, "event": event}, "q7": "null", "q8": "",
        "pause": "9e15", "campaign": {"found": {"source": 5}, "seen": 9e15}, "dropped": ["x"], "id": "x" * 600,
    }  # fmt: skip
    for name, value in poison.items():
        text = value if isinstance(value, str) else json.dumps(value)
        tab.evaluate(f"localStorage['ingestd.{name}'] = {json.dumps(text)}")
    tab.evaluate("document.cookie = 'ingestd.id=undefined; path=/'; document.cookie = 'ingestdXid=TOSSED; path=/'")
    place.visit(tab, "/after")
    assert dropped(shop, place, tab, 1) == {"storage": 9, "campaign": 1, "id": 1}
    after = arrived(shop, place)[-1]["anonymousId"]
    assert after not in {first, "undefined", "TOSSED", "x" * 600}
    assert tab.evaluate("localStorage['ingestd.id']") == after
    assert "campaign" not in arrived(shop, place)[-1]["context"]
    # Each has the form of an entry, with members that no event may have.
    tab.evaluate("""{
        localStorage['ingestd.campaign'] = JSON.stringify({ found: ['x'], seen: Date.now() })
        localStorage['ingestd.dropped'] = '{"refused": "5"}'
    }""")
    place.visit(tab, "/again")
    assert dropped(shop, place, tab, 2) == {"storage": 1, "campaign": 1}
    assert "campaign" not in arrived(shop, place)[-1]["context"]


@pytest.mark.parametrize("gone", ["clear()", "removeItem(Object.keys(localStorage).at(-1))"])
def test_a_shop_that_clears_the_storage_takes_no_event(
    browser: AnyBrowser, shop: Shop, site: MakeSite, gone: str
) -> None:
    tab = (place := site(beforeConsent="wait")).open(browser)
    tab.evaluate(f"ingestd.consent(true); ingestd.track('Product Clicked', {{ number: 1 }}); localStorage.{gone}")
    click(tab, 2)
    wait_until(lambda: numbers(shop, place) == [1, 2])
    assert len({record["anonymousId"] for record in arrived(shop, place)}) == 1
    tab.wait_for(NOTHING_WAITS)


def test_a_thousand_events_at_once_and_large_ones_arrive_as_far_as_there_is_room(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    tab = (place := site()).open(browser)
    wait_until(lambda: len(arrived(shop, place)) == 1)
    tab.evaluate("for (let number = 0; number < 1000; number++) ingestd.track('Product Clicked', { number })")
    tab.evaluate("[100e3, 2e6].forEach((size) => ingestd.track('Cart Viewed', { text: 'ž'.repeat(size) }))")
    tab.evaluate(
        "ingestd.track('Cart Viewed', Object.fromEntries(Array(1e5).fill().map((_, index) => [index, index])))"
    )
    lost = dropped(shop, place, tab, 1000)
    # Without the Page View and the last click. The object with many members is cut and counted.
    assert lost == {"room": 1003 - (len(arrived(shop, place)) - 2), "unserializable": 1}
    assert numbers(shop, place)[-400:] == list(range(601, 1001))
    assert len(arrived(shop, place, "Cart Viewed")) == 2


def test_a_key_that_is_no_header_stops_nothing_and_is_told_by_the_next_page(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    right, place.key = place.key, "no\nkey"
    tab = place.open(browser)
    click(tab, 1)
    place.key = right
    place.visit(tab, "/next")
    assert dropped(shop, place, tab, 2) == {"options": 2}
    assert numbers(shop, place) == [2]


def test_the_keepalive_budget_that_others_have_taken_does_not_hold_events_up(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    tab = (place := site()).open(browser)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        port = silent.getsockname()[1]
        took = "{ method: 'POST', mode: 'no-cors', keepalive: true, body: 'x'.repeat(63e3) }"
        tab.evaluate(f"void fetch('http://127.0.0.1:{port}/', {took}).catch(() => 0)")
        click(tab, 1)
        wait_until(lambda: numbers(shop, place) == [1])


CORS = {"access-control-allow-origin": "*", "content-type": "text/html"}
REFUSE_NO_EVENT = [
    Reply(403, CORS, b"<h1>Forbidden</h1>"),
    Reply(404, {**CORS, "content-type": "application/json"}, b'{"code": "NotFound", "message": "no route"}'),
    Reply(413, CORS, b"too large"),
    Reply(200, CORS, b"<h1>Please sign in to this network</h1>"),
    Reply(403, {}, b"no CORS"),
    # Of a daemon that does not know the key yet.
    Reply(401, CORS, b'{"type": "urn:ingestd:problem:invalid_key", "status": 401}'),
]


def test_an_answer_that_refuses_no_event_ends_no_wait(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    """Each site gets one of these answers to its first request."""
    waiting: dict[bytes, Reply] = {}

    def answers(method: str, body: bytes) -> Reply | None:
        for name in [name for name in waiting if name in body and method == "POST"]:
            return waiting.pop(name)
        return None

    with recording_proxy(daemon.port) as proxy:
        proxy.answers = answers
        places = [site(f"http://{proxy.host}") for _ in REFUSE_NO_EVENT]
        waiting |= {place.name.encode(): answer for place, answer in zip(places, REFUSE_NO_EVENT, strict=True)}
        tabs = [place.open(browser) for place in places]
        for tab in tabs:
            click(tab, 1)
        for place, tab in zip(places, tabs, strict=True):
            assert dropped(shop, place, tab, 2) is None
            assert numbers(shop, place) == [1, 2]
            assert len(arrived(shop, place, "Page View")) == 1
            tab.open("about:blank")
    assert waiting == {}


def test_a_pause_that_is_none_is_no_invitation_to_ask_again_and_again(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    ends = False
    with recording_proxy(daemon.port) as proxy:
        proxy.answers = lambda method, body: (
            Reply(503, {**CORS, "access-control-expose-headers": "retry-after", "retry-after": "-5"}, b"busy")
            if method == "POST" and not ends
            else None
        )
        tab = (place := site(f"http://{proxy.host}", interval=0)).open(browser)
        wait_until(lambda: len(proxy.posts()) >= 2)
        assert len(proxy.posts()) < 10
        ends = True
        click(tab, 1)
        wait_until(lambda: numbers(shop, place) == [1])
        tab.open("about:blank")


def test_a_firewall_that_does_not_say_that_it_refuses_stops_no_other_event(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    """Its answer has no CORS headers, so that the page sees none, or is a page with the status 200."""
    pages = {b"DROP TABLE": Reply(403, {}, b"blocked"), b"../etc": Reply(200, CORS, b"<h1>Rejected</h1>")}

    def answers(method: str, body: bytes) -> Reply | None:
        return next((page for word, page in pages.items() if word in body and method == "POST"), None)

    with recording_proxy(daemon.port) as proxy:
        proxy.answers = answers
        tab = (place := site(f"http://{proxy.host}")).open(browser)
        wait_until(lambda: len(arrived(shop, place)) == 1)
        for number, query in enumerate(["DROP TABLE", "../etc", "shoes"]):
            event: dict[str, Any] = {
                "key": "Products Searched",
                "data": {"query": query},
                "anonymousId": "a-visitor-of-the-shop",
            }
            event["context"] = {"page": {"url": place.origin}}
            waiting = f"{{ key: '{place.key}', event: {json.dumps(event)}, tried: Date.now() - 61e3 }}"
            tab.evaluate(f"localStorage['ingestd.q{number}'] = JSON.stringify({waiting})")
        tab.evaluate("void setInterval(() => dispatchEvent(new Event('online')), 50)")  # ends each pause
        click(tab, 1)
        wait_until(lambda: numbers(shop, place) == [1] and bool(arrived(shop, place, "Products Searched")))
        assert [event["data"]["query"] for event in arrived(shop, place, "Products Searched")] == ["shoes"]
        assert tab.evaluate("'ingestd.q0' in localStorage && 'ingestd.q1' in localStorage")
        tab.open("about:blank")


def test_an_event_that_a_firewall_or_the_daemon_refuses_takes_no_neighbour(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    blocked = True

    def answers(method: str, body: bytes) -> Reply | None:
        return Reply(403, CORS, b"blocked") if blocked and method == "POST" and b"'; DROP TABLE" in body else None

    with recording_proxy(daemon.port) as proxy:
        proxy.answers = answers
        tab = (place := site(f"http://{proxy.host}", beforeConsent="wait")).open(browser)
        click(tab, 1)
        tab.evaluate("ingestd.track('Products Searched', { query: \"'; DROP TABLE shoes\" })")
        tab.evaluate("ingestd.track('Product Viewed', { name: 7 })")
        click(tab, 2)
        tab.evaluate("ingestd.consent(true)")
        wait_until(lambda: numbers(shop, place) == [1, 2])
        posts = proxy.posts()
        for post, following in itertools.pairwise(posts):
            if post.reply.status == 403:  # a shop that is blocked altogether has hundreds of events
                assert following.at - post.at > 0.9
        click(tab, 3)
        wait_until(lambda: numbers(shop, place)[-1] == 3)
        assert arrived(shop, place, "Products Searched") == []
        blocked = False
        wait_until(lambda: len(arrived(shop, place, "Products Searched")) == 1)
        assert dropped(shop, place, tab, 4) == {"refused": 1}
        tab.open("about:blank")
