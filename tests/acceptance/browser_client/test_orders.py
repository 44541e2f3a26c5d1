"""From a visit by a campaign to the order of a platform: the lines of the docs hand over the visitor of the cookie."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.acceptance.webhooks import test_shopify as shopify
from tests.acceptance.webhooks import test_stripe as stripe
from tests.acceptance.webhooks import test_woocommerce as woocommerce
from tests.support.browser_visits import NOTHING_WAITS, MakeSite
from tests.support.daemon import Daemon, Shop
from tests.support.platforms import Platforms, taken
from tests.support.tab import AnyBrowser, AnyTab

SOON = datetime.now(UTC) + timedelta(hours=1)  # a time to come is the time of receipt, which is after the visit
DOCS = Path(__file__).parents[3] / "docs"


def run_lines_of(page: str, tab: AnyTab) -> None:
    """Run the lines for the shop's theme, as the page has them."""
    block = re.search(r"```html\n *<script>\n(.*?)</script>", (DOCS / page).read_text(), re.DOTALL)
    assert block is not None
    tab.evaluate(f"{{{block[1]}}}")


def bought_at_shopify(place: Platforms, tab: AnyTab) -> int:
    tab.evaluate("{ window.sent = []; window.fetch = (...given) => { sent.push(given) } }")
    run_lines_of("shopify.md", tab)
    path, request = tab.wait_for("sent[0]")
    assert (path, request["method"]) == ("/cart/update.js", "POST")
    attributes = json.loads(request["body"])["attributes"]
    cart = [{"name": name, "value": value} for name, value in attributes.items()]
    order = shopify.order(note_attributes=cart, processed_at=SOON.isoformat())
    assert taken(place.shopify("orders/create", order))
    return int(order["id"])


def bought_at_woocommerce(place: Platforms, tab: AnyTab) -> int:
    run_lines_of("woocommerce.md", tab)
    cookie = tab.wait_for("document.cookie.match(/ingestd_visitor=([^;]+)/)")[1]
    order = woocommerce.order(meta_data=woocommerce.from_cookie(unquote(cookie)), date_paid_gmt=SOON.isoformat()[:19])
    assert taken(place.woocommerce("order.created", order))
    return int(order["id"])


def bought_at_stripe(place: Platforms, tab: AnyTab) -> str:
    paid = stripe.session(client_reference_id=tab.evaluate("ingestd.anonymousId()"))
    assert taken(place.stripe(stripe.event("checkout.session.completed", paid, created=int(SOON.timestamp()))))
    return str(paid["payment_intent"])


@pytest.mark.parametrize("buy", [bought_at_shopify, bought_at_woocommerce, bought_at_stripe])
def test_the_campaign_of_the_visit_is_credited(
    browser: AnyBrowser, shop: Shop, daemon: Daemon, site: MakeSite, buy: Callable[[Platforms, AnyTab], object]
) -> None:
    name = re.sub(".*_", "", str(buy.__name__))
    tab = site().open(browser, f"/?utm_source={browser.name}&utm_medium=email&utm_campaign={name}")
    tab.wait_for(NOTHING_WAITS)
    place = Platforms(shop, daemon)
    (attribution,) = place.derived(buy(place, tab))
    touch = attribution["touchpoint"]
    assert (touch["source"], touch["name"]) == (browser.name, name)
    assert attribution["anonymousId"] == tab.evaluate("ingestd.anonymousId()")
