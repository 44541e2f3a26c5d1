"""The cost of sources: attribution that reads referrers, beside attribution with `referrers = "off"`.

The answer of `/track` waits for none of this: attribution alone reads sources, behind it. So both consumers work off
the same records in this process, on SQLite files of their own, in turns of 500 records. Each is the first in every
other turn. Compare what an event costs more with the CPU time of a whole event in docs/performance.md; the most that is
asked for is 3 %.

`present`: a thousand visitors who stay, as in `benchmarks.run`, whose events all repeat a referrer. `pages`: visits of
ten events; of ten visits six come by a referrer, two by an ad, one from a newsletter, and one without any of these.
`document`: the same in a shop that is one document, so all events of a visit repeat its address and referrer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from ingestd.api.consumer import Consumer, Step
from ingestd.api.events import Record
from ingestd.api.journal import Cursor
from ingestd.api.times import format_time
from ingestd.plugins.attribution.consumer import AttributionConsumer
from ingestd.plugins.attribution.plugin import AttributionPlugin
from ingestd.plugins.stores.sqlite.backend import SqliteBackend

from .journal import NOW
from .shop import VISITORS, usual

BOTH: tuple[Literal["fallback"], Literal["off"]] = ("fallback", "off")
KINDS = ("present", "pages", "document")
SIZE = 500
"""Records of a turn, and of a step of the consumer."""
VISIT, AT_ONCE = 10, 2_000
SHOP = "https://shop.example/c/shirts?page=7"
WAYS = [("&utm_source=newsletter&utm_medium=email", ""), ("", ""), *[("&gclid=Cj0a", "https://www.google.com/")] * 2,
        *[("", "https://www.google.com/")] * 6]  # fmt: skip


def records(kind: str) -> Iterator[Record]:
    bodies = [*usual()]
    for number in range(10**9):
        body = bodies[number % len(bodies)]
        if kind == "present":
            visit, context = number % len(bodies) * VISITORS // len(bodies), body["context"]
        else:
            turn, slot = divmod(number, AT_ONCE)  # so that visits do not all begin together
            first = not (turn + slot) % VISIT
            visit = (turn + slot) // VISIT * AT_ONCE + slot
            query, referrer = WAYS[visit % len(WAYS)] if first or kind == "document" else ("", SHOP)
            context = {**body["context"], "page": {"url": SHOP + query, "referrer": referrer}, "campaign": None}
        at = NOW + number // 10
        members = {
            "id": f"{number:036d}", "type": "event", "tenant": "bench", "endpoint": "track", "key": body["key"],
            "receivedAt": format_time(at), "timestamp": format_time(at), "data": body["data"], "signed": False,
            "anonymousId": f"visitor-{visit:08d}", "userId": None, "sessionId": f"{visit:036d}", "dispatchId": None,
            "context": context,
        }  # fmt: skip
        yield Record("event", at, msgspec.json.encode(members))


class Side:
    """An attribution with a file of its own."""

    def __init__(self, folder: str, referrers: Literal["fallback", "off"]) -> None:
        self.backend = SqliteBackend(Path(folder) / "ingestd.db", cache=200_000, busy_timeout=1.0)
        found: list[Consumer] = []
        AttributionPlugin(AttributionPlugin.Options(referrers=referrers)).register_consumers(found.append)
        (consumer,) = found
        assert isinstance(consumer, AttributionConsumer)
        consumer.linger = consumer.pause = 0.0  # no events wait for a turn
        self.consumer = consumer
        self.cursor: Cursor | None = None

    async def work_off(self, some: list[Record]) -> float:
        """CPU seconds for the records, with their journal's page and the commit of the step."""
        journal, store = self.backend.journal, self.backend.store
        if self.cursor is None:
            self.cursor = await journal.acquire_cursor(self.consumer.name, self.consumer.start)
        await journal.commit(some, store.begin(some[-1].at))
        begun = time.process_time()
        while found := await journal.read(self.cursor.position, SIZE):
            step = Step(store.begin(found[-1].at, step=True))
            await self.consumer.process(found, step)
            done = len(found) if step.done is None else step.done
            self.cursor = self.cursor._replace(position=found[done - 1].position)
            await journal.commit(step.records, step.state, self.cursor)
        return time.process_time() - begun


async def measure(kind: str, turns: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sides = [Side(stack.enter_context(TemporaryDirectory(prefix="ingestd-bench-")), each) for each in BOTH]
        for side in sides:
            await side.backend.open(serving=True)
            stack.push_async_callback(side.backend.close)
        pairs: list[tuple[float, float]] = []
        coming = records(kind)
        for number in range(turns + turns // 4):
            some = [next(coming) for _ in range(SIZE)]
            took = [0.0, 0.0]
            for index in (0, 1) if number % 2 else (1, 0):
                took[index] = await sides[index].work_off(some) * 1e6 / SIZE
            pairs.append((took[0], took[1]))
    pairs = pairs[turns // 4 :]  # the others are a warm-up
    more = [on - off for on, off in pairs]
    low, _, high = quantiles(more)
    without = median(off for _, off in pairs)
    print(f"{kind}: {median(more):+.1f} µs of CPU an event with sources, in {len(pairs)} pairs"
          f" ({low:+.1f} to {high:+.1f} for half of them); attribution without takes {without:.1f} µs")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="kinds of visits (default: all)")
    parser.add_argument("--turns", type=int, default=160, help=f"pairs of turns of {SIZE} records (default 160)")
    arguments = parser.parse_args()
    kinds: Any = arguments.kinds or KINDS
    for kind in kinds:
        asyncio.run(measure(kind, max(8, arguments.turns)))


if __name__ == "__main__":
    main()
