"""The shop of `make demo-traffic`: visits from campaigns, orders, refunds, and mistakes of clients."""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, cycle
from random import Random
from typing import Any, NamedTuple

__all__ = ["Message", "Shop"]

PRODUCTS = [
    ("p-1", "Cotton T-shirt", "Clothing/Shirts", 19.9),
    ("p-2", "Linen shirt", "Clothing/Shirts", 39.9),
    ("p-3", "Wool socks", "Clothing/Socks", 12.5),
    ("p-4", "Canvas sneakers", "Shoes/Sneakers", 79.0),
    ("p-5", "Rain jacket", "Clothing/Jackets", 129.0),
    ("p-6", "Leather belt", "Accessories", 45.0),
]
CAMPAIGNS = [
    {"source": "newsletter", "medium": "email", "name": "autumn"},
    {"source": "google", "medium": "cpc", "name": "shirts"},
    {"source": "google", "medium": "cpc", "name": "brand"},
    {"source": "instagram", "medium": "social", "name": "reels"},
    {"source": "partner", "medium": "affiliate", "name": "coupons"},
]
AT_ONCE = 6  # visits
RETURNING = 200  # people who may come back


class Message(NamedTuple):
    """A request to the daemon. `key` names one of the demo's keys; None sends a key that does not exist."""

    path: str
    body: bytes
    key: str | None
    events: int = 1
    is_signed: bool = True
    """False omits the signature of a server key's request."""


class Person(NamedTuple):
    user: str
    devices: tuple[str, ...]
    key: str
    """The public key of this person's shop."""


class Shop:
    """A shop with its visitors. `run` makes its ids different from those of other runs."""

    def __init__(self, run: str, seed: int | None = None) -> None:
        self._run = run
        self._chance = Random(seed)  # noqa: S311 - nothing secret
        self._numbers = count(1)
        self._people: deque[Person] = deque(maxlen=RETURNING)
        self._later: deque[Message] = deque()
        self._mistakes = mistakes()

    def messages(self) -> Iterator[Message]:
        """An endless stream: several visits at once, later messages of the backend, and mistakes in between."""
        visits = [self._visit() for _ in range(AT_ONCE)]
        while True:
            place = self._chance.randrange(AT_ONCE)
            message = next(visits[place], None)
            if message is None:
                visits[place] = self._visit()
                continue
            yield message
            if self._later and self._is(0.2):
                yield self._later.popleft()
            if self._is(0.03):
                yield message  # the client has lost the answer and retries
            if self._is(0.05):
                yield next(self._mistakes)

    def _is(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._chance.getrandbits(128), version=4))

    def _person(self) -> Person:
        if self._people and self._is(0.3):
            return self._chance.choice(self._people)
        number = next(self._numbers)
        devices = (f"visitor-{self._run}-{number}-phone", f"visitor-{self._run}-{number}-laptop")
        person = Person(f"u-{self._run}-{number}", devices, "outlet" if self._is(0.2) else "public")
        self._people.append(person)
        return person

    def _visit(self) -> Iterator[Message]:
        """One visit. For some people a visit with another campaign, hours before, comes first."""
        person = self._person()
        if self._is(0.4):
            yield from self._browse(person, self._chance.choice(person.devices), hours_ago=self._chance.uniform(1, 20))
            yield self._identify(person, person.devices[1])
        device = person.devices[0]
        yield from self._browse(person, device)
        if self._is(0.6):
            yield from self._buy(person, device)

    def _browse(self, person: Person, device: str, hours_ago: float = 0) -> Iterator[Message]:
        """An app sends these events as a batch, a browser sends them one by one."""
        visit: dict[str, Any] = {"anonymousId": device, "sessionId": self._uuid()}
        if hours_ago:
            visit["timestamp"] = (datetime.now(UTC) - timedelta(hours=hours_ago)).isoformat()
        page: dict[str, Any] = {"url": "https://shop.example/"}
        context: dict[str, Any] = {"page": page}
        if self._is(0.8):
            campaign = self._chance.choice(CAMPAIGNS)
            if self._is(0.5):
                context["campaign"] = campaign
            else:
                names = {
                    "utm_source": campaign["source"],
                    "utm_medium": campaign["medium"],
                    "utm_campaign": campaign["name"],
                }
                page["url"] += "?" + "&".join(f"{name}={value}" for name, value in names.items())
        events = [{"key": "Page View", "data": {"title": "Autumn at the shop"}, "context": context, **visit}]
        if self._is(0.3):
            events.append({"key": "Products Searched", "data": {"query": "shirt"}, **visit})
        seen = self._chance.sample(PRODUCTS, k=self._chance.randint(1, 3))
        events += [{"key": "Product Viewed", "data": product_data(*product), **visit} for product in seen]
        events = [{**event, "messageId": self._uuid()} for event in events]
        if self._is(0.3):
            yield Message("/batch", encoded({"events": events}), person.key, len(events))
        else:
            yield from (Message("/track", encoded(event), person.key) for event in events)

    def _identify(self, person: Person, device: str) -> Message:
        traits = {"email": f"{person.user}@example.com", "plan": self._chance.choice(["basic", "gold"])}
        body = encoded({"anonymousId": device, "userId": person.user, "traits": traits})
        if person.key == "public" and self._is(0.3):
            return Message("/identify", body, "server")
        return Message("/identify/public", body, person.key)

    def _buy(self, person: Person, device: str) -> Iterator[Message]:
        items = [
            {**product_data(*product), "quantity": self._chance.choice([1, 1, 2])}
            for product in self._chance.sample(PRODUCTS, k=self._chance.randint(1, 3))
        ]
        revenue = round(sum(item["price"] * item["quantity"] for item in items), 2)
        number = next(self._numbers)
        data = {
            "order_id": f"o-{self._run}-{number}",
            "revenue": revenue,
            "shipping": 4.9,
            "total": round(revenue + 4.9, 2),
            "currency": "CHF" if self._is(0.15) else "EUR",
            "products": items,
        }
        for item in items:
            yield self._track(person, device, "Product Added", {**item, "cart_id": f"c-{number}"})
        yield self._track(person, device, "Checkout Started", {"value": revenue, "currency": data["currency"]})
        yield self._identify(person, device)
        if self._is(0.2):
            return  # an abandoned cart
        order = {"key": "Order Completed", "anonymousId": device, "userId": person.user, "data": data}
        if person.key == "outlet":
            yield Message("/track", encoded(order), person.key)
            return
        if self._is(0.1):
            yield Message("/track", encoded(order), person.key)  # the page sends it too, but the backend's order counts
        yield Message("/customer-events", encoded(order), "server")
        self._take_back(device, data)

    def _take_back(self, device: str, data: dict[str, Any]) -> None:
        """Cancel some orders, and refund some in part or by items."""
        kind = self._chance.random()
        if kind < 0.18:
            key, taken = "Order Refunded", {"revenue": round(data["revenue"] / 4, 2)}
        elif kind < 0.3:
            key, taken = "Order Refunded", {"products": data["products"][:1], "reason": "does not fit"}
        elif kind < 0.38:
            key, taken = "Order Cancelled", {}
        else:
            return
        order = {"order_id": data["order_id"], "currency": data["currency"], **taken}
        body = encoded({"key": key, "anonymousId": device, "data": order, "messageId": self._uuid()})
        self._later.append(Message("/customer-events", body, "server"))

    def _track(self, person: Person, device: str, key: str, data: dict[str, Any]) -> Message:
        return Message("/track", encoded({"key": key, "anonymousId": device, "data": data}), person.key)


def mistakes() -> Iterator[Message]:
    """All mistakes in turn, without end."""
    event = {"key": "Product Viewed", "anonymousId": "visitor-1", "data": {"product_id": "p-1", "price": 19.9}}
    order = {"key": "Order Completed", "anonymousId": "visitor-1", "data": {"order_id": "o-1", "total": "19,90 €"}}
    return cycle([
        Message("/track", encoded({**event, "data": {"price": "19.90"}}), "public"),
        Message("/track", encoded({**event, "key": "Product viewed"}), "public"),
        Message("/track", encoded(order), "public"),
        Message("/track", encoded(event), None),
        Message("/track", encoded({"key": "Page View", "data": {}}), "public"),
        Message("/customer-events", encoded(event), "server", is_signed=False),
        Message("/track", b'{"key": "Page View", ', "public"),
        Message("/batch", encoded({"events": [event, {**event, "data": {"price": "free"}}]}), "public", 2),
    ])  # fmt: skip


def product_data(product_id: str, name: str, category: str, price: float) -> dict[str, Any]:
    return {"product_id": product_id, "name": name, "category": category, "price": price}


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
