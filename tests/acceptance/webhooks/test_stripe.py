"""Stripe's webhooks: payments in minor units become orders, and the growing sum of refunds becomes refunds."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest

from tests.support.platforms import Platforms, taken


def event(type_: str, about: dict[str, Any], **members: Any) -> dict[str, Any]:
    before = members.pop("previous", None)
    data = {"object": about} if before is None else {"object": about, "previous_attributes": before}
    return {
        "id": f"evt_{uuid4().hex}", "object": "event", "type": type_, "created": int(time.time()), "livemode": True,
        "data": data, **members,
    }  # fmt: skip


def session(**members: Any) -> dict[str, Any]:
    return {
        "id": f"cs_{uuid4().hex}", "object": "checkout.session", "payment_intent": f"pi_{uuid4().hex}",
        "amount_total": 5995, "currency": "eur", "payment_status": "paid", "customer": "cus_9", "metadata": {},
        "client_reference_id": None, "customer_details": {"email": "ada@example.com", "name": "Ada"},
        "total_details": {"amount_discount": 500, "amount_shipping": 500, "amount_tax": 900}, **members,
    }  # fmt: skip


def charge(of: dict[str, Any], refunded: int) -> dict[str, Any]:
    return {
        "id": f"ch_{of['payment_intent']}", "object": "charge", "payment_intent": of["payment_intent"], "amount": 5995,
        "amount_refunded": refunded, "currency": of["currency"], "metadata": {}, "customer": "cus_9",
    }  # fmt: skip


def now(seconds: int = 0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


@pytest.mark.parametrize("where", ["client_reference_id", "metadata"])
def test_a_checkout_is_credited_to_the_campaign_of_its_visitor(place: Platforms, where: str) -> None:
    visitor = f"visitor-{uuid4()}"
    place.page(visitor, "newsletter", now(-60))
    told: dict[str, Any] = {where: visitor if where == "client_reference_id" else {"ingestd_visitor": visitor}}
    paid = session(**told)
    for _ in range(2):
        assert taken(place.stripe(event("checkout.session.completed", paid)))
    (record,) = place.records(visitor, "Order Completed")
    assert record["data"] == {
        "order_id": paid["payment_intent"], "currency": "EUR", "total": 59.95, "revenue": 45.95, "shipping": 5,
        "tax": 9, "discount": 5,
    }  # fmt: skip
    assert (record["userId"], record["signed"]) == ("cus_9", True)
    (attribution,) = place.derived(paid["payment_intent"])
    assert attribution["touchpoint"]["source"] == "newsletter"


def test_a_payment_that_takes_days_counts_when_it_succeeds(place: Platforms) -> None:
    paid = session(payment_status="unpaid")
    assert taken(place.stripe(event("checkout.session.completed", paid)))
    assert place.records(paid["payment_intent"]) == []
    paid["payment_status"] = "paid"
    assert taken(place.stripe(event("checkout.session.async_payment_succeeded", paid)))
    assert len(place.records(paid["payment_intent"], "Order Completed")) == 1


def test_refunds_are_the_growth_of_their_sum(place: Platforms) -> None:
    paid = session(total_details={})
    steps = [event("charge.refunded", charge(paid, sum_), previous={"amount_refunded": before})
             for before, sum_ in ((0, 1995), (1995, 5995))]  # fmt: skip
    assert taken(place.stripe(steps[0]))  # before its order
    assert taken(place.stripe(event("checkout.session.completed", paid)))
    for step in [*steps, *steps]:
        assert taken(place.stripe(step))
    attribution, *reversals = place.derived(paid["payment_intent"])
    assert attribution["value"]["revenue"] == 59.95
    assert [each["value"]["revenue"] for each in reversals] == [19.95, 40]


@pytest.mark.parametrize(("currency", "amount"), [("jpy", 5995), ("kwd", 5.995), ("usd", 59.95), ("isk", 59.95)])
def test_a_payment_of_a_shops_page_in_any_currency(place: Platforms, currency: str, amount: float) -> None:
    intent: dict[str, Any] = {
        "id": f"pi_{uuid4().hex}", "amount_received": 5995, "currency": currency, "customer": None,
        "metadata": {"order_id": f"o-{uuid4()}", "ingestd_visitor": "v-1"},
    }  # fmt: skip
    assert taken(place.stripe(event("payment_intent.succeeded", intent, livemode=False), path="intents"))
    (record,) = place.records(intent["metadata"]["order_id"])
    assert record["data"] == {
        "order_id": intent["metadata"]["order_id"], "currency": currency.upper(), "total": amount
    }  # fmt: skip
    assert record["anonymousId"] == "v-1"


def test_test_mode_and_other_events_are_no_orders(place: Platforms) -> None:
    paid = session()
    assert taken(place.stripe(event("checkout.session.completed", paid, livemode=False)))
    assert taken(place.stripe(event("payment_intent.succeeded", {**paid, "id": paid["payment_intent"]})))
    assert taken(place.stripe(event("invoice.paid", paid)))
    assert place.records(paid["payment_intent"]) == []


def test_only_a_recent_signature_proves_the_platform(place: Platforms) -> None:
    paid = event("checkout.session.completed", session())
    for answer in (
        place.stripe(paid, secret="wrong"),
        place.stripe(paid, age=301),
        place.stripe(paid, age=-301),
        place.send("pay", b"{}", Stripe_Signature="t=,v1="),
        place.send("pay", b"{}", Stripe_Signature="t=99999999999999999999,v1=0"),
        place.send("pay", b"{}", Stripe_Signature="t=²,v1=é"),
        place.send("pay", b"{}"),
    ):
        assert (answer.status, answer.json()["code"]) == (401, "invalid_signature")
    assert place.records(paid["data"]["object"]["payment_intent"]) == []
    assert taken(place.stripe(paid, age=290))
