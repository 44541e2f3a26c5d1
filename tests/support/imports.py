"""Imports of a test: files of records and messages, shops that take them, and the command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from .clients import wait_until
from .daemon import Daemon, Shop
from .forked import INGESTD, run
from .redis_shop import redis_shop

__all__ = [
    "TENANT", "at", "import_", "lines_of", "message", "records_of_each_type", "run_import",
    "running", "shop_on", "written",
]  # fmt: skip

TENANT = ("--tenant", "shop")


def import_(shop: Shop, *arguments: object, code: int = 0, stdin: bytes = b"") -> Any:
    """The printed object of the command."""
    done = run_import(shop, *arguments, "--json", stdin=stdin)
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout) if done.stdout else None


def run_import(shop: Shop, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [INGESTD, "events", "import", *map(str, arguments), "--config", str(shop.config)]
    return run(command, input=stdin)


def lines_of(records: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def written(folder: Path, records: Sequence[Any], name: str = "lines.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(lines_of(records))
    return folder / name


def at(days: float, **later: float) -> str:
    """A time so many days ago, or `later`."""
    time = datetime.now(UTC).replace(microsecond=0) - timedelta(days=days) + timedelta(**later)
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def message(number: int, **members: Any) -> dict[str, Any]:
    """A message as Segment stores it."""
    return {
        "type": "track",
        "event": "Product Viewed",
        "messageId": f"message-{number}",
        "anonymousId": f"visitor-{number}",
        "timestamp": at(400),
        "receivedAt": at(400),
        "properties": {"product_id": f"p-{number}"},
        **members,
    }


@contextmanager
def shop_on(store: str, folder: Path, tables: dict[str, str] | None = None) -> Iterator[Shop]:
    folder.mkdir(exist_ok=True)
    if store == "redis":
        with redis_shop(folder, tables) as shop:
            yield shop
    elif store == "journal apart":
        yield Shop(folder, {"journal": 'url = "sqlite:journal.db"', **(tables or {})})
    else:
        yield Shop(folder, tables or {})


@contextmanager
def running(shop: Shop, *, beside: bool) -> Iterator[Daemon | None]:
    with ExitStack() as stack:
        yield stack.enter_context(shop.serve()) if beside else None


def records_of_each_type(folder: Path) -> list[dict[str, Any]]:
    """The records of a daemon of each type: an order with its attribution and refund, a forgotten person …"""
    shop = Shop(folder)
    with shop.serve() as daemon:

        def send(path: str, body: Any) -> None:
            assert daemon.post(path, body, shop.public.id).status == 200

        campaign = {"campaign": {"source": "news", "name": "Ä"}, "page": {"url": "https://shop.example/"}}
        send("/track", {"key": "Page View", "data": {"n": 1e300}, "anonymousId": "v-1", "context": campaign})
        send("/identify/public", {"anonymousId": "v-1", "userId": "ada", "traits": {"plan": [1, None]}})
        send("/track", {"key": "Order Completed", "anonymousId": "v-1", "data": {"order_id": "o-1", "total": 40}})
        send("/track", {"key": "Order Refunded", "anonymousId": "v-1", "data": {"order_id": "o-1", "total": 10}})
        send("/track", {"key": "Page View", "data": {}, "anonymousId": "v-2", "messageId": "m-2", "timestamp": [7]})
        body = {"key": "Cart Viewed", "anonymousId": "v-3", "data": {}, "dispatchId": "d", "extra": {"a": 1}, "b": {}}
        assert daemon.post_signed(body, shop.server).status == 200
        send("/track", {"key": "Page View", "data": {"name": "secret"}, "anonymousId": "bob"})
        wait_until(lambda: shop.is_done("attribution"))
    shop.command("forget", "--anonymous", "bob")
    records = shop.exported()
    types = {"event", "identify", "attribution", "attribution_reversal", "erasure"}
    assert {record["type"] for record in records} == types
    return records
