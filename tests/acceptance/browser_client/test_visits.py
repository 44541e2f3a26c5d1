"""The browser client in Chromium and Firefox against a daemon: what arrives, what is kept, every event stored once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ingestd import RELEASE
from tests.support.browser_visits import KEPT, NOTHING_WAITS, MakeSite, arrived, click, numbers
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.journeys import attributions
from tests.support.ports import free_port
from tests.support.recording_proxy import Exchange, recording_proxy
from tests.support.shop_pages import CLIENT_PATH, LOADED, ShopPages
from tests.support.tab import AnyBrowser

LANDING = "/?utm_source=newsletter&utm_medium=e-mail&utm_campaign=žluté+jaro&gclid=Cj0K"
CAMPAIGN = {
    "source": "newsletter", "medium": "e-mail", "name": "žluté jaro", "click_id": "Cj0K", "click_id_type": "gclid",
}  # fmt: skip


def test_a_whole_visit_has_one_visitor_one_session_and_the_campaign_of_its_landing_page(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(debug=True)
    tab = place.open(browser, LANDING)
    place.visit(tab, "/p-1")
    tab.evaluate("ingestd.track('Product Viewed', { product_id: 'p-1', price: 19.9 }, { dispatchId: 'mail-7' })")
    place.visit(tab, "/thanks")
    tab.evaluate("ingestd.identify('u-17', { plan: 'gold' })")
    tab.evaluate("ingestd.track('Order Completed', { order_id: 'o-1', revenue: 40, currency: 'EUR' })")
    wait_until(lambda: len(arrived(shop, place)) == 6)
    records = arrived(shop, place)
    assert [record.get("key") for record in records] == [
        "Page View", "Page View", "Product Viewed", "Page View", None, "Order Completed",
    ]  # fmt: skip
    assert len({record["anonymousId"] for record in records}) == 1
    assert len({record["sessionId"] for record in records}) == 1
    assert [record["sessionIsNew"] for record in records] == [True, *[False] * 5]
    assert records[-1]["userId"] == "u-17"
    assert records[2]["dispatchId"] == "mail-7"
    assert all(record["context"]["campaign"] == CAMPAIGN for record in records)
    assert records[1]["context"]["page"] == {"url": f"{place.origin}/p-1", "referrer": "", "title": "A shop"}
    assert records[0]["context"]["library"] == {"name": "ingestd.js", "version": RELEASE}
    touch = attributions(shop, ["o-1"])["o-1"]["touchpoint"]
    assert (touch["source"], touch["name"]) == ("newsletter", "žluté jaro")
    assert tab.complaints == []


def test_a_module_that_is_imported_sends_without_the_lines_of_a_script_tag(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    tab = place.open(browser)
    source = f"{place.daemon}{CLIENT_PATH}?v=another"
    init = f"init({{ host: '{place.daemon}/', key: '{place.key}', interval: 20 }})"
    tab.evaluate(
        f"import('{source}').then((client) => {{"
        f" client.track('Product Clicked', {{ number: 1 }}); client.{init}; client.page() }})"
    )
    wait_until(lambda: numbers(shop, place) == [1])


def test_before_consent_nothing_is_sent_or_kept_and_afterwards_all_of_it_is(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(beforeConsent="wait", interval=0)
    tab = place.open(browser, LANDING)
    click(tab, *range(3))
    tab.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert tab.evaluate(KEPT) == []
    assert [url for url in tab.requests if url.endswith("/batch")] == []
    tab.evaluate("ingestd.consent(true)")
    wait_until(lambda: numbers(shop, place) == [0, 1, 2])
    place.visit(tab, "/next")  # which knows the decision
    click(tab, 3)
    wait_until(lambda: numbers(shop, place) == [0, 1, 2, 3])
    records = arrived(shop, place)
    assert len({record["anonymousId"] for record in records}) == 1
    assert all(record["context"]["campaign"] == CAMPAIGN for record in records)
    tab.evaluate("ingestd.consent(false)")
    assert tab.evaluate(KEPT) == []
    click(tab, 4)
    place.visit(tab, "/another")
    click(tab, 5)
    tab.evaluate("ingestd.consent(true)")
    wait_until(lambda: 5 in numbers(shop, place))
    assert numbers(shop, place) == [0, 1, 2, 3, 5]
    assert arrived(shop, place)[-1]["anonymousId"] != records[0]["anonymousId"]
    tab.evaluate("ingestd.consent('no')")  # nothing but `true` is a consent
    assert tab.evaluate(KEPT) == []


def test_a_refusal_is_kept_where_consent_is_not_asked_first(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    tab = place.open(browser)
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    other = place.open(browser, "/other")
    tab.evaluate("ingestd.consent(false)")
    other.wait_for("ingestd.anonymousId() === undefined")  # a browser tells its other processes a moment later
    click(other, 2)
    place.visit(tab, "/next")
    click(tab, 3)
    assert tab.evaluate(KEPT) == ["ingestd.consent", "ingestd.consent=no"]
    tab.evaluate("ingestd.consent(true)")
    click(tab, 4)
    wait_until(lambda: 4 in numbers(shop, place))
    assert numbers(shop, place) == [1, 4]


def told(decision: str) -> str:
    """What runs in a page whose browser tells it of a decision in another tab."""
    return f"void dispatchEvent(new StorageEvent('storage', {{ key: 'ingestd.consent', newValue: {decision} }}))"


def test_a_page_does_as_another_tab_tells_it_and_does_not_keep_the_decision_again(
    browser: AnyBrowser, site: MakeSite
) -> None:
    """Its process may hear of the cookie later, and what it kept could undo the next decision."""
    tab = site().open(browser)

    def hear(decision: str) -> None:
        tab.evaluate(f"localStorage['ingestd.consent'] = {decision}; {told(decision)}")

    tab.evaluate("ingestd.consent(true)")
    hear("'no'")
    assert tab.evaluate("ingestd.anonymousId()") is None
    assert tab.evaluate("document.cookie") == "ingestd.consent=yes"
    tab.evaluate("ingestd.consent(false)")
    hear("'yes'")
    assert tab.evaluate("ingestd.anonymousId()")
    assert "ingestd.consent=no" in tab.evaluate("document.cookie")
    tab = site(beforeConsent="wait").open(browser)
    tab.evaluate("ingestd.consent(true)")
    tab.evaluate(f"localStorage.removeItem('ingestd.consent'); {told('null')}")
    assert tab.evaluate("ingestd.anonymousId()") is None


def test_news_of_an_older_decision_in_another_tab_undoes_nothing(browser: AnyBrowser, site: MakeSite) -> None:
    """A busy page hears of it after a decision in that page itself."""
    tab = site().open(browser)
    tab.evaluate("ingestd.consent(false)")
    tab.evaluate(told("'yes'"))
    assert tab.evaluate("ingestd.anonymousId()") is None
    tab.evaluate("ingestd.consent(true)")
    own = tab.evaluate("ingestd.anonymousId()")
    tab.evaluate(told("'no'"))
    assert tab.evaluate("ingestd.anonymousId()") == own is not None


def test_the_cookie_of_a_decision_is_there_before_other_tabs_are_told(browser: AnyBrowser, site: MakeSite) -> None:
    tab = site().open(browser)
    tab.evaluate("""{
        window.kept = []
        const { get, set } = Object.getOwnPropertyDescriptor(Document.prototype, 'cookie')
        const { setItem } = Storage.prototype
        const keep = (place, text) => text.startsWith('ingestd.consent=') && kept.push(`${place} ${text.slice(16)}`)
        Object.defineProperty(document, 'cookie', {
            get, set(text) { keep('cookie', text.split(';')[0]); set.call(document, text) }
        })
        Storage.prototype.setItem = function (...given) { keep('storage', given.join('=')); setItem.apply(this, given) }
        ingestd.consent(false), ingestd.consent(true)
    }""")
    kept = tab.evaluate("kept")
    assert list(dict.fromkeys(kept)) == ["cookie no", "storage no", "cookie yes", "storage yes"]


def test_an_anonymous_visitor_lives_as_long_as_the_page(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site(beforeConsent="anonymous")
    tab = place.open(browser)
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    place.visit(tab, "/next")
    click(tab, 2)
    wait_until(lambda: numbers(shop, place) == [1, 2])
    assert tab.evaluate(KEPT) == []
    first, second, *_ = [record["anonymousId"] for record in arrived(shop, place, "Product Clicked")]
    assert first != second
    tab.evaluate("ingestd.consent(true)")
    click(tab, 3)
    wait_until(lambda: numbers(shop, place) == [1, 2, 3])
    assert arrived(shop, place)[-1]["anonymousId"] == second
    assert f"ingestd.id={second}" in tab.evaluate("document.cookie")


@pytest.mark.parametrize("honoured", [True, False])
def test_global_privacy_control_is_honoured_if_told_to(
    browser: AnyBrowser, shop: Shop, site: MakeSite, honoured: bool
) -> None:
    place = site(gpc=honoured)
    tab = browser.tab()
    signal = "Object.defineProperty(Navigator.prototype, 'globalPrivacyControl', { value: true })"
    tab.run_first(signal)
    place.visit(tab)
    tab.evaluate("ingestd.consent(true)")
    click(tab, 1)
    if honoured:
        tab.evaluate("new Promise((done) => setTimeout(done, 200))")
        assert tab.evaluate(KEPT) == []
        assert arrived(shop, place) == []
    else:
        wait_until(lambda: numbers(shop, place) == [1])


def test_after_a_sign_out_the_next_person_at_the_device_is_another_visitor(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    tab = place.open(browser, LANDING)
    tab.evaluate("ingestd.identify('u-1'); ingestd.track('Signed In')")
    tab.evaluate("ingestd.track('Signed Out'); ingestd.reset()")
    click(tab, 1)
    tab.evaluate("ingestd.identify('u-2')")
    click(tab, 2)
    wait_until(lambda: numbers(shop, place) == [1, 2])
    users = [(record.get("key"), record["userId"]) for record in arrived(shop, place)]
    assert users == [
        ("Page View", None), (None, "u-1"), ("Signed In", "u-1"), ("Signed Out", "u-1"),
        ("Product Clicked", None), (None, "u-2"), ("Product Clicked", "u-2"),
    ]  # fmt: skip
    before, after = arrived(shop, place)[:4], arrived(shop, place)[4:]
    assert len({record["anonymousId"] for record in before}) == len({record["anonymousId"] for record in after}) == 1
    assert before[0]["anonymousId"] != after[0]["anonymousId"]
    assert "campaign" not in after[0]["context"]


def test_two_tabs_have_one_visitor_and_send_every_event_once(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    tabs = [place.open(browser), place.open(browser, "/other")]
    for number in range(0, 10, 2):
        for offset, tab in enumerate(tabs):
            click(tab, number + offset)
    wait_until(lambda: sorted(numbers(shop, place)) == list(range(10)))
    assert len({record["anonymousId"] for record in arrived(shop, place)}) == 1
    before = tabs[1].evaluate("ingestd.anonymousId()")
    tabs[0].evaluate("ingestd.reset()")
    tabs[1].wait_for(f"ingestd.anonymousId() !== '{before}'")  # a browser tells its other processes a moment later
    click(tabs[1], 10)
    wait_until(lambda: 10 in numbers(shop, place))
    assert len({record["anonymousId"] for record in arrived(shop, place)}) == 2
    tabs[0].wait_for(NOTHING_WAITS)
    assert sorted(numbers(shop, place)) == list(range(11))


def test_subdomains_have_one_visitor_where_configured(
    browser: AnyBrowser, pages: ShopPages, shop: Shop, daemon: Daemon
) -> None:
    url, tab = f"http://127.0.0.1:{daemon.port}", browser.tab()
    family = f"{browser.name}.localhost"
    for number, name in enumerate(["www", "outlet"]):
        place = pages.site(f"{name}.{browser.name}", url, shop.public.id, domain=family)
        place.visit(tab)
        click(tab, number)
        wait_until(lambda place=place, number=number: numbers(shop, place) == [number])  # type: ignore[misc]
    assert len({record["anonymousId"] for record in shop.stored(f".{family}")}) == 1
    tab.evaluate("ingestd.reset()")  # at the outlet
    www = pages.sites[next(name for name in pages.sites if name.startswith(f"www.{family}"))]
    www.visit(tab, "/again")
    click(tab, 2)
    wait_until(lambda: numbers(shop, www) == [0, 2])
    first, *_, last = arrived(shop, www)
    assert first["anonymousId"] != last["anonymousId"]


def test_an_outage_with_a_reload_in_it_loses_no_event_and_doubles_none(
    tmp_path: Path, browser: AnyBrowser, pages: ShopPages
) -> None:
    shop = Shop(tmp_path)
    host = f"127.0.0.1:{free_port()}"
    place = pages.site("outage", f"http://{host}", shop.public.id)

    def serve() -> Daemon:
        return Daemon(shop.config, arguments=("--set", f'http.listen="{host}"'))

    with serve() as first:
        tab = place.open(browser)
        click(tab, 1)
        wait_until(lambda: numbers(shop, place) == [1])
        first.kill()
    click(tab, 2, 3)
    tab.wait_for("localStorage['ingestd.pause'] > Date.now()")  # an attempt has failed
    tab.reload()
    tab.wait_for(f"performance.getEntriesByType('navigation')[0].type === 'reload' && {LOADED}")
    click(tab, 4)
    with serve() as second:
        wait_until(lambda: numbers(shop, place) == [1, 2, 3, 4])
        assert second.terminate() == 0
    assert len(arrived(shop, place, "Page View")) == 2


def test_an_answer_that_gets_lost_does_not_double_an_event(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    with recording_proxy(daemon.port) as proxy:
        place = site(f"http://{proxy.host}")
        lost: list[Exchange] = []

        def loses(exchange: Exchange) -> bool:
            if exchange.method == "POST" and not lost:
                lost.append(exchange)
                return True
            return False

        proxy.loses = loses
        tab = place.open(browser)
        click(tab, 1, 2)
        tab.wait_for(NOTHING_WAITS)
        assert len(proxy.posts()) >= 2
        assert numbers(shop, place) == [1, 2]
        assert len(arrived(shop, place, "Page View")) == 1
        tab.open("about:blank")


def test_retry_after_is_followed_with_one_request_at_a_time(
    tmp_path: Path, browser: AnyBrowser, pages: ShopPages
) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_key = "60/m"\nper_key_burst = 2'})
    with shop.serve() as limited, recording_proxy(limited.port) as proxy:
        place = pages.site("limited", f"http://{proxy.host}", shop.public.id, interval=0)
        tab = browser.tab()
        count = (
            "(() => { const send = fetch; let now = 0; window.most = 0; window.fetch = async (...given) => {"
            " most = Math.max(most, ++now); try { return await send(...given) } finally { now-- } } })()"
        )
        tab.run_first(count)
        place.visit(tab)
        for number in range(4):
            click(tab, number)
            tab.evaluate("new Promise((done) => setTimeout(done, 30))")
        wait_until(lambda: numbers(shop, place) == [0, 1, 2, 3])
        tab.wait_for(NOTHING_WAITS)
        assert tab.evaluate("most") == 1
        posts = proxy.posts()
        refused = [index for index, post in enumerate(posts) if post.reply.status == 429]
        assert refused
        for index in refused:
            assert posts[index + 1].at - posts[index].at >= int(posts[index].reply.headers["retry-after"])
        tab.open("about:blank")


def test_a_page_that_ends_sends_at_once(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site(interval=60_000)
    tab = place.open(browser)
    tab.evaluate("ingestd.track('Product Clicked', { number: 1 }), void (location.href = 'about:blank')")
    wait_until(lambda: numbers(shop, place) == [1])
    place.visit(tab, "/next")
    click(tab, 2)
    tab.close()
    wait_until(lambda: numbers(shop, place) == [1, 2])


def test_a_page_that_ends_sends_at_once_even_while_a_request_is_in_progress(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite
) -> None:
    answer = threading.Event()
    with recording_proxy(daemon.port) as proxy:
        place = site(f"http://{proxy.host}")
        tab = place.open(browser)
        click(tab, 1)
        tab.wait_for(NOTHING_WAITS)

        def loses(exchange: Exchange) -> bool:
            return exchange.method == "POST" and not answer.wait(20)

        proxy.loses = loses
        click(tab, 2)
        wait_until(lambda: numbers(shop, place) == [1, 2])  # and the client has no answer
        tab.evaluate("ingestd.track('Product Clicked', { number: 3 }), void (location.href = 'about:blank')")
        wait_until(lambda: numbers(shop, place) == [1, 2, 3])
        answer.set()


def test_a_page_with_a_strict_content_security_policy_sends(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    place.inline = False
    policy = f"default-src 'none'; script-src 'self' {place.daemon}; connect-src {place.daemon}; img-src data:"
    place.headers["Content-Security-Policy"] = policy
    tab = place.open(browser)
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    assert tab.complaints == []


def test_a_page_without_storage_sends_from_its_memory(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    place.headers["Content-Security-Policy"] = "sandbox allow-scripts"  # localStorage and cookies throw
    tab = place.open(browser)
    error = tab.evaluate("(() => { try { localStorage } catch (error) { return error.name } })()")
    assert error == "SecurityError"
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    click(tab, 2)
    wait_until(lambda: numbers(shop, place) == [1, 2])
    assert len({record["anonymousId"] for record in arrived(shop, place)}) == 1


def test_a_page_with_full_storage_sends_from_its_memory(browser: AnyBrowser, shop: Shop, site: MakeSite) -> None:
    place = site()
    tab = place.open(browser)
    wait_until(lambda: len(arrived(shop, place)) == 1)
    tab.evaluate(
        "for (let size = 4e6; size >= 1; ) try { localStorage.setItem('shop' + Math.random(), 'x'.repeat(size)) }"
        " catch { size = Math.floor(size / 2) }"
    )
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    place.visit(tab, "/next")
    click(tab, 2)
    wait_until(lambda: numbers(shop, place) == [1, 2])
    assert len({record["anonymousId"] for record in arrived(shop, place)}) == 1
    tab.evaluate("localStorage.clear()")


def test_five_hundred_events_wait_at_most_and_the_oldest_go_first(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(beforeConsent="wait")
    tab = place.open(browser)
    tab.evaluate("for (let number = 0; number < 505; number++) ingestd.track('Product Clicked', { number })")
    tab.evaluate("ingestd.consent(true)")
    wait_until(lambda: 504 in numbers(shop, place))
    assert numbers(shop, place) == list(range(5, 505))
    assert arrived(shop, place)[-1]["context"]["library"]["dropped"] == {"room": 6}  # with the Page View
    assert arrived(shop, place, "Page View") == []


def test_nothing_that_a_page_gives_throws_and_a_refused_event_is_a_warning_with_its_pointer(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site(debug=True)
    tab = place.open(browser)
    tab.evaluate("{ const round = {}; round.round = round; ingestd.track('Page View', round) }")
    tab.evaluate("ingestd.track('Page View', { big: 1n }); ingestd.track(); ingestd.identify(Symbol()); ingestd.init()")
    tab.evaluate("ingestd.track('Product Viewed', { price: 'free', name: 2 })")
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    tab.wait_for(NOTHING_WAITS)
    (warning,) = [text.replace("\\", "") for text in tab.complaints if "Product Viewed" in text]
    assert '"pointer":"/data/price","message":"expected number, got string"' in warning
    assert '"pointer":"/data/name"' in warning
    assert [text for text in tab.complaints if "lost:" in text]
    click(tab, 2)
    wait_until(lambda: numbers(shop, place) == [1, 2])
    # A cyclic member and a symbol; an event without a key and one with a wrong price.
    assert arrived(shop, place)[-1]["context"]["library"]["dropped"] == {"unserializable": 2, "refused": 2}


def test_a_campaign_ends_with_its_visit_and_the_next_one_replaces_it(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    tab = place.open(browser, LANDING)
    place.visit(tab, "/?utm_source=search&utm_medium=%20&page=2")
    tab.evaluate("ingestd.track('Cart Viewed')")
    wait_until(lambda: bool(arrived(shop, place, "Cart Viewed")))
    assert arrived(shop, place, "Cart Viewed")[0]["context"]["campaign"] == {"source": "search"}
    tab.evaluate(
        "localStorage['ingestd.campaign'] = JSON.stringify({ found: { source: 'search' }, seen: Date.now() - 1801e3 })"
    )
    place.visit(tab, "/later")
    click(tab, 1)
    wait_until(lambda: numbers(shop, place) == [1])
    assert "campaign" not in arrived(shop, place)[-1]["context"]


def test_an_event_that_the_daemon_may_have_forgotten_is_not_sent_again(
    browser: AnyBrowser, shop: Shop, site: MakeSite
) -> None:
    place = site()
    tab = place.open(browser)
    wait_until(lambda: len(arrived(shop, place)) == 1)
    tab.wait_for(NOTHING_WAITS)
    for number, hours, tried in [(1, 30, 30), (2, 30, 1), (3, 30, None), (4, 0, None)]:
        event = f"{{ key: 'Product Clicked', data: {{ number: {number} }}, anonymousId: 'v',"
        event += f" context: {{ page: {{ url: location.href }} }}, messageId: '{place.name}{number}',"
        event += f" timestamp: new Date(Date.now() - {hours} * 3600e3).toISOString() }}"
        sent = "" if tried is None else f", tried: Date.now() - {tried} * 3600e3"
        waiting = f"{{ key: '{place.key}', event: {event}{sent} }}"
        tab.evaluate(f"localStorage['ingestd.q{number}'] = JSON.stringify({waiting})")
    tab.evaluate("localStorage['ingestd.q0'] = 'no JSON'")
    place.visit(tab, "/next")
    wait_until(lambda: numbers(shop, place) == [2, 3, 4])
    click(tab, 5)
    wait_until(lambda: numbers(shop, place) == [2, 3, 4, 5])
    assert arrived(shop, place)[-1]["context"]["library"]["dropped"] == {"storage": 1, "expired": 1}
