"""WooCommerce's webhooks: the whole order comes with each change, and each fact of it is stored once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.daemon import run_ingestd
from tests.support.platforms import SECRET, Platforms, taken

NOW = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
_ids = iter(range(700, 100_000))


def gmt(minutes: int = 0) -> str:
    """A time as WooCommerce writes it: without an offset."""
    return (NOW + timedelta(minutes=minutes)).isoformat()


def order(**members: Any) -> dict[str, Any]:
    return {
        "id": next(_ids), "status": "processing", "currency": "EUR", "date_created_gmt": gmt(-1),
        "date_paid_gmt": gmt(-1), "date_modified_gmt": gmt(), "total": "59.50", "total_tax": "9.50",
        "shipping_total": "4.00", "discount_total": "5.00", "customer_id": 0, "customer_user_agent": "Mozilla/5.0",
        "billing": {"email": "ada@example.com"}, "coupon_lines": [{"code": "spring"}], "refunds": [], "meta_data": [],
        "line_items": [{"id": 315, "name": "Shirt", "product_id": 93, "sku": "", "price": 23, "quantity": 2}],
        **members,
    }  # fmt: skip


def from_cookie(visitor: str) -> list[dict[str, Any]]:
    return [{"id": 1, "key": "_gift", "value": {"x": 1}}, {"id": 2, "key": "ingestd_visitor", "value": visitor}]


def test_an_order_is_completed_once_when_it_is_paid(place: Platforms) -> None:
    visitor = f"visitor-{uuid4()}"
    place.page(visitor, "newsletter", f"{gmt(-5)}Z")
    sold = order(customer_id=26, meta_data=from_cookie(visitor))
    assert taken(place.woocommerce("order.created", {**sold, "status": "pending", "date_paid_gmt": None}))
    for status in ("processing", "completed"):
        assert taken(place.woocommerce("order.updated", {**sold, "status": status}))
    updated, completed = (each for each in place.records(visitor) if each["key"].startswith("Order "))
    assert (updated["key"], completed["key"]) == ("Order Updated", "Order Completed")
    assert completed["data"] == {
        "order_id": str(sold["id"]), "currency": "EUR", "total": 59.5, "revenue": 46, "shipping": 4, "tax": 9.5,
        "discount": 5, "coupon": "spring",
        "products": [{"product_id": "93", "name": "Shirt", "price": 23, "quantity": 2}],
    }  # fmt: skip
    assert (completed["userId"], completed["signed"]) == ("26", True)
    (attribution,) = place.derived(sold["id"])
    assert attribution["touchpoint"]["source"] == "newsletter"


def test_a_guest_comes_from_where_woocommerce_saw_the_arrival(place: Platforms) -> None:
    arrival = {"session_entry": "https://shop.example/?gclid=x", "referrer": "https://www.google.com/"}
    metadata = [{"key": f"_wc_order_attribution_{name}", "value": value} for name, value in arrival.items()]
    sold = order(meta_data=metadata)
    assert taken(place.woocommerce("order.created", sold))
    (attribution,) = place.derived(sold["id"])
    touch = attribution["touchpoint"]
    assert (touch["source"], touch["medium"], touch["clickId"]["id"]) == ("google", "cpc", "x")
    assert attribution["userId"] is None


@pytest.mark.parametrize("refunds_first", [False, True])
def test_refunds_and_the_end_of_an_order(place: Platforms, refunds_first: bool) -> None:
    sold = order()
    half = {**sold, "refunds": [{"id": next(_ids), "reason": "", "total": "-29.75"}]}
    steps = [half, {**half, "status": "on-hold"}, sold] if refunds_first else [sold, half, half]
    for step in steps:
        assert taken(place.woocommerce("order.updated", step))
    for _ in range(2):
        assert taken(place.woocommerce("order.deleted", {"id": sold["id"]}))
    attribution, *reversals = place.derived(sold["id"])
    assert attribution["value"]["revenue"] == 46
    assert [(each["reason"], each["value"]["revenue"]) for each in reversals] == [("refund", 23), ("cancel", 23)]


def test_a_new_webhook_is_tried_without_a_signature(place: Platforms) -> None:
    """WooCommerce saves it only if the answer is 200."""
    assert taken(place.send("woo", b"webhook_id=7", Content_Type="application/x-www-form-urlencoded"))
    for body in (b"webhook_id=7&x=1", b"{}", b""):
        assert place.send("woo", body).status == 401


def test_only_the_secret_proves_the_platform(place: Platforms) -> None:
    sold = order()
    answer = place.woocommerce("order.created", sold, secret="wrong")
    assert (answer.status, answer.json()["code"]) == (401, "invalid_signature")
    assert place.records(f'"{sold["id"]}"') == []


def test_five_bad_messages_do_not_switch_the_webhook_off(place: Platforms) -> None:
    before = place.counted("woocommerce", "invalid", "")
    sent: list[Any] = [{"id": 1}, {**order(), "total": "1.000,00"}, {**order(), "refunds": [1]}, [], b"x"]
    for bad in sent:
        assert taken(place.woocommerce("order.updated", bad))
    assert place.counted("woocommerce", "invalid", "") == before + 5
    assert SECRET not in "".join(place.daemon.log)


def test_customers(place: Platforms) -> None:
    customer = {"id": next(_ids), "email": "grace@example.com", "first_name": "Grace", "billing": {"country": "DE"}}
    assert taken(place.woocommerce("customer.created", customer))
    (record,) = place.records("grace@example.com")
    assert record["traits"] == {"email": "grace@example.com", "firstName": "Grace", "country": "DE"}
    assert record["userId"] == str(customer["id"])


def test_an_export_fills_an_outage(place: Platforms) -> None:
    """What a webhook has told is not stored again, and the files are as trusted as the webhooks."""
    known, missed = order(), order(refunds=[{"id": next(_ids), "total": "-59.50"}])
    claimed = {"order_id": str(missed["id"]), "revenue": 9_999, "currency": "EUR"}
    body = {"key": "Order Completed", "data": claimed, "anonymousId": f"visitor-{uuid4()}"}
    assert place.daemon.post("/track", body, place.shop.public.id).status == 200
    assert taken(place.woocommerce("order.created", known))
    known["refunds"] = [{"id": next(_ids), "total": "-29.75"}]
    file = place.shop.folder / "orders.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in (known, missed)))
    arguments = ("events", "import", str(file), "--format", "woocommerce", "--tenant", "shop", "--state", "--json")
    for stored in (3, 0):
        counts = json.loads(place.shop.command(*arguments))
        assert (counts["lines"], counts["counts"].get("imported", 0)) == (2, stored)
    assert taken(place.woocommerce("order.updated", missed))  # the webhook works again
    assert len(place.records(f"completed {missed['id']}")) == 1
    for sold, refunded in ((missed, 46), (known, 23)):
        attribution, reversal = place.derived(sold["id"])[-2:]
        assert (attribution["value"]["revenue"], reversal["value"]["revenue"]) == (46, refunded)


def test_files_that_cannot_be_read_as_orders_are_told(place: Platforms) -> None:
    """Nor is a line taken for a record of ingestd because it looks like one."""
    file, order_, whole = place.shop.folder / "orders.json", order(), json.dumps(order())
    assert taken(place.woocommerce("order.created", order_))
    record = json.dumps(place.records(f"completed {order_['id']}")[0])
    shop, of_shop = ("--tenant", "shop"), ("--tenant", "shop", "--state", "--format", "woocommerce")
    array = "an array: give each of its objects a line"
    for content, arguments, told in (
        (f"[{whole}]", of_shop, array),
        (json.dumps([order_], indent=1), of_shop, f":1: {array}"),
        (f"[{whole}, {' ' * (4 << 20)}{whole}]", of_shop, f"and begins {array}"),
        (f"{whole}\n{whole[:200]}", of_shop, ":2: the body is not JSON"),
        (whole, ("--format", "woocommerce", "--tenant", "other"), "takes no woocommerce for the tenant other"),
        (whole, ("--format", "shopify", *shop), "no format 'shopify'; known: record, segment, woocommerce"),
        (whole, shop, "the files have no records of ingestd: say --format segment or woocommerce"),
        (f"{record}\n{whole}", shop, "looks like a record of ingestd, but"),
    ):
        file.write_text(content)
        done = run_ingestd("events", "import", str(file), *arguments, config=place.shop.config)
        assert done.returncode == 1
        assert told in done.stderr
        assert "Traceback" not in done.stderr
