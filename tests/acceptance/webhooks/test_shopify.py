"""Shopify's webhooks: an order becomes the order of the visitor whom the cart names, with the platform's own sums."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.platforms import SECRET, Platforms, taken

NOW = datetime.now(UTC).replace(microsecond=0)


def shopify_time(minutes: int = 0) -> str:
    """A time as Shopify writes it: with the offset of the shop."""
    return (NOW + timedelta(minutes=minutes)).astimezone().isoformat()


_ids = iter(range(5_208_334_008_572, 5_208_334_108_572))


def order(**members: Any) -> dict[str, Any]:
    """An order with two lines, a discount, shipping and taxes beside the prices."""
    return {
        "id": next(_ids), "order_number": 1042, "test": False, "currency": "USD", "created_at": shopify_time(),
        "processed_at": shopify_time(), "total_price": "59.95", "subtotal_price": "49.95", "total_tax": "5.00",
        "total_discounts": "5.00", "taxes_included": False, "note_attributes": [],
        "discount_codes": [{"code": "SPRING", "amount": "5.00", "type": "fixed_amount"}],
        "total_shipping_price_set": {"shop_money": {"amount": "5.00", "currency_code": "USD"}},
        "line_items": [line("29.95", 1), line("12.50", 2)],
        "client_details": {"user_agent": "Mozilla/5.0", "browser_ip": "203.0.113.7"}, "customer_locale": "en-US",
        **members,
    }  # fmt: skip


def line(price: str, quantity: int, *, tax: str = "0.00") -> dict[str, Any]:
    return {
        "product_id": 98_765_432_109_876, "sku": "SHIRT-L", "title": "Shirt", "variant_title": "Large",
        "vendor": "Acme", "price": price, "quantity": quantity, "tax_lines": [{"price": tax, "rate": 0.19}],
    }  # fmt: skip


def refund(of: Mapping[str, Any], amount: str, **members: Any) -> dict[str, Any]:
    return {
        "id": next(_ids), "order_id": of["id"], "created_at": shopify_time(), "refund_line_items": [],
        "order_adjustments": [],
        "transactions": [{"kind": "refund", "status": "success", "amount": amount, "currency": "USD"}], **members,
    }  # fmt: skip


def from_cart(visitor: str) -> list[dict[str, str]]:
    return [{"name": "gift", "value": "yes"}, {"name": "ingestd_visitor", "value": visitor}]


def test_an_order_is_credited_to_the_campaign_of_the_visitor_in_the_cart(place: Platforms) -> None:
    visitor = f"visitor-{uuid4()}"
    place.page(visitor, "newsletter", shopify_time(-2))
    sold = order(note_attributes=from_cart(visitor), customer={"id": 7_777, "email": "ada@example.com"})
    for _ in range(2):  # it comes twice
        assert taken(place.shopify("orders/create", sold))
    (record,) = place.records(visitor, "Order Completed")
    assert record["data"] == {
        "order_id": str(sold["id"]), "currency": "USD", "total": 59.95, "revenue": 49.95, "shipping": 5, "tax": 5,
        "discount": 5, "coupon": "SPRING",
        "products": [
            {"product_id": "98765432109876", "sku": "SHIRT-L", "name": "Shirt", "variant": "Large", "brand": "Acme",
             "price": price, "quantity": quantity}
            for price, quantity in ((29.95, 1), (12.5, 2))
        ],
    }  # fmt: skip
    assert (record["anonymousId"], record["userId"], record["signed"]) == (visitor, "7777", True)
    assert record["context"] == {"userAgent": "Mozilla/5.0", "locale": "en-US"}
    (identify,) = place.records("ada@example.com")
    assert (identify["type"], identify["userId"]) == ("identify", "7777")
    (attribution,) = place.derived(sold["id"])
    assert attribution["touchpoint"]["source"] == "newsletter"
    assert attribution["value"] == {"revenue": 49.95, "total": 59.95, "currency": "USD"}
    assert place.counted("shopify", "duplicate", "Order Completed") == 1


def test_an_order_without_a_visitor_begins_with_the_address_where_the_customer_arrived(place: Platforms) -> None:
    sold = order(
        landing_site="/?utm_source=google&utm_medium=cpc&utm_campaign=shoes", referring_site="https://www.google.com/",
        order_status_url="https://shop.example/5/orders/x", customer=None,
    )  # fmt: skip
    assert taken(place.shopify("orders/create", sold))
    arrival, bought = place.records(f"shopify order {sold['id']}")
    assert (arrival["key"], bought["key"]) == ("Page View", "Order Completed")
    assert arrival["timestamp"] < bought["timestamp"]
    (attribution,) = place.derived(sold["id"])
    touch = attribution["touchpoint"]
    assert (touch["source"], touch["medium"], touch["name"]) == ("google", "cpc", "shoes")


def test_an_order_of_a_page_is_superseded(place: Platforms) -> None:
    """Anybody can send an order with a public key, and knows the number of an order of theirs."""
    sold, visitor = order(), f"visitor-{uuid4()}"
    claimed = {"order_id": str(sold["id"]), "revenue": 9_999, "currency": "USD"}
    body = {"key": "Order Completed", "data": claimed, "anonymousId": visitor}
    assert place.daemon.post("/track", body, place.shop.public.id).status == 200
    assert taken(place.shopify("orders/create", {**sold, "note_attributes": from_cart(visitor)}))
    false, reversal, true = place.derived(sold["id"])
    assert (false["value"]["revenue"], reversal["reason"], true["value"]["revenue"]) == (9_999, "superseded", 49.95)


def test_a_page_cannot_take_the_place_of_an_order_or_its_visitor(place: Platforms) -> None:
    """Numbers of orders can be guessed: a page could send the next ones before the shop has sold them."""
    sold = order(customer=None)
    campaign = {"campaign": {"source": "affiliate", "medium": "cpc"}}
    body = {"key": "Page View", "data": {}, "anonymousId": f"shopify order {sold['id']}", "context": campaign}
    for more in ({}, {"messageId": f"shopify completed {sold['id']}"}):
        assert place.daemon.post("/track", {**body, **more}, place.shop.public.id).status == 200
    assert taken(place.shopify("orders/create", sold))
    (attribution,) = place.derived(sold["id"])
    assert (attribution["value"]["revenue"], attribution["touchpoint"]) == (49.95, None)


def test_refunds_and_cancellations_reverse_in_any_order(place: Platforms) -> None:
    sold = order()
    half = refund(
        sold, "27.00",
        refund_line_items=[{"quantity": 2, "subtotal": "20.00", "total_tax": "2.00", "line_item": line("12.50", 2)}],
        order_adjustments=[{"kind": "shipping_refund", "amount": "-5.00", "tax_amount": "0.00"}],
    )  # fmt: skip
    assert taken(place.shopify("refunds/create", half))  # before its order
    for _ in range(2):
        assert taken(place.shopify("orders/create", sold))
        assert taken(place.shopify("refunds/create", half))
    assert taken(
        place.shopify("orders/cancelled", {**sold, "cancel_reason": "customer", "cancelled_at": shopify_time()})
    )
    (refunded,) = place.records(str(sold["id"]), "Order Refunded")
    assert refunded["data"]["products"] == [
        {"product_id": "98765432109876", "sku": "SHIRT-L", "name": "Shirt", "variant": "Large", "brand": "Acme",
         "price": 12.5, "quantity": 2}
    ]  # fmt: skip
    attribution, *reversals = place.derived(sold["id"])
    assert attribution["value"]["revenue"] == 49.95
    assert [(each["reason"], each["value"]["revenue"]) for each in reversals] == [("refund", 20), ("cancel", 29.95)]


def test_a_refund_of_nothing_is_no_event(place: Platforms) -> None:
    """Shopify tells of goods that come back to the stock, too."""
    sold = order()
    assert taken(place.shopify("refunds/create", refund(sold, "0.00", transactions=[])))
    assert place.records(str(sold["id"])) == []


@pytest.mark.parametrize(
    ("currency", "price", "revenue"), [("JPY", "5000", 5000), ("KWD", "12.345", 12.345), ("EUR", "0.1", 0.1)]
)
def test_amounts_lose_no_digit(place: Platforms, currency: str, price: str, revenue: float) -> None:
    sold = order(currency=currency, total_price=price, subtotal_price=price, line_items=[line(price, 1)])
    assert taken(place.shopify("orders/create", sold))
    (record,) = place.records(str(sold["id"]), "Order Completed")
    assert (record["data"]["currency"], record["data"]["revenue"]) == (currency, revenue)
    assert record["data"]["products"][0]["price"] == revenue


def test_taxes_within_prices_are_no_revenue(place: Platforms) -> None:
    sold = order(
        taxes_included=True, total_price="24.00", subtotal_price="19.00", total_tax="3.83",
        line_items=[line("19.00", 1, tax="3.03")],
    )  # fmt: skip
    assert taken(place.shopify("orders/create", sold))
    (record,) = place.records(str(sold["id"]), "Order Completed")
    assert (record["data"]["revenue"], record["data"]["tax"], record["data"]["total"]) == (15.97, 3.83, 24)


def test_a_shop_may_count_orders_when_they_are_paid(place: Platforms) -> None:
    sold = order()
    for topic in ("orders/create", "orders/updated", "orders/paid", "orders/paid"):
        assert taken(place.shopify(topic, sold, path="paid"))
    keys = [record["key"] for record in place.records(str(sold["id"])) if record["type"] == "event"]
    assert keys == ["Order Updated", "Order Updated", "Order Completed"]


def test_customers_and_checkouts(place: Platforms) -> None:
    customer = {"id": next(_ids), "email": "grace@example.com", "first_name": "Grace", "phone": None}
    assert taken(place.shopify("customers/create", customer))
    token = str(uuid4())
    checkout = {"token": token, "currency": "EUR", "total_price": "59.95", "customer": customer, "line_items": []}
    assert taken(place.shopify("checkouts/create", checkout))
    (traits,) = (each for each in place.records("grace@example.com") if each["type"] == "identify")
    (started,) = place.records(token, "Checkout Started")
    assert traits["traits"] == {"email": "grace@example.com", "firstName": "Grace"}
    assert started["anonymousId"] == traits["anonymousId"]
    assert (started["data"]["value"], started["linked"]) == (59.95, True)


def test_a_step_of_the_shop_that_concerns_several_topics_is_several_events(place: Platforms) -> None:
    """All of its messages have one id of the event."""
    sold, step = order(customer={"id": 7_778, "email": "joan@example.com"}), str(uuid4())
    for topic, payload in (("orders/updated", sold), ("orders/paid", sold), ("customers/update", sold["customer"])):
        for _ in range(2):
            assert taken(place.shopify(topic, payload, X_Shopify_Event_Id=step))
    assert len(place.records(str(sold["id"]), "Order Updated")) == 2
    assert len(place.records("joan@example.com")) == 1


def test_test_orders_and_other_topics_are_no_events(place: Platforms) -> None:
    sold = order(test=True)
    assert taken(place.shopify("orders/create", sold))
    given = {"kind": "refund", "status": "success", "amount": "5.00", "currency": "USD", "test": True}
    assert taken(place.shopify("refunds/create", refund(sold, "5.00", transactions=[given])))
    assert taken(place.shopify("products/update", {"id": sold["id"]}))
    assert taken(place.shopify("", {"id": sold["id"]}))
    assert place.records(str(sold["id"])) == []


def test_only_the_secret_proves_the_platform(place: Platforms) -> None:
    sold = order()
    body = json.dumps(sold).encode()
    for answer in (
        place.shopify("orders/create", sold, secret="wrong"),
        place.shopify("orders/create", sold, X_Shopify_Hmac_SHA256=""),
        place.shopify("orders/create", sold, X_Shopify_Hmac_SHA256="é"),
        place.shopify("orders/create", sold, X_Shopify_Hmac_SHA256=hmac.digest(SECRET.encode(), body, "sha256").hex()),
        place.daemon.request("POST", "/webhooks/de", body, {"Authorization": f"Bearer {place.shop.server.id}"}),
    ):
        assert (answer.status, answer.json()["code"]) == (401, "invalid_signature")
    assert place.records(str(sold["id"])) == []
    assert taken(place.shopify("orders/create", sold, secret="the-one-before"))


def test_a_large_order_is_taken(place: Platforms) -> None:
    sold = order(line_items=[line("1.00", 1) | {"properties": [{"name": "n", "value": "x" * 7000}]} for _ in range(40)])
    assert len(json.dumps(sold)) > 280_000
    assert taken(place.shopify("orders/create", sold))
    (record,) = place.records(str(sold["id"]), "Order Completed")
    assert len(record["data"]["products"]) == 40


def test_bad_messages_are_answered_200_and_told_in_the_log(place: Platforms) -> None:
    """Shopify removes the webhook after some days of other answers. The log has a line a second."""
    bad = {"id": 1, "currency": "EUR", "total_price": "19,90", "line_items": [line("0x10", 1)]}
    for payload in (bad, {"id": 1}, [1], b"{"):
        assert taken(place.shopify("orders/create", payload))
    assert place.daemon.metric('ingestd_events_total{endpoint="shopify",key="",outcome="invalid"}') == 4
    place.daemon.read_log()
    told, *_ = (each for each in place.daemon.log if "the webhook de has refused a message" in each)
    assert "orders/create: /" in told
    for pointer in ("/total_price", "/line_items/0/price"):
        assert f"{pointer}: expected a string of the form" in told
    assert SECRET not in "".join(place.daemon.log)
