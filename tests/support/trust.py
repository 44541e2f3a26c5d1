"""A shop and its daemon, with requests of its backend and of strangers with its public key."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .clients import wait_until
from .daemon import Daemon, Key, Reply, Shop, sign
from .redis_shop import redis_shop

__all__ = ["Pair", "Site", "open_site"]

_EVENT: dict[str, Any] = {"key": "Page View", "data": {}}


class Pair(NamedTuple):
    """An HTTP server (`[http] server`) and a store."""

    server: str
    store: str


class Site(NamedTuple):
    shop: Shop
    daemon: Daemon
    without_grants: Key

    def send(self, path: str, visitor: str, /, *, status: int = 200, **members: Any) -> Reply:
        """Sends an event or, if the path contains `identify`, an identify request. The path also selects the key."""
        body = {**({} if "identify" in path else _EVENT), "anonymousId": visitor, **members}
        if path in {"/customer-events", "/identify"}:
            reply = self.signed(path, body)
        else:
            reply = self.daemon.post(path, body, self.shop.public.id)
        assert reply.status == status, reply.body
        return reply

    def signed(self, path: str, body: Any, key: Key | None = None, **headers: str) -> Reply:
        key = key or self.shop.server
        raw = json.dumps(body).encode()
        return self.daemon.post(path, raw, key.id, **{"x_signature": sign(key.secret, raw), **headers})

    def order(self, path: str, order_id: str, visitor: str = "buyer", /, revenue: float = 40, **members: Any) -> str:
        data = {"order_id": order_id, "revenue": revenue}
        return self.send(path, visitor, key="Order Completed", data=data, **members).headers["x-request-id"]

    def refund(self, path: str, order_id: str, revenue: float, key: str = "Order Refunded") -> str:
        data = {"order_id": order_id, "revenue": revenue}
        return self.send(path, "thief", key=key, data=data).headers["x-request-id"]

    def linked(self, path: str, visitor: str, user: str) -> bool:
        """Sends an identify request, and returns whether its record has made the link."""
        record_id = self.send(path, visitor, userId=user).headers["x-request-id"]
        [record] = self.shop.stored(containing=record_id)
        assert record["signed"] == (path == "/identify")
        linked: bool = record["linked"]
        return linked

    def user_of(self, visitor: str) -> str | None:
        """The user of an event of this visitor."""
        record_id = self.send("/track", visitor).headers["x-request-id"]
        [record] = self.shop.stored(containing=record_id)
        user: str | None = record["userId"]
        return user

    def derived(self, order_id: str, count: int) -> list[dict[str, Any]]:
        """The attributions and reversals of an order. Waits until there are `count` of them."""
        found: list[dict[str, Any]] = []

        def all_there() -> bool:
            found[:] = [each for each in self.shop.archived(containing=order_id) if each.get("orderId") == order_id]
            return len(found) >= count

        wait_until(all_there)
        assert len(found) == count
        return found

    def counted(self, name: str, **label: str) -> float:
        [(key, value)] = label.items()
        return self.daemon.metric(f'ingestd_{name}_total{{{key}="{value}"}}')


@contextmanager
def open_site(pair: Pair, folder: Path, tables: Mapping[str, str], server_keys: Sequence[str] = ()) -> Iterator[Site]:
    """`server_keys` are the ids of additional server keys without grants."""
    without_grants = Key(str(uuid.uuid4()), "a-secret-of-few-words")
    keys = [without_grants, *(Key(each, uuid.uuid4().hex) for each in server_keys)]
    declared = [f'{{ id = "{each.id}", kind = "server", tenant = "shop", secret = "{each.secret}" }}' for each in keys]
    tables = {
        **tables,
        "http": f'server = "{pair.server}"\n{tables.get("http", "")}',
        "plugins.keys": f"declared = [{', '.join(declared)}]",
    }
    with ExitStack() as stack:
        if pair.store == "redis":
            shop: Shop = stack.enter_context(redis_shop(folder, tables, {"appendfsync": "no"}))
        else:
            shop = Shop(folder, tables)
        yield Site(shop, stack.enter_context(shop.serve()), without_grants)
