"""Payloads with any JSON in any place: each is read or refused, and no part of it can break the daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ingestd.api.errors import Refused
from ingestd.api.intake import MOST_MESSAGES, Message
from ingestd.api.options import Secret
from ingestd.plugins.webhooks.generic import Generic, Pointer
from ingestd.plugins.webhooks.intake import WebhookIntake
from ingestd.plugins.webhooks.payloads import amount
from ingestd.plugins.webhooks.shopify import Shopify
from ingestd.plugins.webhooks.stripe import Stripe
from ingestd.plugins.webhooks.webhook import Webhook
from ingestd.plugins.webhooks.woocommerce import WooCommerce
from ingestd.validation.payload_schemas import PayloadSchemas
from ingestd.validation.validator import Validator, parse_body
from tests.acceptance.webhooks import test_generic as generic
from tests.acceptance.webhooks import test_shopify as shopify
from tests.acceptance.webhooks import test_stripe as stripe
from tests.acceptance.webhooks import test_woocommerce as woocommerce

SECRET = Secret("a-secret-of-a-platform")
SHOPIFY = Shopify("de", Shopify.Options(tenant="shop", secret=SECRET))
WOOCOMMERCE = WooCommerce("woo", WooCommerce.Options(tenant="shop", secret=SECRET))
STRIPE = Stripe("pay", Stripe.Options(tenant="shop", secret=SECRET))
GENERIC = Generic(
    "erp",
    Generic.Options(
        tenant="shop", secret=SECRET, header="X", key="Order Completed", message_id=Pointer("/id"),
        timestamp=Pointer("/at"), anonymous_id=Pointer("/order/visitor"), data={"order_id": Pointer("/order/no")},
    ),
)  # fmt: skip

KINDS = (
    "null", "true", "0", "-1.5", "1e-300", "-1e308", "9" * 400, '""', '"NaN"', '"1e999999999"', '"1e-999999999"',
    '"0e-999999999"', f'"1.{"0" * 60}1"', f'"{"x" * 10_000}"', '"http://[x"', "[]", "[[]]", "{}", '{"a": [1]}',
)  # fmt: skip

_SOLD = shopify.order(
    customer={"id": 7, "email": "ada@example.com"}, landing_site="/?utm_source=x", note_attributes=[{"name": "gift"}],
    order_status_url="https://shop.example/5",
)  # fmt: skip
_LINE = {"quantity": 2, "subtotal": "20.00", "total_tax": "2.00", "line_item": shopify.line("12.50", 2)}
_SHIPPING = {"kind": "shipping_refund", "amount": "-5.00", "tax_amount": "0.00"}
_GUEST = woocommerce.order(refunds=[{"id": 5, "total": "-5.00"}], meta_data=woocommerce.from_cookie("v-1"))
_PAID = stripe.session(metadata={"ingestd_visitor": "v-1"})
_REFUND = stripe.event("charge.refunded", stripe.charge(_PAID, 500), previous={"amount_refunded": 100})
_SET = {"shop_money": {"amount": "1", "currency_code": "USD"}, "presentment_money": {"amount": "2"}}
_SETS = {f"{name}_set": _SET for name in ("subtotal", "total_tax", "amount", "tax_amount", "subtotal_amount")}
_PAID_BACK = {"kind": "refund", "status": "success", "amount": "27", "currency": "CAD"}
_ABROAD = shopify.refund(
    _SOLD, "27", refund_line_items=[{**_LINE, **_SETS, "line_item": {"gift_card": True}}], duties=[_SETS],
    order_adjustments=[{"kind": "refund_discrepancy", "amount": "-5", "tax_amount": "0", **_SETS}],
    refund_shipping_lines=[_SETS], transactions=[_PAID_BACK],
)  # fmt: skip
_LOST = {"id": "dp_1", "currency": "eur", "amount": 500, "status": "lost", "payment_intent": "pi_1", "metadata": {}}
CASES: tuple[tuple[Webhook, str, dict[str, Any]], ...] = (
    (SHOPIFY, "orders/create", _SOLD),
    (SHOPIFY, "refunds/create", shopify.refund(_SOLD, "27", refund_line_items=[_LINE], order_adjustments=[_SHIPPING])),
    (SHOPIFY, "refunds/create", _ABROAD),
    (WOOCOMMERCE, "order.updated", _GUEST),
    (STRIPE, "checkout.session.completed", stripe.event("checkout.session.completed", _PAID)),
    (STRIPE, "charge.refunded", _REFUND),
    (STRIPE, "charge.dispute.closed", stripe.event("charge.dispute.closed", _LOST)),
    (GENERIC, "Order Completed", generic.message()),
)


@pytest.fixture(scope="module")
def validator() -> Validator:
    return Validator.load()


def read(webhook: Webhook, topic: str, payload: bytes) -> list[Message]:
    check = PayloadSchemas(WebhookIntake([webhook])).check
    return [*webhook.read(topic, {}, parse_body(payload), check)]


def variants(value: Any) -> Iterator[str]:
    """The JSON with each value in turn replaced by each kind."""
    inner = enumerate(value[:1]) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, each in inner:
        for text in (*KINDS, *variants(each)):
            changed = dict(value) if isinstance(value, Mapping) else [*value]
            changed[key] = "\0"
            yield json.dumps(changed).replace('"\\u0000"', text)


@pytest.mark.parametrize(("webhook", "topic", "payload"), CASES)
def test_any_json_in_any_place_is_read_or_refused(
    validator: Validator, webhook: Webhook, topic: str, payload: dict[str, Any]
) -> None:
    for text in variants(payload):
        try:
            messages = read(webhook, topic, text.encode())
        except Refused:
            continue
        assert len(messages) <= MOST_MESSAGES
        for message in messages:
            assert len(message.body["messageId"]) <= 128
            assert len(message.body["anonymousId"]) <= 512
            assert len(json.dumps(message.body)) < 50_000
            try:
                if message.kind == "event":
                    validator.event_with_texts(message.body)
            except Refused:
                continue


@pytest.mark.parametrize("part", ["refund_line_items", "order_adjustments", "refund_shipping_lines", "duties"])
def test_each_part_of_a_refund_tells_the_currency_of_the_shop(part: str) -> None:
    """The customer has paid in another one. In a currency of its own, a refund would reverse nothing."""
    payload = shopify.refund(
        _SOLD, "2", **{part: [{"kind": "shipping_refund", **_SETS}]}, transactions=[{**_PAID_BACK, "amount": "2"}]
    )
    (refund,) = read(SHOPIFY, "refunds/create", json.dumps(payload).encode())
    assert (refund.body["data"]["currency"], refund.body["data"]["total"]) == ("USD", "1")


def test_ids_that_begin_alike_stay_apart() -> None:
    """Else the second order would be taken for a repetition of the first one."""
    sent = [shopify.order(id="x" * 600 + end) for end in ("a", "b")]
    (one,), (other,) = (read(SHOPIFY, "orders/create", json.dumps(each).encode()) for each in sent)
    assert one.body["messageId"] != other.body["messageId"]
    assert one.body["anonymousId"] != other.body["anonymousId"]


def test_a_page_cannot_spoil_an_order_by_a_long_id() -> None:
    sold = shopify.order(note_attributes=shopify.from_cart("x" * 513))
    (order,) = read(SHOPIFY, "orders/create", json.dumps(sold).encode())
    assert order.body["anonymousId"] == f"shopify order {sold['id']}"


@pytest.mark.parametrize(
    ("sent", "read_as"),
    [("59.95", "59.95"), (1.5, "1.5"), ("1e-999999999", "0"), ("1e999999999", "0"), ("1" * 16, "0"), (True, "0")],
)
def test_amounts(sent: Any, read_as: str) -> None:
    assert f"{amount(sent).normalize():f}" == read_as
