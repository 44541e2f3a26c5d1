"""Shopify: orders, refunds, checkouts and customers. docs/shopify.md.

The amounts are those of the shop's currency. A theme may put the visitor's id among the attributes of the cart; an
order without it begins with an arrival of its own, from the address at which Shopify saw the customer arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import urlsplit

from ingestd.api.events import Endpoint, Request
from ingestd.api.intake import Message

from .payloads import AMOUNT, ID, amount, first_text, instant, member, objects, sum_of, text_of, without_none
from .shopify_refunds import Refunded, one_of
from .webhook import VISITOR, Check, Webhook, WebhookOptions, Who

__all__ = ["Shopify"]

_LINES = {
    "type": "array",
    "items": {"type": "object", "properties": {"price": AMOUNT, "quantity": {"type": "integer"}}},
}


def _amounts(*names: str) -> Mapping[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": dict.fromkeys(names, AMOUNT)}}


_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "order": {
        "type": "object",
        "required": ["id", "total_price", "currency"],
        "properties": {
            "id": ID, "currency": {"type": "string"}, "total_price": AMOUNT, "subtotal_price": AMOUNT,
            "total_tax": AMOUNT, "total_discounts": AMOUNT, "line_items": _LINES,
        },
    },
    "refund": {
        "type": "object",
        "required": ["id", "order_id"],
        "properties": {
            "id": ID, "order_id": ID, "refund_line_items": _amounts("subtotal", "total_tax"),
            "order_adjustments": _amounts("amount", "tax_amount"), "transactions": _amounts("amount"),
        },
    },
    "checkout": {"type": "object", "required": ["token"], "properties": {"token": {"type": "string"}}},
    "customer": {"type": "object", "required": ["id"], "properties": {"id": ID}},
}  # fmt: skip


class Shopify(Webhook):
    class Options(WebhookOptions, kw_only=True):
        type: Literal["shopify"] = "shopify"
        completed: Literal["created", "paid"] = "created"
        user_id: Literal["id", "email"] = "id"

    endpoint = Endpoint("shopify", is_public=False)
    schemas = _SCHEMAS

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._options = options
        self._readers: Mapping[str, tuple[str, Callable[[dict[str, Any], str], Sequence[Message]]]] = {
            "orders/create": ("order", self._completed if options.completed == "created" else self._updated),
            "orders/paid": ("order", self._completed if options.completed == "paid" else self._updated),
            "orders/updated": ("order", self._updated),
            "orders/cancelled": ("order", self._cancelled),
            "refunds/create": ("refund", self._refunded),
            "checkouts/create": ("checkout", self._checkout),
            "customers/create": ("customer", self._customer),
            "customers/update": ("customer", self._customer),
        }

    def topic(self, headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
        return headers.get("X-Shopify-Topic") or ""

    def is_signed(self, request: Request, body: bytes) -> bool:
        given = request.headers.get("X-Shopify-Hmac-SHA256") or ""
        return self.has_signature(body, [given.strip()], "base64")

    def read(self, topic: str, headers: Mapping[str, str], payload: dict[str, Any], check: Check) -> Sequence[Message]:
        schema, reader = self._readers.get(topic, ("", None))
        if reader is None or payload.get("test") is True:
            return ()
        check(schema, payload)
        # A repetition has the same id of the event, and another id of the delivery.
        event_id = headers.get("X-Shopify-Event-Id") or headers.get("X-Shopify-Webhook-Id")
        # One step of the shop, which has one id, may change several objects and concern several topics.
        return reader(payload, f"{topic} {payload.get('id')} {event_id or payload.get('updated_at')}")

    # Orders

    def _updated(self, order: dict[str, Any], event_id: str) -> Sequence[Message]:
        return [self._order("Order Updated", order, event_id)]

    def _completed(self, order: dict[str, Any], event_id: str) -> Sequence[Message]:
        status = order.get("order_status_url")
        try:
            host = urlsplit(status).netloc if isinstance(status, str) else ""
        except ValueError:  # not an address
            host = ""
        landing = order.get("landing_site")
        url = landing if isinstance(landing, str) else ""
        if url and "://" not in url and host:
            url = f"https://{host}/{url.removeprefix('/')}"
        return [
            *self.arrival(self._who(order), order["id"], url, order.get("referring_site"), _time_of(order)),
            *self._customer(member(order, "customer"), f"customer of {order['id']}"),
            self._order("Order Completed", order, f"completed {order['id']}"),
        ]

    def _order(self, key: str, order: dict[str, Any], message_id: str) -> Message:
        tax = amount(order.get("total_tax"))
        subtotal = order.get("subtotal_price")
        lines = objects(order.get("line_items"))
        included = _tax_of(lines) if order.get("taxes_included") is True else Decimal()
        cards = sum((_worth(each) for each in lines if each.get("gift_card") is True), Decimal())
        data = without_none({
            "order_id": text_of(order["id"]),
            "currency": order.get("currency"),
            "total": amount(order.get("total_price")),
            "revenue": None if subtotal is None else amount(subtotal) - included - cards,
            "shipping": _shipping(order),
            "tax": tax,
            "discount": amount(order.get("total_discounts")),
            "coupon": first_text(order.get("discount_codes"), "code"),
            "products": [_product(each) for each in lines],
        })  # fmt: skip
        return self.event(key, data, self._who(order), message_id, _time_of(order), context=_context(order))

    def _cancelled(self, order: dict[str, Any], event_id: str) -> Sequence[Message]:
        data = without_none({"order_id": text_of(order["id"]), "reason": text_of(order.get("cancel_reason"))})
        at = instant(order.get("cancelled_at"))
        return [self.event("Order Cancelled", data, self._who(order), f"cancelled {order['id']}", at)]

    def _refunded(self, refund: dict[str, Any], event_id: str) -> Sequence[Message]:
        returned = Refunded(refund)
        if returned.is_test or (returned.total is None and returned.goods <= 0):
            return ()  # nothing was given back
        items = [
            _product(item) | {"quantity": each.get("quantity", 1)}
            for each in returned.lines
            if isinstance(item := each.get("line_item"), dict)
        ]
        data = without_none({
            "order_id": text_of(refund["order_id"]),
            "refund_id": text_of(refund["id"]),
            "currency": returned.currency,
            "total": returned.total,
            "revenue": max(returned.goods, Decimal()),
            "shipping": returned.shipping or None,
            "tax": returned.tax,
            "products": items,
        })  # fmt: skip
        who = self.who(None, None, f"order {refund['order_id']}")
        return [self.event("Order Refunded", data, who, f"refund {refund['id']}", _time_of(refund))]

    # Checkouts, customers and arrivals

    def _checkout(self, checkout: dict[str, Any], event_id: str) -> Sequence[Message]:
        lines = objects(checkout.get("line_items"))
        data = without_none({
            "currency": checkout.get("currency"),
            "value": amount(checkout.get("total_price")),
            "tax": amount(checkout.get("total_tax")),
            "discount": amount(checkout.get("total_discounts")),
            "products": [_product(each) for each in lines],
        })  # fmt: skip
        who, name = self._who(checkout, f"checkout {checkout['token']}"), f"checkout {checkout['token']}"
        at = instant(checkout.get("created_at"))
        return [self.event("Checkout Started", data, who, name, at, context=_context(checkout))]

    def _customer(self, customer: dict[str, Any], event_id: str) -> Sequence[Message]:
        who = self.who(None, customer.get(self._options.user_id), "")
        if who.user is None:
            return ()
        address = member(customer, "default_address")
        traits = without_none({
            "email": customer.get("email"),
            "phone": customer.get("phone"),
            "firstName": customer.get("first_name"),
            "lastName": customer.get("last_name"),
            "createdAt": customer.get("created_at"),
            "country": address.get("country_code"),
            "city": address.get("city"),
        })  # fmt: skip
        return [self.identify(who, traits, event_id, instant(customer.get("updated_at")))]

    def _who(self, payload: Mapping[str, Any], otherwise: str | None = None) -> Who:
        attributes = objects(payload.get("note_attributes"))
        visitor = next((each.get("value") for each in attributes if each.get("name") == VISITOR), None)
        user = member(payload, "customer").get(self._options.user_id)
        return self.who(visitor, user, otherwise or f"order {payload['id']}")


def _worth(line: Mapping[str, Any]) -> Decimal:
    """What a line costs after discounts."""
    discounts = sum_of(each.get("amount") for each in objects(line.get("discount_allocations")))
    return amount(line.get("price")) * amount(line.get("quantity")) - discounts


def _time_of(payload: Mapping[str, Any]) -> int | None:
    return instant(payload.get("processed_at") or payload.get("created_at"))


def _product(line: Mapping[str, Any]) -> dict[str, Any]:
    return without_none({
        "product_id": text_of(line.get("product_id")),
        "sku": text_of(line.get("sku")),
        "name": text_of(line.get("title")),
        "variant": text_of(line.get("variant_title")),
        "brand": text_of(line.get("vendor")),
        "price": amount(line.get("price")),
        "quantity": line.get("quantity"),
    })  # fmt: skip


def _tax_of(lines: Sequence[Mapping[str, Any]]) -> Decimal:
    """The taxes that the prices of the lines contain."""
    return sum_of(tax.get("price") for line in lines for tax in objects(line.get("tax_lines")))


def _shipping(order: Mapping[str, Any]) -> Decimal | None:
    told = one_of(order.get("total_shipping_price_set"), "shop_money")
    if told is not None:
        return amount(told)
    lines = order.get("shipping_lines")
    return sum_of(each.get("price") for each in objects(lines)) if isinstance(lines, list) else None


def _context(payload: Mapping[str, Any]) -> dict[str, Any]:
    agent = text_of(member(payload, "client_details").get("user_agent"))
    return without_none({"userAgent": agent, "locale": text_of(payload.get("customer_locale"))})
