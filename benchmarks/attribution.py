"""The cost of attribution: events beside it, one order with a long journey, and a backlog of orders.

`/track` is measured with the plugin and without it, in alternate rounds on the same core. One pair of servers gets
events as a shop sends them: one in ten has a campaign, like a visit's first page, and one in fifty is an order. Another
pair gets events that all have a campaign, and one in three is a repeated order. Then follow two measurements in this
process, on SQLite with synchronous=FULL: an order with 200 touchpoints of 20 visitors, and a backlog of 10,000 orders,
each of a different visitor with three touchpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record
from ingestd.api.times import format_time
from ingestd.consumers.group import Consumers
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.plugins.stores.sqlite.backend import SqliteBackend

from .beside import beside
from .servers import CONFIG
from .shop import bodies, usual

WITHOUT = (
    CONFIG + '[plugins]\nenabled = ["keys", "hmac_auth", "identity", "session", "rate_limit", "sqlite", "jsonl"]\n'
)
NOW = 1_795_000_000_000
ORDERS = 10_000
VISITORS, TOUCHES = 20, 10


def record(number: int, **members: Any) -> Record:
    at = format_time(NOW + number)
    body = {"id": f"{number:036d}", "type": "event", "tenant": "bench", "endpoint": "track", "key": "Page View",
            "receivedAt": at, "timestamp": at, "data": {},
            "userId": None, "sessionId": "s", "dispatchId": None, "context": {}, **members}  # fmt: skip
    return Record(str(body["type"]), NOW + number, msgspec.json.encode(body))


def touch(number: int, visitor: str) -> Record:
    campaign = {
        "source": f"source-{number % 9}",
        "medium": "email",
        "name": f"autumn sale {number}",
        "content": "header",
    }
    return record(number, anonymousId=visitor, context={"campaign": campaign})


def order(number: int, visitor: str, user: str | None = None) -> Record:
    data = {"order_id": f"o-{number}", "total": 247.5, "revenue": 210.0, "currency": "EUR"}
    return record(number, key="Order Completed", anonymousId=visitor, userId=user, data=data, signed=True)


def consumer() -> Consumer:
    found: list[Consumer] = []
    AttributionPlugin(AttributionPlugin.Options()).register_consumers(found.append)
    return found[0]


@contextlib.asynccontextmanager
async def filled(records: Iterable[Record]) -> Any:
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as folder:
        backend = SqliteBackend(Path(folder) / "ingestd.db", cache=200_000, busy_timeout=1.0)
        await backend.open(serving=True)
        try:
            records = [*records]
            for start in range(0, len(records), 1000):
                await backend.journal.commit(records[start : start + 1000], backend.store.begin(NOW))
            yield backend
        finally:
            await backend.close()


def died(name: str, error: BaseException | None) -> None:
    sys.exit(f"{name} died: {error!r}")


async def drain(backend: SqliteBackend) -> float:
    """Seconds until the consumer has processed the whole journal."""
    consumers = Consumers(backend.journal, backend.store, [consumer()], died=died, now=lambda: NOW)
    begun = time.perf_counter()
    await consumers.start()
    left = await consumers.stop(600)
    assert not left
    return time.perf_counter() - begun


def journey() -> Iterator[Record]:
    for visitor in range(VISITORS):
        yield record(visitor, type="identify", anonymousId=f"v-{visitor}", userId="u")
    for number in range(VISITORS * TOUCHES):
        yield touch(100 + number, f"v-{number % VISITORS}")


async def long_journey(orders: int = 300) -> None:
    async with filled(journey()) as backend:
        await drain(backend)
        follower = consumer()
        position = await backend.journal.last()
        cpu = time.process_time()
        for number in range(orders):
            step = Step(backend.store.begin(NOW))
            at = replace(order(1000 + number, "v-0", "u"), position=position + number + 1)
            await follower.process([at], step)
            assert len(json.loads(step.records[0].body)["touchpoints"]) == VISITORS * TOUCHES
            await backend.journal.commit(step.records, step.state)
        cpu = (time.process_time() - cpu) / orders
    print(f"  an order with {VISITORS * TOUCHES} touchpoints of {VISITORS} visitors: {cpu * 1000:.2f} ms of CPU")


def waiting() -> Iterator[Record]:
    for number in range(ORDERS):
        for n in range(3):
            yield touch(10 * number + n, f"v-{number}")
        yield order(10 * number + 5, f"v-{number}")


async def backlog() -> None:
    async with filled(waiting()) as backend:
        seconds = await drain(backend)
    print(
        f"  a backlog of {ORDERS} orders and {3 * ORDERS} touchpoints: {seconds:.1f} s, {ORDERS / seconds:.0f} orders/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="rounds with and without, at least 3 (default 6)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a round (default 4)")
    arguments = parser.parse_args()
    rounds, seconds = max(3, arguments.rounds), max(1, arguments.seconds)
    print(f"attribution: /track with it and without, {rounds} rounds of {seconds} s each, events as a shop sends them")
    beside((CONFIG, WITHOUT), usual(), rounds, seconds)
    print("attribution: the same, every event with a campaign, one in three a repeated order")
    beside((CONFIG, WITHOUT), bodies(), rounds, seconds)
    print("attribution: behind the answer")
    asyncio.run(long_journey())
    asyncio.run(backlog())
    return 0


if __name__ == "__main__":
    sys.exit(main())
