"""Stripe: payments of Checkout or of a shop's own page, and refunds. docs/stripe.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Literal

from ingestd.api.events import Endpoint, Request
from ingestd.api.intake import Message

from .payloads import member, text_of, without_none
from .webhook import VISITOR, Check, Webhook, WebhookOptions, Who

__all__ = ["Stripe"]

# Stripe takes ISK and UGX with two decimals, although they have none.
_DIGITS: Mapping[str, int] = {
    **dict.fromkeys(
        ("bif", "clp", "djf", "gnf", "jpy", "kmf", "krw", "mga", "pyg", "rwf", "vnd", "vuv", "xaf", "xof", "xpf"), 0
    ),
    **dict.fromkeys(("bhd", "jod", "kwd", "omr", "tnd"), 3),
}
"""The decimals of currencies that have other than two."""

_MOST_SIGNATURES = 5
_OLDEST = 300  # seconds: the age up to which libraries of Stripe, too, take a signature
_ORDER = "order_id"
"""The member of `metadata` with the shop's id of an order."""

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["id", "type", "created", "data"],
    "properties": {
        "id": {"type": "string"}, "type": {"type": "string"}, "created": {"type": "integer"},
        "data": {
            "type": "object",
            "required": ["object"],
            "properties": {
                "object": {
                    "type": "object",
                    "required": ["id", "currency"],
                    "properties": {
                        "id": {"type": "string"}, "currency": {"type": "string"},
                        "metadata": {"type": ["object", "null"]}, "amount_total": {"type": ["integer", "null"]},
                        "amount": {"type": "integer"}, "amount_received": {"type": "integer"},
                        "amount_refunded": {"type": "integer"},
                    },
                },
            },
        },
    },
}  # fmt: skip


class Stripe(Webhook):
    class Options(WebhookOptions, kw_only=True):
        type: Literal["stripe"] = "stripe"
        orders: Literal["checkout", "payment_intent"] = "checkout"
        client_reference: Literal["visitor", "user"] = "visitor"
        test_mode: bool = False

    endpoint = Endpoint("stripe", is_public=False)
    schemas: ClassVar[Mapping[str, Mapping[str, Any]]] = {"event": _SCHEMA}

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._options = options
        checkout, intent = self._checkout, self._intent
        of_checkout = options.orders == "checkout"
        self._readers: Mapping[str, Callable[[dict[str, Any], dict[str, Any], int], Sequence[Message]]] = {
            **({"checkout.session.completed": checkout, "checkout.session.async_payment_succeeded": checkout}
               if of_checkout else {"payment_intent.succeeded": intent}),
            "charge.refunded": self._refunded,
            "charge.dispute.closed": self._disputed,
        }  # fmt: skip

    def topic(self, headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
        return text_of(payload.get("type")) or ""

    def is_signed(self, request: Request, body: bytes) -> bool:
        parts = [part.strip().partition("=") for part in (request.headers.get("Stripe-Signature") or "").split(",")]
        signed_at = next((value for name, _, value in parts if name == "t"), "")
        if not signed_at.isascii() or not signed_at.isdigit() or len(signed_at) > len("9999999999"):
            return False
        if abs(request.received_at / 1000 - int(signed_at)) > _OLDEST:
            return False
        given = [value for name, _, value in parts if name == "v1"]
        return self.has_signature(f"{signed_at}.".encode() + body, given[:_MOST_SIGNATURES], "hex")

    def read(self, topic: str, headers: Mapping[str, str], payload: dict[str, Any], check: Check) -> Sequence[Message]:
        reader = self._readers.get(topic)
        if reader is None or (payload.get("livemode") is False and not self._options.test_mode):
            return ()
        if member(member(payload, "data"), "object").get("mode") == "setup":  # without a payment it has no currency
            return ()
        check("event", payload)
        return reader(payload["data"]["object"], payload["data"], payload["created"] * 1000)

    def _checkout(self, session: dict[str, Any], _: dict[str, Any], at: int) -> Sequence[Message]:
        if session.get("payment_status") == "unpaid":  # the payment takes days, and another event tells of its success
            return ()
        details = member(session, "total_details")
        currency = session["currency"]
        total, shipping, tax = (
            _money(amount, currency)
            for amount in (session.get("amount_total"), details.get("amount_shipping"), details.get("amount_tax"))
        )
        data = {
            "total": total, "revenue": total - shipping - tax, "shipping": shipping, "tax": tax,
            "discount": _money(details.get("amount_discount"), currency),
        }  # fmt: skip
        reference, role = session.get("client_reference_id"), self._options.client_reference
        order_id = _order_id(session)
        visitor = member(session, "metadata").get(VISITOR) or (reference if role == "visitor" else None)
        user = (reference if role == "user" else None) or session.get("customer")
        who = self.who(visitor, user, f"order {order_id}")
        contact = member(session, "customer_details")
        traits = without_none({"email": text_of(contact.get("email")), "name": text_of(contact.get("name"))})
        made = [self._completed(data, currency, order_id, who, at)]
        if who.user is not None and traits:
            made.insert(0, self.identify(who, traits, f"customer of {order_id}", at))
        return made

    def _intent(self, intent: dict[str, Any], _: dict[str, Any], at: int) -> Sequence[Message]:
        order_id = _order_id(intent)
        who = self.who(member(intent, "metadata").get(VISITOR), intent.get("customer"), f"order {order_id}")
        data = {"total": _money(intent.get("amount_received"), intent["currency"])}
        return [self._completed(data, intent["currency"], order_id, who, at)]

    def _completed(self, data: dict[str, Any], currency: str, order_id: str, who: Who, at: int) -> Message:
        data = without_none({"order_id": order_id, "currency": currency.upper(), **data})
        return self.event("Order Completed", data, who, f"completed {order_id}", at)

    def _refunded(self, charge: dict[str, Any], data: dict[str, Any], at: int) -> Sequence[Message]:
        """A charge has the sum of its refunds, and the event the sum before."""
        refunded = charge.get("amount_refunded", 0)
        earlier = member(data, "previous_attributes").get("amount_refunded")
        given = refunded - (earlier if isinstance(earlier, int) else 0)
        if given <= 0:
            return ()
        return self._given_back(charge, f"{charge['id']} {refunded}", given, None, at)

    def _disputed(self, dispute: dict[str, Any], _: dict[str, Any], at: int) -> Sequence[Message]:
        """The customer's bank has taken the money back. It may still return while the dispute is open."""
        if dispute.get("status") != "lost":
            return ()
        return self._given_back(dispute, dispute["id"], dispute.get("amount", 0), "dispute", at)

    def _given_back(
        self, about: dict[str, Any], refund_id: str, amount: int, reason: str | None, at: int
    ) -> Sequence[Message]:
        order_id, currency = _order_id(about), about["currency"]
        who = self.who(member(about, "metadata").get(VISITOR), about.get("customer"), f"order {order_id}")
        data = without_none({
            "order_id": order_id, "refund_id": refund_id, "currency": currency.upper(),
            "total": _money(amount, currency), "reason": reason,
        })  # fmt: skip
        return [self.event("Order Refunded", data, who, f"refund {refund_id}", at)]


def _order_id(paid: Mapping[str, Any]) -> str:
    """The shop's id of the order, else the id of the payment, which session, payment and charge have in common."""
    return text_of(member(paid, "metadata").get(_ORDER)) or text_of(paid.get("payment_intent")) or str(paid["id"])


def _money(amount: Any, currency: str) -> Decimal:
    if not isinstance(amount, int):
        return Decimal()
    return Decimal(amount).scaleb(-_DIGITS.get(currency.lower(), 2))
