"""Journeys of visitors to an order, sent to a daemon over HTTP, and the derived records of its archive."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ingestd.api.times import format_time, now

from .clients import wait_until
from .daemon import Daemon, Shop

__all__ = ["DAY", "HOUR", "IDENTIFY", "MINUTE", "SERVER", "TRACK", "Sender", "attributions", "derived"]

TRACK, SERVER, IDENTIFY = "/track", "/customer-events", "/identify/public"

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Sender:
    """Sends past events to a daemon. Orders are completed an hour ago.

    Ages are in milliseconds before the orders.
    """

    def __init__(self, shop: Shop, daemon: Daemon) -> None:
        self._shop = shop
        self._daemon = daemon
        self._completed = now() - HOUR

    def time(self, age: int = 0) -> str:
        return format_time(self._completed - age)

    def send(self, endpoint: str, visitor: str, age: int = 0, **members: Any) -> str:
        """Sends a page view with `members` or an identify request, and returns the id of its record."""
        body = {"anonymousId": visitor, "timestamp": self.time(age), **members}
        if endpoint != IDENTIFY:
            body = {"key": "Page View", "data": {}, **body}
        if endpoint == SERVER:
            reply = self._daemon.post_signed(body, self._shop.server)
        else:
            reply = self._daemon.post(endpoint, body, self._shop.public.id)
        assert reply.status == 200, reply.body
        return reply.headers["x-request-id"]

    def touch(self, visitor: str, age: int, source: str, **members: Any) -> str:
        return self.send(SERVER, visitor, age, **{"context": {"campaign": {"source": source}}, **members})

    def link(self, visitor: str, user: str) -> str:
        return self.send(IDENTIFY, visitor, userId=user)

    def order(self, visitor: str, order_id: str, key: str = "Order Completed", **data: Any) -> str:
        return self.send(SERVER, visitor, key=key, data={"order_id": order_id, **data})


def derived(shop: Shop, kind: str = "attribution") -> list[dict[str, Any]]:
    """The present records of the archive that are attributions or of another kind."""
    return [record for record in shop.archived() if record["type"] == kind]


def attributions(shop: Shop, order_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """The attributions of these orders by order id. Waits until the archive has all of them."""
    wait_until(lambda: {*order_ids} <= {record["orderId"] for record in derived(shop)})
    return {record["orderId"]: record for record in derived(shop) if record["orderId"] in order_ids}
