"""The cost of attribution: events beside it, one order with a long journey, and a backlog of orders.

`/track` is measured with the plugin and without it, in alternate rounds on the same core. One pair of servers gets
events as a shop sends them: one in ten has a campaign, like a visit's first page, and one in fifty is an order. Another
pair gets events that all have a campaign, and one in three is a repeated order. Then follow two measurements in this
process, on SQLite with synchronous=FULL: an order with 200 touchpoints of 20 visitors, and a backlog of 10,000 orders,
each of a different visitor with three touchpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.plugins.stores.sqlite.backend import SqliteBackend

from .beside import beside, rounds_and_seconds
from .journal import NOW, fill, opened, record, work_off
from .servers import CONFIG
from .shop import bodies, usual

WITHOUT = (
    CONFIG + '[plugins]\nenabled = ["keys", "hmac_auth", "identity", "session", "rate_limit", "sqlite", "jsonl"]\n'
)
ORDERS = 10_000
VISITORS, TOUCHES = 20, 10


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
async def filled(records: Iterable[Record]) -> AsyncIterator[SqliteBackend]:
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as folder:
        async with opened(Path(folder)) as backend:
            await fill(backend, [*records])
            yield backend


def journey() -> Iterator[Record]:
    for visitor in range(VISITORS):
        yield record(visitor, type="identify", anonymousId=f"v-{visitor}", userId="u")
    for number in range(VISITORS * TOUCHES):
        yield touch(100 + number, f"v-{number % VISITORS}")


async def long_journey(orders: int = 300) -> None:
    async with filled(journey()) as backend:
        await work_off(backend, consumer())
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
        seconds = await work_off(backend, consumer())
    print(
        f"  a backlog of {ORDERS} orders and {3 * ORDERS} touchpoints: {seconds:.1f} s, {ORDERS / seconds:.0f} orders/s"
    )


def main() -> int:
    rounds, seconds = rounds_and_seconds(__doc__)
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
