"""Drawn orders and refunds of each platform: the report's net revenue is what the platform itself calls net sales."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.options import Secret
from ingestd.plugins.webhooks.intake import WebhookIntake
from ingestd.plugins.webhooks.shopify import Shopify
from ingestd.plugins.webhooks.stripe import Stripe
from ingestd.plugins.webhooks.webhook import Webhook
from ingestd.plugins.webhooks.woocommerce import WooCommerce
from ingestd.validation.payload_schemas import PayloadSchemas
from ingestd.validation.validator import Validator, parse_body
from tests.support.attribution import Attribution, Shop, attributing
from tests.support.attribution_reference import Rules

SECRET = Secret("a-secret-of-a-platform")
VALIDATOR = Validator.load()
DIGITS = {"EUR": 2, "JPY": 0, "KWD": 3}

Sent = tuple[str, dict[str, Any]]
"""A topic and a payload."""


class Sold(NamedTuple):
    """An order: what the platform sends of it, and its net sales by the platform's own definition."""

    order_id: str
    sent: list[Sent]
    net: Decimal


class Report:
    """Decides the orders of each example as those of another tenant."""

    def __init__(self, attribution: Attribution, runner: asyncio.Runner) -> None:
        self._attribution = attribution
        self._runner = runner
        self._examples = 0

    def agrees(self, webhook: Webhook, sold: Sequence[Sold], order: st.DataObject) -> None:
        """The messages come in any order, and some of them twice."""
        sent = [each for one in sold for each in one.sent]
        sent = order.draw(st.permutations([*sent, *sent[::2]]))
        self._examples += 1
        net = self._runner.run(self._net_by_order(webhook, sent, f"shop-{self._examples}"))
        assert net == {one.order_id: one.net for one in sold}

    async def _net_by_order(self, webhook: Webhook, sent: Iterable[Sent], tenant: str) -> dict[str, Decimal]:
        """What the orders were worth less their reversals, as the reports add them up."""
        check = PayloadSchemas(WebhookIntake([webhook])).check
        shop, records, known = Shop(), [], set()
        for topic, payload in sent:
            for message in webhook.read(topic, {}, parse_body(json.dumps(payload).encode()), check):
                body = message.body
                if message.kind == "event" and body["messageId"] not in known:
                    VALIDATOR.event_with_texts(body)
                    data = body["data"]
                    records.append(shop.event(body["key"], body["anonymousId"], data, tenant=tenant, signed=True))
                    known.add(body["messageId"])
        await self._attribution.append(records)
        await self._attribution.work_off([1000] * 3, shop.now)
        net: dict[str, Decimal] = {}
        for derived in map(json.loads, await self._attribution.derived()):
            if derived["tenant"] == tenant:
                value = derived["value"]
                worth = Decimal(str(value["revenue"] if value["revenue"] is not None else value["total"] or 0))
                sign = 1 if derived["type"] == "attribution" else -1
                net[derived["orderId"]] = net.get(derived["orderId"], Decimal()) + sign * worth
        return net


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    with asyncio.Runner() as runner:
        context = attributing(tmp_path_factory.mktemp("sums"), Rules())
        yield Report(runner.run(context.__aenter__()), runner)
        runner.run(context.__aexit__(None, None, None))


def _money(units: int, digits: int) -> str:
    return str(Decimal(units).scaleb(-digits))


# Shopify: gross sales less discounts and returns, without taxes, shipping, duties, tips and gift cards

SHOPIFY = Shopify("de", Shopify.Options(tenant="shop", secret=SECRET))


class Line(NamedTuple):
    price: int
    quantity: int
    discount: int
    tax: int
    kind: str
    """`goods`, `card` or `tip`."""

    @property
    def net(self) -> int:
        return self.price * self.quantity - self.discount

    def part(self, amount: int, of: range) -> int:
        """The part of an amount of the whole line that belongs to some of its items."""
        return amount * of.stop // self.quantity - amount * of.start // self.quantity


@st.composite
def shopify_orders(draw: st.DrawFn, number: int) -> Sold:
    currency = draw(st.sampled_from([*DIGITS]))
    digits, included = DIGITS[currency], draw(st.booleans())
    abroad = draw(st.none() | st.integers(50, 300))  # per cent of an amount in the currency of the customer
    lines = []
    for kind in draw(st.lists(st.sampled_from(["goods", "goods", "goods", "card", "tip"]), min_size=1, max_size=4)):
        price, quantity = draw(st.integers(0, 50_000)), draw(st.integers(1, 4))
        discount = draw(st.integers(0, price * quantity)) if kind == "goods" else 0
        rate = draw(st.sampled_from([0, 7, 19, 25])) if kind == "goods" else 0
        net = price * quantity - discount
        lines.append(Line(price, quantity, discount, net * rate // (100 + rate if included else 100), kind))
    shipping, duties = draw(st.integers(0, 2_000)), draw(st.sampled_from([0, 0, 500]))

    def to_theirs(units: int) -> int:
        """Rounded up: of a tax that is nothing there, a refund does not tell whether it is a part of the prices."""
        return -(-abs(units) * (abroad or 100) // 100) * (1 if units > 0 else -1)

    def both(units: int) -> dict[str, Any]:
        return {
            "shop_money": {"amount": _money(units, digits), "currency_code": currency},
            "presentment_money": {
                "amount": _money(to_theirs(units), digits), "currency_code": currency if abroad is None else "CAD",
            },
        }  # fmt: skip

    def item(line: Line) -> dict[str, Any]:
        more: dict[str, dict[str, Any]] = {
            "goods": {},
            "card": {"gift_card": True},
            "tip": {"tip_payment_gateway": "shopify_payments"},
        }
        return {
            "title": "x", "price": _money(line.price, digits), "quantity": line.quantity, "gift_card": False,
            "discount_allocations": [{"amount": _money(line.discount, digits)}],
            "tax_lines": [{"price": _money(line.tax, digits)}], **more[line.kind],
        }  # fmt: skip

    taxes, tips = sum(line.tax for line in lines), sum(line.net for line in lines if line.kind == "tip")
    subtotal = sum(line.net for line in lines) - tips
    order = {
        "id": number, "currency": currency, "presentment_currency": currency if abroad is None else "CAD",
        "subtotal_price": _money(subtotal, digits), "total_tax": _money(taxes, digits), "taxes_included": included,
        "total_price": _money(subtotal + tips + (0 if included else taxes) + shipping + duties, digits),
        "total_shipping_price_set": both(shipping), "line_items": [item(line) for line in lines],
        "total_discounts": _money(sum(line.discount for line in lines), digits),
    }  # fmt: skip
    sent: list[Sent] = [("orders/create", order), ("orders/updated", {**order, "updated_at": "2026-01-01"})]

    def sales(line: Line, of: range) -> int:
        if line.kind != "goods":
            return 0
        return line.part(line.net, of) - (line.part(line.tax, of) if included else 0)

    net = sum(sales(line, range(line.quantity)) for line in lines)
    left = [0] * len(lines)
    for index in range(draw(st.integers(0, 3))):
        returned = []
        for at, line in enumerate(lines):
            until = draw(st.integers(left[at], line.quantity))
            returned.append((line, range(left[at], until)))
            left[at] = until
        returned = [(line, of) for line, of in returned if of]
        goods = sum(sales(line, of) for line, of in returned)
        less = draw(st.integers(0, goods))  # the shop keeps a part of the money
        of_shipping, shipping = draw(st.sampled_from([(0, shipping), (shipping, 0)]))
        of_duties, duties = draw(st.sampled_from([(0, duties), (duties, 0)]))
        gross = sum(line.part(line.net, of) + (0 if included else line.part(line.tax, of)) for line, of in returned)
        back = gross + of_shipping + of_duties - less
        parts = []
        for line, of in returned:
            amounts = {"subtotal": line.part(line.net, of), "total_tax": line.part(line.tax, of)}
            parts.append({
                "quantity": len(of), "line_item": item(line),
                **{name: float(_money(units, digits)) for name, units in amounts.items()},
                **{f"{name}_set": both(units) for name, units in amounts.items()},
            })  # fmt: skip
        adjustments = [
            {"kind": kind, "amount": _money(amount, digits), "tax_amount": "0.00", "amount_set": both(amount)}
            for kind, amount in (("shipping_refund", -of_shipping), ("refund_discrepancy", less))
            if amount
        ]
        theirs = sum(
            to_theirs(line.part(line.net, of)) + (0 if included else to_theirs(line.part(line.tax, of)))
            for line, of in returned
        ) + to_theirs(of_shipping) + to_theirs(of_duties) - to_theirs(less)  # fmt: skip
        paid = [{
            "kind": "refund", "status": draw(st.sampled_from(["success", "pending"])),
            "amount": _money(theirs, digits), "currency": currency if abroad is None else "CAD",
        }]  # fmt: skip
        if not back or (not included and not less and not of_shipping and not of_duties and draw(st.booleans())):
            paid = []  # the shop has taken lines out of an order that is not paid yet
        net -= goods - less
        refund = {
            "id": number * 10 + index, "order_id": number, "refund_line_items": parts, "transactions": paid,
            "order_adjustments": adjustments, "duties": [{"amount_set": both(of_duties)}] if of_duties else [],
        }  # fmt: skip
        sent.append(("refunds/create", refund))
    if draw(st.integers(0, 4)) == 0:
        sent.append(("orders/cancelled", {**order, "cancelled_at": "2026-01-02"}))
        net = 0
    return Sold(str(number), sent, Decimal(net).scaleb(-digits))


@given(sold=st.tuples(shopify_orders(1001), shopify_orders(1002)), order=st.data())
def test_orders_of_shopify(report: Report, sold: Sequence[Sold], order: st.DataObject) -> None:
    report.agrees(SHOPIFY, sold, order)


# WooCommerce: the total of the order less its taxes, shipping and refunds

WOOCOMMERCE = WooCommerce("woo", WooCommerce.Options(tenant="shop", secret=SECRET))


@st.composite
def woocommerce_orders(draw: st.DrawFn, number: int) -> Sold:
    currency = draw(st.sampled_from([*DIGITS]))
    digits = DIGITS[currency]
    net, tax, shipping = draw(st.integers(0, 90_000)), draw(st.integers(0, 9_000)), draw(st.integers(0, 2_000))
    whole = draw(st.booleans())
    if not whole:  # of a part of an order, WooCommerce does not tell which part of it is taxes
        tax = shipping = 0
    total = left = net + tax + shipping
    refunds: list[dict[str, Any]] = []
    order = {
        "id": number, "currency": currency, "status": "processing", "date_created_gmt": "2026-01-01T00:00:00",
        "date_modified_gmt": "2026-01-01T00:00:00", "total": _money(total, digits), "total_tax": _money(tax, digits),
        "shipping_total": _money(shipping, digits), "line_items": [],
    }  # fmt: skip
    statuses = draw(st.sampled_from([["checkout-draft", "pending"], ["on-hold"], []]))
    sent: list[Sent] = [("order.updated", {**order, "status": each, "refunds": []}) for each in statuses]
    sent.append(("order.created", {**order, "refunds": []}))
    for index in range(draw(st.integers(0, 20))):
        back = draw(st.integers(0, left))
        left -= back
        refunds.insert(0, {"id": number * 100 + index, "reason": "", "total": _money(-back, digits)})
        sent.append(("order.updated", {**order, "status": "completed", "refunds": [*refunds]}))
    if whole and left and refunds:
        refunds.insert(0, {"id": number * 100 + 99, "reason": "", "total": _money(-left, digits)})
        sent.append(("order.updated", {**order, "status": "refunded", "refunds": [*refunds]}))
        left = 0
    if end := draw(st.sampled_from([None, None, "order.deleted"])):
        sent.append((end, {"id": number}))
        left = 0
    net = (net if not refunds else 0) if whole and end is None else left
    return Sold(str(number), sent, Decimal(net).scaleb(-digits))


@given(sold=st.tuples(woocommerce_orders(701), woocommerce_orders(702)), order=st.data())
def test_orders_of_woocommerce(report: Report, sold: Sequence[Sold], order: st.DataObject) -> None:
    report.agrees(WOOCOMMERCE, sold, order)


# Stripe: payments less refunds and lost disputes, without the taxes and the shipping that Checkout names

CHECKOUT = Stripe("pay", Stripe.Options(tenant="shop", secret=SECRET))
INTENTS = Stripe("intents", Stripe.Options(tenant="shop", secret=SECRET, orders="payment_intent"))


@st.composite
def payments(draw: st.DrawFn, number: int, *, checkout: bool) -> Sold:
    currency = draw(st.sampled_from([*DIGITS]))
    total, order_id = draw(st.integers(0, 90_000)), draw(st.sampled_from([None, f"o-{number}"]))
    beside = draw(st.integers(0, total)) if checkout else 0
    about = {"currency": currency.lower(), "metadata": {} if order_id is None else {"order_id": order_id}}
    payment = f"pi_{number}"

    def event(type_: str, about: dict[str, Any], **data: Any) -> Sent:
        return type_, {"id": "evt_1", "type": type_, "created": 1_790_000_000, "data": {"object": about, **data}}

    details = {"amount_tax": beside // 2, "amount_shipping": beside - beside // 2}
    session = {
        "id": f"cs_{number}",
        "payment_intent": payment,
        "amount_total": total,
        "total_details": details,
        **about,
    }
    sent = [
        event("checkout.session.completed", {**session, "payment_status": "paid"}),
        event("payment_intent.succeeded", {"id": payment, "amount_received": total, **about}),
    ]  # fmt: skip
    charge, refunded = {"id": f"ch_{number}", "payment_intent": payment, **about}, 0
    for back in draw(st.lists(st.integers(1, 40_000), max_size=4)):
        before, refunded = refunded, min(total, refunded + back)
        if refunded > before:
            sent.append(event(
                "charge.refunded", {**charge, "amount_refunded": refunded},
                previous_attributes={"amount_refunded": before},
            ))  # fmt: skip
    lost = draw(st.booleans()) if order_id is None and refunded < total else False
    dispute = {"id": f"dp_{number}", "payment_intent": payment, "amount": total - refunded, **about}
    sent.append(event("charge.dispute.closed", {**dispute, "status": "lost" if lost else "won"}))
    left = 0 if lost else max(0, total - beside - refunded)
    return Sold(order_id or payment, sent, Decimal(left).scaleb(-DIGITS[currency]))


@given(sold=st.tuples(payments(1, checkout=True), payments(2, checkout=True)), order=st.data())
def test_sessions_of_checkout(report: Report, sold: Sequence[Sold], order: st.DataObject) -> None:
    report.agrees(CHECKOUT, sold, order)


@given(sold=st.tuples(payments(1, checkout=False), payments(2, checkout=False)), order=st.data())
def test_payments_of_a_shops_page(report: Report, sold: Sequence[Sold], order: st.DataObject) -> None:
    report.agrees(INTENTS, sold, order)
