"""A comparison of ingestd with a bare Tornado handler under the same load, in alternate slices.

- Each server has one core. wrk, and Redis if there is one, have another core.
- Every round has new servers, since of two processes of the same program one is always faster than the other. Within a
  round they take turns of two seconds, since a machine can change its speed. A ratio is the median of the ratios of
  slices in the same turn.
- Events are as a shop sends them: page views, product views and carts of five products in turn, one in ten with a
  campaign, one in fifty an order.
- ingestd runs as installed. Every event is on the disk before its answer (SQLite with synchronous=FULL, or Redis with
  appendfsync everysec), and every check is on. Attribution and a `jsonl` sink run behind it, and their work counts as
  ingestd's CPU time.
- Compare the ratios: absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import ingestd as package
from tests.support.redis_server import redis_server

from .load import BATCH, CONNECTIONS, Load, batches_of, load, write_bodies
from .servers import CONFIG, HERE, Server, bare, create_key, ingestd, on_core
from .shop import usual

UNIT = "bare handler"
CASES = {
    f"{CONNECTIONS} connections": Load(),
    f"{CONNECTIONS}, a browser's headers": Load(browser=True),
    "256 connections": Load(connections=256),
    "256, a browser's headers": Load(connections=256, browser=True),
}
BATCHES = f"{CONNECTIONS}, batches of {BATCH}"
BESIDE = f"{CONNECTIONS} connections, beside batches"
TURNS = 2
"""Slices of each server in each case of a round."""
LONGER = 2
"""Factor for the length of slices of batches: at their end 64 batches are in progress and do not count."""
HALF = f"{CONNECTIONS}, half of the load"
NEWEST = HERE / "results" / "newest.json"

Slice = dict[str, float]
Results = dict[tuple[str, str], list[Slice]]
"""The slices by case and server. Slices with the same index in the lists of a case belong to the same turn."""


class Side(NamedTuple):
    """A server, its folder, and the key of its callers."""

    server: Server
    folder: Path
    key: str


@contextlib.contextmanager
def sides(lines: Sequence[str]) -> Iterator[list[Side]]:
    """New servers to compare. The load must run on the core that is left over. `lines` are bodies."""
    batches = batches_of(lines)
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-"))) for _ in range(5)]
        for folder in folders:
            write_bodies(folder, lines, batches)
        with on_core(cores[-1]):
            redis = stack.enter_context(redis_server(folders[4], {"appendfsync": "everysec"}))
        with on_core(cores[0]):
            servers = [
                stack.enter_context(bare("handler")),
                stack.enter_context(bare("fast")),
                stack.enter_context(ingestd(folders[2])),
                stack.enter_context(ingestd(folders[3], CONFIG.replace("sqlite:ingestd.db", redis.url))),
            ]
        names = [UNIT, "bare, fast server", "ingestd, SQLite", "ingestd, Redis"]
        keys = ["none", "none", create_key(folders[2]), create_key(folders[3])]
        time.sleep(2)  # the longest time until a daemon knows a new key
        found = [
            Side(replace(server, name=name), folder, key)
            for server, name, folder, key in zip(servers, names, folders[:4], keys, strict=True)
        ]
        for side in found[2:]:
            check_batch(side, batches[0])
        with on_core(cores[-1]):
            yield found


def check_batch(side: Side, batch: str) -> None:
    """Assert that every event of a batch is stored: wrk counts the batch as a success in any case."""
    url = f"http://127.0.0.1:{side.server.port}{Load(batch=BATCH).path}"
    request = urllib.request.Request(url, batch.encode(), {"authorization": f"Bearer {side.key}"})
    with urllib.request.urlopen(request) as answer:
        statuses = [each["status"] for each in json.load(answer)["results"]]
    assert statuses == [200] * BATCH, statuses


def plan(found: Sequence[Side]) -> list[list[tuple[str, Load, Side]]]:
    """The measurements of each round, in order. Servers to compare take turns within one list."""
    singles = [[(case, what, side) for side in found] for case, what in CASES.items()]
    batches = [[(BESIDE, Load(), side), (BATCHES, Load(batch=BATCH), side)] for side in found[2:]]
    return [*singles, *batches]


def measure(lines: Sequence[str], rounds: int, seconds: int) -> Results:
    results: Results = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        with sides(lines) as found:
            for together in plan(found):
                for _, what, side in together:
                    load(*side, 1, what)  # a warm-up: the system may have dropped the server's memory from its caches
                for turn in range(TURNS):
                    for case, what, side in reversed(together) if turn % 2 else together:
                        one = load(*side, seconds * (LONGER if what.batch > 1 else 1), what)
                        results.setdefault((case, side.server.name), []).append(one)
    return in_order(results)


def in_order(results: Results) -> Results:
    """The results in the order of the output."""
    cases = [*CASES, BESIDE, BATCHES]
    return {key: results[key] for case in cases for key in results if key[0] == case}


def measure_at_half(lines: Sequence[str], results: Results, rounds: int, seconds: int) -> Results:
    """As `measure`, with about half of the highest rate of each server according to `results`.

    Each server has one turn as long as all the other turns together: the slowest requests are rare, and come together.
    """
    at_half: Results = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds} at half of the load")
        with sides(lines) as found:
            for side in found:
                most = medians(results[next(iter(CASES)), side.server.name])["req/s"]
                half = Load(pause=max(1, round(CONNECTIONS / (most / 2) * 1000)))
                load(*side, 1, half)
                at_half.setdefault((HALF, side.server.name), []).append(load(*side, seconds * TURNS, half))
    return at_half


def say(how_far: str) -> None:
    print(f"\r{how_far:<40}", end="", file=sys.stderr, flush=True)


def medians(slices: Sequence[Slice]) -> Slice:
    return {what: median(each[what] for each in slices) for what in slices[0]}


def to_each_other(slices: Sequence[Slice], others: Sequence[Slice]) -> float:
    """The ratio of requests a second, slice by slice: the machine's speed changes between slices."""
    return median(one["req/s"] / other["req/s"] for one, other in zip(slices, others, strict=True))


def show(results: Results) -> None:
    print(f"{'':34}{'req/s':>9}{'to bare':>9}{'events/s':>10}{'CPU µs':>8}{'p50 ms':>8}{'p99 ms':>8}")
    shown = ""
    for (case, name), slices in results.items():
        if case != shown:
            print(f"{case}:")
            shown = case
        row = medians(slices)
        unit = None if case == HALF else results.get((case, UNIT))
        ratio = f"{to_each_other(slices, unit):9.2f}" if unit else " " * 9
        events = row["req/s"] * (BATCH if case == BATCHES else 1)
        print(f"  {name:32}{row['req/s']:9.0f}{ratio}{events:10.0f}{row['CPU µs']:8.1f}"
              f"{row['p50 ms']:8.1f}{row['p99 ms']:8.1f}")  # fmt: skip
    for (case, name), slices in results.items():
        if case == BATCHES:
            factor = BATCH * to_each_other(slices, results[BESIDE, name])
            print(f"{name}: {factor:.2f} times as many events in batches as in single requests")


def save(results: Results, seconds: int) -> None:
    """Replace the newest run with this one; benchmarks/RUNS.md has a row for every run."""
    whole: dict[str, Any] = {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "ingestd": package.__version__,
        "python": platform.python_version(),
        "seconds": seconds,
        "results": [
            {"case": case, "server": name, "median": medians(slices), "slices": slices}
            for (case, name), slices in results.items()
        ],
    }
    NEWEST.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of fresh servers, at least 3 (default 5)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a slice (default 2)")
    parser.add_argument("--json", action="store_true", help="replace benchmarks/results/newest.json too")
    arguments = parser.parse_args()
    rounds, seconds = max(3, arguments.rounds), max(1, arguments.seconds)
    lines = [json.dumps(body) for body in usual()]
    print(f"events of {mean(map(len, lines)):.0f} bytes, {BATCH} of them in a batch;"
          f" {rounds} rounds of {TURNS} slices of {seconds} s")  # fmt: skip
    results = measure(lines, rounds, seconds)
    results |= measure_at_half(lines, results, rounds, seconds)
    say("")
    print("\r", end="", file=sys.stderr)
    show(results)
    if arguments.json:
        save(results, seconds)
        print(f"saved as {NEWEST}: copy its figures to docs/performance.md and benchmarks/RUNS.md")
    failed = sum(int(each["failed"]) for slices in results.values() for each in slices)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
