"""A comparison of Redis and SQLite as journal and store: the same build and load, in alternate rounds.

Redis keeps an append-only file with `appendfsync everysec` and shares a core with wrk. Each daemon has the other core
while it is measured. Events are as a shop sends them (`benchmarks.shop.usual`). Then follows the memory that a visitor
with a session, a link and ten touchpoints takes in Redis.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import redis

from tests.support.redis_server import redis_server

from .load import load
from .servers import CONFIG, Server, create_key, ingestd, on_core
from .shop import usual

VISITORS = 500
TOUCHES = 10
OF_A_VISITOR = ("session", "link", "touches", "attribution-link", "attribution-visitors")


def post(server: Server, path: str, key: str, body: dict[str, Any]) -> None:
    url = f"http://127.0.0.1:{server.port}/api/v1/analytics{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        answer.read()


def memory(client: redis.Redis, server: Server, key: str) -> Counter[str]:
    """Bytes for a visitor by kind of entry, as Redis reports them for each key."""
    for number in range(VISITORS):
        visitor = f"measured-{number}"
        for touch in range(TOUCHES):
            campaign = {"source": "newsletter", "medium": "email", "name": f"autumn-sale-{touch % 3}"}
            event = {"key": "Page View", "data": {}, "anonymousId": visitor, "context": {"campaign": campaign}}
            post(server, "/track", key, event)
        post(server, "/identify/public", key, {"anonymousId": visitor, "userId": f"user-{number}"})
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="rounds for each, at least 3 (default 6)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a round (default 4)")
    arguments = parser.parse_args()
    rounds, seconds = max(3, arguments.rounds), max(1, arguments.seconds)
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-"))) for _ in range(4)]
        with on_core(cores[-1]):
            server = stack.enter_context(redis_server(folders[3], {"appendfsync": "everysec"}))
        on_redis = CONFIG.replace("sqlite:ingestd.db", server.url)
        configs = [on_redis, CONFIG, on_redis + '[plugins.redis]\nprefix = "memory:"\n']
        with on_core(cores[0]):
            daemons = [
                stack.enter_context(ingestd(folder, text)) for folder, text in zip(folders, configs, strict=False)
            ]
        for folder in folders:
            (folder / "bodies").write_text("\n".join(json.dumps(body) for body in usual()))
        keys = [create_key(folder) for folder in folders[:3]]
        time.sleep(2)  # the longest time until a daemon knows a new key
        results: list[list[dict[str, float]]] = [[], []]
        client = server.client()
        events, sent, inside, busy = 0.0, 0.0, 0.0, 0.0
        with on_core(cores[-1]):
            for index in (0, 1):
                load(daemons[index], folders[index], keys[index], 1)
            for _ in range(rounds):
                for index in (0, 1):
                    before, calls = client.info(), scripts(client)
                    results[index].append(load(daemons[index], folders[index], keys[index], seconds))
                    if index == 0:
                        after = client.info()
                        events += results[0][-1]["req/s"] * seconds
                        busy += sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
                        inside += after["total_commands_processed"] - before["total_commands_processed"]
                        sent += scripts(client) - calls
        ratios = sorted(one["req/s"] / other["req/s"] for one, other in zip(*results, strict=True))
        print(f"/track on Redis and in SQLite, {rounds} rounds of {seconds} s each, events as a shop sends them")
        for name, side in zip(("Redis", "SQLite"), results, strict=True):
            print(f"  {name:8}" + "".join(f"{what} {median(each[what] for each in side):8.1f}   " for what in side[0]))
        print(f"  ratio {median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        print(f"  Redis: {sent / events:.2f} commands an event ({inside / events:.1f} with those inside the script),"
              f" {busy / events * 1e6:.0f} us of its CPU")  # fmt: skip
        sizes = memory(client, daemons[2], keys[2])
        print(f"  a visitor with session, link and {TOUCHES} touchpoints: {sizes.total()} bytes"
              f" ({', '.join(f'{kind} {size}' for kind, size in sizes.items())})")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
