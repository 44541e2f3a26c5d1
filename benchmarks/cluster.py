"""One daemon on a Redis Cluster of three primaries, and one on a single Redis, one after the other.

The daemon has one core; wrk and all nodes share the other. So the figures show what partitions cost, not what three
machines carry. Events are as a shop sends them, from 200 tenants with Zipf sizes. The nodes keep an append-only file
with `appendfsync everysec`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.support.cluster_shop import key_of
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_server import RedisServer, redis_server
from tests.support.zipf import zipf_sizes

from .load import BATCH, Load, load, write_bodies
from .servers import CONFIG, ingestd, on_core
from .shop import usual

TENANTS = 200
SAFE = {"appendfsync": "everysec"}
SIDES = ("one Redis", "cluster of 3", "cluster of 3, a replica each")
PARTITIONS = 64


@contextlib.contextmanager
def nodes_of(side: str, folder: Path) -> Iterator[tuple[str, Sequence[RedisServer]]]:
    """The URL of a store, and its nodes."""
    if side == SIDES[0]:
        with redis_server(folder, SAFE) as server:
            yield server.url, [server]
    else:
        with redis_cluster(folder, replicas=side == SIDES[2], options=SAFE) as cluster:
            yield cluster.url, cluster.nodes


def cpu_of(nodes: Sequence[RedisServer]) -> float:
    """The CPU seconds of nodes."""
    total = 0.0
    for node in nodes:
        with node.client() as client:
            facts = client.info("cpu")
        total += facts["used_cpu_user"] + facts["used_cpu_sys"]
    return total


def measure(side: str, seconds: int, rounds: int) -> None:
    sizes = zipf_sizes(TENANTS, 1000)
    keys = [key_of(f"tenant-{number}") for number, size in enumerate(sizes) for _ in range(size)]
    random.Random(1).shuffle(keys)
    declared = ", ".join(f'{{ id = "{key}", kind = "public", tenant = "{key}" }}' for key in sorted({*keys}))
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        store, folder = (Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-"))) for _ in "ab")
        write_bodies(folder, [*usual()])
        with on_core(cores[-1]):
            url, nodes = stack.enter_context(nodes_of(side, store))
        config = CONFIG.replace("sqlite:ingestd.db", url) + f"[plugins.keys]\ndeclared = [{declared}]\n"
        if side != SIDES[0]:
            config += f"[plugins.redis]\npartitions = {PARTITIONS}\n"
        with on_core(cores[0]):
            server = stack.enter_context(ingestd(folder, config))
        print(side)
        with on_core(cores[-1]):
            time.sleep(3)  # until the daemon has all consumers
            before, busy = server.cpu_seconds(), cpu_of(nodes)
            time.sleep(10)
            print(f"  idle: {(server.cpu_seconds() - before) * 10:.1f} % of a core, the nodes together"
                  f" {(cpu_of(nodes) - busy) * 10:.1f} %; {server.memory() / 1e6:.0f} MB")  # fmt: skip
            for name, what in (("single", Load()), (f"batches of {BATCH}", Load(batch=BATCH))):
                load(server, folder, ",".join(keys), 1, what)
                busy = cpu_of(nodes)
                results = [load(server, folder, ",".join(keys), seconds, what) for _ in range(rounds)]
                rate, cpu, p99 = (median(each[what] for each in results) for what in ("req/s", "CPU µs", "p99 ms"))
                events = sum(each["req/s"] for each in results) * seconds * what.batch
                failed = sum(each["failed"] for each in results)
                print(f"  {name}: {rate * what.batch:.0f} events/s, CPU of the daemon {cpu:.0f} us an event, of the"
                      f" nodes {(cpu_of(nodes) - busy) / events * 1e6:.0f} us, p99 {p99:.0f} ms, {failed:.0f} failed;"
                      f" {server.memory() / 1e6:.0f} MB")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=4, help="length of a round (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each load (default 3)")
    arguments = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("benchmarks.cluster: skipped, because there is no redis-server")
        return 0
    for side in SIDES:
        measure(side, arguments.seconds, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
