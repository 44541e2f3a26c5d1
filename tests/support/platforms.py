"""A daemon with the webhooks of all platforms, and the signatures with which these send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from .clients import wait_until
from .daemon import Daemon, Reply, Shop

__all__ = ["SECRET", "TABLES", "Platforms", "platforms", "taken"]

SECRET = "whsec_a-secret-that-a-platform-shows-once"

_COMMON = f'tenant = "shop"\nsecret = "{SECRET}"\n'
TABLES = {
    "plugins.webhooks.de": f'{_COMMON}type = "shopify"\nprevious_secret = "the-one-before"',
    "plugins.webhooks.paid": f'{_COMMON}type = "shopify"\ncompleted = "paid"',
    "plugins.webhooks.woo": f'{_COMMON}type = "woocommerce"',
    "plugins.webhooks.pay": f'{_COMMON}type = "stripe"',
    "plugins.webhooks.intents": f'{_COMMON}type = "stripe"\norders = "payment_intent"\ntest_mode = true',
    "plugins.webhooks.erp": f"""{_COMMON}header = "X-Erp-Signature"
prefix = "sha256="
key = "/event"
keys = {{ "order.paid" = "Order Completed", "order.returned" = "Order Refunded" }}
message_id = "/id"
timestamp = "/at"
anonymous_id = "/order/visitor"
user_id = "/order/customer/no"
data = {{ order_id = "/order/no", total = "/order/total", currency = "/order/currency" }}
products = "/order/lines"
product = {{ sku = "/sku", price = "/price", quantity = "/qty" }}""",
}


class Platforms(NamedTuple):
    shop: Shop
    daemon: Daemon

    def send(self, path: str, body: bytes, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.daemon.request("POST", f"/webhooks/{path}", body, {"Content-Type": "application/json", **named})

    def shopify(self, topic: str, payload: Any, *, secret: str = SECRET, path: str = "de", **headers: str) -> Reply:
        body = _body(payload)
        signed = {"X_Shopify_Hmac_SHA256": _base64(body, secret), "X_Shopify_Event_Id": str(uuid4())}
        return self.send(path, body, X_Shopify_Topic=topic, **{**signed, **headers})

    def woocommerce(self, topic: str, payload: Any, *, secret: str = SECRET) -> Reply:
        body = _body(payload)
        return self.send(
            "woo", body, X_WC_Webhook_Topic=topic, X_WC_Webhook_Signature=_base64(body, secret),
            X_WC_Webhook_Delivery_ID=str(uuid4()),
        )  # fmt: skip

    def stripe(self, payload: Any, *, path: str = "pay", secret: str = SECRET, age: float = 0) -> Reply:
        body, at = _body(payload), int(time.time() - age)
        signature = hmac.digest(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hex()
        return self.send(path, body, Stripe_Signature=f"t={at},v1={'0' * 64},v1={signature},v0=x")

    def erp(self, payload: Any, *, prefix: str = "sha256=") -> Reply:
        body = _body(payload)
        signature = hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()
        return self.send("erp", body, X_Erp_Signature=prefix + signature)

    def page(self, visitor: str, source: str, at: str) -> None:
        """A visit by a campaign."""
        campaign = {"campaign": {"source": source, "medium": "email", "name": "spring"}}
        body = {"key": "Page View", "data": {}, "anonymousId": visitor, "context": campaign, "timestamp": at}
        assert self.daemon.post("/track", body, self.shop.public.id).status == 200

    def records(self, text: str, key: str | None = None) -> list[dict[str, Any]]:
        return [each for each in self.shop.stored(text) if key is None or each.get("key") == key]

    def derived(self, order_id: object) -> list[dict[str, Any]]:
        """The attributions and reversals of an order."""
        wait_until(lambda: self.shop.is_done("attribution"))
        found = (each for each in self.shop.stored() if each["type"].startswith("attribution"))
        return [each for each in found if each["orderId"] == str(order_id)]

    def counted(self, endpoint: str, outcome: str, key: str) -> float:
        return self.daemon.metric(f'ingestd_events_total{{endpoint="{endpoint}",key="{key}",outcome="{outcome}"}}')


@contextmanager
def platforms(folder: Path) -> Iterator[Platforms]:
    shop = Shop(folder, TABLES)
    with shop.serve() as daemon:
        yield Platforms(shop, daemon)


def taken(answer: Reply) -> bool:
    return (answer.status, answer.json()) == (200, {"success": True})


def _body(payload: Any) -> bytes:
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


def _base64(body: bytes, secret: str) -> str:
    return base64.b64encode(hmac.digest(secret.encode(), body, hashlib.sha256)).decode()
