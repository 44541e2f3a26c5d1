"""A comparison of Redis and SQLite as journal and store: the same build and load, in alternate rounds.

Redis keeps an append-only file with `appendfsync everysec` and shares a core with wrk. Each daemon has the other core
while it is measured. Events are as a shop sends them (`benchmarks.shop.usual`). Then follows the memory that a visitor
with a session, a link and ten touchpoints takes in Redis.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from statistics import median

import redis

from .beside import Program, Slices, ratios, rounds_and_seconds, started
from .load import load
from .servers import BASE_PATH, CONFIG, Server, redis_url

VISITORS = 500
TOUCHES = 10
OF_A_VISITOR = ("session", "link", "touches", "attribution-link", "attribution-visitors")


def memory(client: redis.Redis, server: Server, key: str) -> Counter[str]:
    """Bytes for a visitor by kind of entry, as Redis reports them for each key."""
    for number in range(VISITORS):
        visitor = f"measured-{number}"
        for touch in range(TOUCHES):
            campaign = {"source": "newsletter", "medium": "email", "name": f"autumn-sale-{touch % 3}"}
            event = {"key": "Page View", "data": {}, "anonymousId": visitor, "context": {"campaign": campaign}}
            server.post(f"{BASE_PATH}/track", json.dumps(event).encode(), key)
        link = {"anonymousId": visitor, "userId": f"user-{number}"}
        server.post(f"{BASE_PATH}/identify/public", json.dumps(link).encode(), key)
    time.sleep(0.5)  # the delay of the metrics for pending records
    server.settle()
    found: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name in client.scan_iter(match="memory:*", count=1000):
        kind = name.decode().split(":")[1]
        if kind in OF_A_VISITOR:
            counts[kind] += 1
            found[kind] += client.memory_usage(name, samples=0) or 0
    assert set(counts.values()) == {VISITORS}, counts
    return Counter({kind: round(size / VISITORS) for kind, size in found.items()})


def scripts(client: redis.Redis) -> int:
    """Number of batches that daemons have sent."""
    found: int = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return found


def main() -> int:
    rounds, seconds = rounds_and_seconds(__doc__)
    with redis_url() as url, redis.Redis.from_url(url) as client:
        on_redis = CONFIG.replace("sqlite:ingestd.db", url)
        programs = [
            Program("Redis", config=on_redis),
            Program("SQLite"),
            Program("of the memory", config=on_redis + '[plugins.redis]\nprefix = "memory:"\n'),
        ]
        results: tuple[Slices, Slices] = [], []
        events, sent, inside, busy = 0.0, 0.0, 0.0, 0.0
        with started(programs) as [*sides, apart]:
            for side in sides:
                load(*side, 1)
            for _ in range(rounds):
                for side, slices in zip(sides, results, strict=True):
                    before, calls = client.info(), scripts(client)
                    slices.append(load(*side, seconds))
                    if side is sides[0]:
                        after = client.info()
                        events += slices[-1]["req/s"] * seconds
                        busy += sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
                        inside += after["total_commands_processed"] - before["total_commands_processed"]
                        sent += scripts(client) - calls
            sizes = memory(client, apart.server, apart.key)
        pairs = sorted(ratios(*results))
        print(f"/track on Redis and in SQLite, {rounds} rounds of {seconds} s each, events as a shop sends them")
        for side, slices in zip(sides, results, strict=True):
            figures = (f"{what} {median(each[what] for each in slices):8.1f}   " for what in slices[0])
            print(f"  {side.server.name:8}{''.join(figures)}")
        print(f"  ratio {median(pairs):.3f} ({pairs[0]:.2f} to {pairs[-1]:.2f})")
        print(f"  Redis: {sent / events:.2f} commands an event ({inside / events:.1f} with those inside the script),"
              f" {busy / events * 1e6:.0f} us of its CPU")  # fmt: skip
        print(f"  a visitor with session, link and {TOUCHES} touchpoints: {sizes.total()} bytes"
              f" ({', '.join(f'{kind} {size}' for kind, size in sizes.items())})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
