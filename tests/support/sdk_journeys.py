"""A journey of every message type for an SDK, and the records that it leaves."""

from __future__ import annotations

from typing import Any

from .sdks import Call

__all__ = ["UNUSUAL", "journey", "record_of", "summary"]

_KEYS = {"product_added": "Product Added", "Viewed Product Category": "Product List Viewed"}
"""The event keys of other names that an event may have."""

UNUSUAL: dict[str, Any] = {
    "text": "Žluťoučký kůň 🐎 漢字 e\u0301 \u2028 </script> &amp; \\u0000 \"'",
    "ключ 🔑": True,
    "tiny": 5e-324,
    "huge": 1.7976931348623157e308,
    "fraction": 0.1,
    "negative": -273.15,
    "integer": 9007199254740991,
    "zero": 0,
    "empty": "",
    "nothing": None,
    "list": [1, None, [], {}, {"list": [None, False]}],
    "deep": {"a": {"b": {"c": {"d": {"e": {"f": {"g": [{"h": 1e-7}]}}}}}}},
}
"""Members that no schema knows. They are stored as they are, but members that are null are absent."""


def journey(name: str, *, has_category: bool) -> list[Call]:
    """The calls of one shopper with an SDK for servers. `name` is in every id.

    There are fewer than any SDK puts in a batch, so that their order is kept. The first call stands for itself,
    because some SDKs send it beside the batch of the others. `has_category` says whether a page may have a category.
    """
    visitor, user, phone = (f"{name}-{word}" for word in ("visitor", "user", "phone"))
    both = {"anonymousId": visitor, "userId": user}
    shop = {"category": "Shop"} if has_category else {}
    product = {"product_id": "p-1", "name": "Kočárek 🛒", "price": 19.9, "quantity": 2, "coupon": None}
    order = {"order_id": f"{name}-order", "revenue": 39.8, "currency": "CZK", "products": [product, product]}
    return [
        ("page", {"anonymousId": f"{name}-stranger", "name": "Home"}),
        ("identify", {**both, "traits": {"email": "žofie@example.com", **UNUSUAL}}),
        ("page", {**both, **shop, "name": "Cart 🛒", "properties": {"url": "https://a.shop/?q=ž", **UNUSUAL}}),
        ("page", {**both, "properties": {"path": "/"}}),
        ("screen", {**both, "name": "Checkout", "properties": UNUSUAL}),
        ("track", {"anonymousId": visitor, "event": "Product Viewed", "properties": {**product, **UNUSUAL}}),
        ("track", {**both, "event": "product_added", "properties": product}),
        ("track", {**both, "event": "Viewed Product Category", "properties": {"category": "Kočárky"}}),
        ("track", {"userId": user, "event": "Order Completed", "properties": order}),
        (
            "track",
            {
                "userId": user,
                "event": "Order Refunded",
                "properties": {**order, "revenue": "39.80", "refund_id": "r-1"},
            },
        ),
        ("track", {"anonymousId": phone, "event": "Cart Viewed", "properties": {"cart_id": "c-1"}}),
        ("alias", {"previousId": phone, "userId": user}),
        ("track", {"anonymousId": phone, "event": "Cart Viewed", "properties": {"cart_id": "c-2"}}),
        ("group", {**both, "groupId": f"{name}-group", "traits": {"plan": "gold", **UNUSUAL}}),
    ]


def record_of(call: Call) -> dict[str, Any]:
    """The summary of the record that a call leaves, by the table of docs/intakes.md.

    `userId` and `anonymousId` are those of the call, or None.
    """
    method, message = call
    ids = {"anonymousId": message.get("anonymousId"), "userId": message.get("userId")}
    properties = _without_nulls(message.get("properties", {}))
    if "revenue" in properties:
        properties["revenue"] = float(properties["revenue"])  # a plain decimal as text is the number
    match method:
        case "track":
            name = message["event"]
            return {"type": "event", "key": _KEYS.get(name, name), "data": properties, **ids}
        case "page" | "screen":
            named = {name: message[name] for name in ("name", "category") if name in message}
            return {"type": "event", "key": "Page View", "data": {**properties, **named}, **ids}
        case "identify":
            return {"type": "identify", "traits": _without_nulls(message.get("traits", {})), **ids}
        case "group":
            groups = {message["groupId"]: _without_nulls(message.get("traits", {}))}
            return {"type": "identify", "traits": {"groups": groups}, **ids}
        case "alias":
            return {"type": "identify", "traits": {}, **ids, "anonymousId": message["previousId"]}
    raise ValueError(method)


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """What a call decides of a record."""
    names = ("type", "key", "data", "traits", "anonymousId", "userId")
    return {name: record[name] for name in names if name in record}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return [_without_nulls(member) for member in value] if isinstance(value, list) else value
