"""WooCommerce: orders, their refunds, and customers. docs/woocommerce.md.

WooCommerce sends the whole order with each change, so the events of a change are told by the ids of their messages: an
order is completed once, and each refund is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from ingestd.api.events import Endpoint, Request
from ingestd.api.intake import MOST_MESSAGES, Message

from .payloads import AMOUNT, ID, amount, first_text, instant, member, objects, text_of, without_none
from .webhook import VISITOR, Check, Webhook, WebhookOptions, Who

__all__ = ["WooCommerce"]

_PAID = {"processing", "completed", "refunded"}
_GIVEN_UP = {"cancelled", "trash"}
_DRAFTS = {"auto-draft", "checkout-draft", "draft"}
_MOST_REFUNDS = MOST_MESSAGES - 4
_ARRIVAL = "_wc_order_attribution_"
"""The prefix of the metadata in which WooCommerce keeps how the customer of an order came."""

_ITEM = {"type": "object", "properties": {"price": AMOUNT, "quantity": {"type": "number"}}}
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "order": {
        "type": "object",
        "required": ["id", "status", "currency", "total"],
        "properties": {
            "id": ID, "status": {"type": "string"}, "currency": {"type": "string"}, "total": AMOUNT,
            "total_tax": AMOUNT, "shipping_total": AMOUNT, "discount_total": AMOUNT,
            "line_items": {"type": "array", "items": _ITEM},
            "refunds": {
                "type": "array",
                "items": {"type": "object", "required": ["id", "total"], "properties": {"id": ID, "total": AMOUNT}},
            },
        },
    },
    "id": {"type": "object", "required": ["id"], "properties": {"id": ID}},
}  # fmt: skip


class WooCommerce(Webhook):
    class Options(WebhookOptions, kw_only=True):
        type: Literal["woocommerce"] = "woocommerce"
        completed: Literal["created", "paid"] = "paid"
        user_id: Literal["id", "email"] = "id"

    endpoint = Endpoint("woocommerce", is_public=False)
    schemas = _SCHEMAS
    has_lists = True

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._options = options
        self._readers: Mapping[str, tuple[str, Callable[[dict[str, Any], str], Sequence[Message]]]] = {
            "order.created": ("order", self._changed),
            "order.updated": ("order", self._changed),
            "order.restored": ("order", self._changed),
            "order.deleted": ("id", self._deleted),
            "customer.created": ("id", self._customer),
            "customer.updated": ("id", self._customer),
        }

    def topic(self, headers: Mapping[str, str], payload: Mapping[str, Any]) -> str:
        return headers.get("X-WC-Webhook-Topic") or ""

    def is_signed(self, request: Request, body: bytes) -> bool:
        if body.startswith(b"webhook_id=") and body[11:].isdigit():
            # A new webhook is tried without a signature, and saved only if the answer is 200. It means no event.
            request.replace_body(b"{}")
            return True
        given = request.headers.get("X-WC-Webhook-Signature") or ""
        return self.has_signature(body, [given.strip()], "base64")

    def read(self, topic: str, headers: Mapping[str, str], payload: dict[str, Any], check: Check) -> Sequence[Message]:
        schema, reader = self._readers.get(topic, ("", None))
        if reader is None or not payload:
            return ()
        check(schema, payload)
        delivery = headers.get("X-WC-Webhook-Delivery-ID") or payload.get("date_modified_gmt")
        return reader(payload, f"{topic} {payload['id']} {delivery}")

    def read_stored(self, payload: dict[str, Any], check: Check) -> Sequence[Message]:
        """The events of an order or customer as the REST interface lists it."""
        schema, reader = ("order", self._changed) if "line_items" in payload else ("id", self._customer)
        check(schema, payload)
        return reader(payload, f"stored {payload['id']} {payload.get('date_modified_gmt')}")

    # Orders

    def _changed(self, order: dict[str, Any], message_id: str) -> Sequence[Message]:
        number, status = order["id"], order["status"]
        if status in _DRAFTS:  # nobody has ordered yet
            return ()
        completed = status in _PAID or (self._options.completed == "created" and status not in _GIVEN_UP)
        made: list[Message] = []
        if completed:
            made += [*self._arrival(order), self._order("Order Completed", order, f"completed {number}")]
        elif status not in _GIVEN_UP:
            made.append(self._order("Order Updated", order, message_id))
        made += self._refunds(order)
        if status in _GIVEN_UP:
            made += self._cancelled(order, status)
        return made

    def _order(self, key: str, order: dict[str, Any], message_id: str) -> Message:
        total, tax, shipping = _amounts(order)
        data = without_none({
            "order_id": text_of(order["id"]),
            "currency": order["currency"],
            "total": total,
            "revenue": total - tax - shipping,  # the tax is that of the shipping, too
            "shipping": shipping,
            "tax": tax,
            "discount": amount(order.get("discount_total")),
            "coupon": first_text(order.get("coupon_lines"), "code"),
            "products": [_product(each) for each in objects(order.get("line_items"))],
        })  # fmt: skip
        context = without_none({"userAgent": text_of(order.get("customer_user_agent"))})
        return self.event(key, data, self._who(order), message_id, _time_of(order), context=context)

    def _refunds(self, order: dict[str, Any]) -> list[Message]:
        """Each refund of an order; the newest ones if there are very many.

        Which part of a refund is taxes and shipping is not told, so it is the part that they are of the order. It is
        taken of the sum of the refunds: then those of a whole order take back its whole revenue, and lose no cent.
        """
        total, tax, shipping = _amounts(order)
        net, who, at = total - tax - shipping, self._who(order), _time_of_change(order)
        refunds = [(each, abs(amount(each["total"]))) for each in objects(order.get("refunds"))]
        refunds.sort(key=lambda each: (amount(each[0]["id"]), str(each[0]["id"])))
        made, sum_, told, unit = [], Decimal(), Decimal(), total
        for refund, given in refunds:
            sum_, before, unit = sum_ + given, told, min(unit, given, key=_decimals)
            told = min(sum_, max(Decimal(), sum_ * net / total)) if total > 0 else sum_
            told = told.quantize(unit.copy_abs())
            if not given:
                continue
            data = without_none({
                "order_id": text_of(order["id"]),
                "refund_id": text_of(refund["id"]),
                "currency": order["currency"],
                "total": given,
                "revenue": told - before,
                "reason": text_of(refund.get("reason")),
            })  # fmt: skip
            made.append(self.event("Order Refunded", data, who, f"refund {refund['id']}", at))
        return made[-_MOST_REFUNDS:]

    def _cancelled(self, order: dict[str, Any], reason: str) -> Sequence[Message]:
        data = {"order_id": text_of(order["id"]), "reason": reason}
        who, at = self._who(order), _time_of_change(order)
        return [self.event("Order Cancelled", data, who, f"cancelled {order['id']}", at)]

    def _deleted(self, order: dict[str, Any], message_id: str) -> Sequence[Message]:
        return self._cancelled(order, "deleted")

    def _arrival(self, order: dict[str, Any]) -> Sequence[Message]:
        told = {name.removeprefix(_ARRIVAL): value for name, value in _metadata(order) if name.startswith(_ARRIVAL)}
        url = told.get("session_entry")
        return self.arrival(
            self._who(order), order["id"], url if isinstance(url, str) else "", told.get("referrer"), _time_of(order)
        )

    # Customers

    def _customer(self, customer: dict[str, Any], message_id: str) -> Sequence[Message]:
        who = self.who(None, customer.get(self._options.user_id), "")
        if who.user is None:
            return ()
        billing = member(customer, "billing")
        traits = without_none({
            "email": text_of(customer.get("email")),
            "firstName": text_of(customer.get("first_name")),
            "lastName": text_of(customer.get("last_name")),
            "phone": text_of(billing.get("phone")),
            "city": text_of(billing.get("city")),
            "country": text_of(billing.get("country")),
        })  # fmt: skip
        at = customer.get("date_modified_gmt") or customer.get("date_created_gmt")
        return [self.identify(who, traits, message_id, instant_of(at))]

    def _who(self, order: Mapping[str, Any]) -> Who:
        visitor = next((value for name, value in _metadata(order) if name == VISITOR), None)
        user = member(order, "billing").get("email") if self._options.user_id == "email" else order.get("customer_id")
        return self.who(visitor, user, f"order {order['id']}")  # a guest's customer_id is 0, which names nobody


def _metadata(order: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    entries = objects(order.get("meta_data"))
    return [(name, each.get("value")) for each in entries if isinstance(name := each.get("key"), str)]


def _amounts(order: Mapping[str, Any]) -> tuple[Decimal, Decimal, Decimal]:
    """The total, its taxes, and the shipping without taxes."""
    return amount(order["total"]), amount(order.get("total_tax")), amount(order.get("shipping_total"))


def _decimals(amount: Decimal) -> int:
    return int(amount.as_tuple().exponent)


def _product(item: Mapping[str, Any]) -> dict[str, Any]:
    return without_none({
        "product_id": text_of(item.get("product_id")),
        "sku": text_of(item.get("sku")),
        "name": text_of(item.get("name")),
        "price": amount(item.get("price")),
        "quantity": item.get("quantity"),
    })  # fmt: skip


def instant_of(value: Any) -> int | None:
    """The milliseconds of a time in `…_gmt`, which has no offset."""
    return instant(f"{value}Z" if isinstance(value, str) and not value.endswith("Z") else value)


def _time_of(order: Mapping[str, Any]) -> int | None:
    return instant_of(order.get("date_paid_gmt") or order.get("date_created_gmt"))


def _time_of_change(order: Mapping[str, Any]) -> int | None:
    return instant_of(order.get("date_modified_gmt"))
