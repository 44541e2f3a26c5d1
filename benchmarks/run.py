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
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from statistics import mean, median
from typing import Any

import ingestd as package

from .beside import Program, Side, Slices, configurations, ratios, started
from .load import BATCH, CONNECTIONS, Load, load
from .servers import HERE
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

Results = dict[tuple[str, str], Slices]
"""The slices by case and server. Slices with the same index in the lists of a case belong to the same turn."""


@contextlib.contextmanager
def sides() -> Iterator[list[Side]]:
    """New servers to compare."""
    with configurations(1, redis=True) as [on_redis]:
        programs = [
            Program(UNIT, "handler"),
            Program("bare, fast server", "fast"),
            Program("ingestd, SQLite"),
            Program("ingestd, Redis", config=on_redis),
        ]
        with started(programs) as found:
            for side in found[2:]:
                check_batch(side)
            yield found


def check_batch(side: Side) -> None:
    """Assert that every event of a batch is stored: wrk counts the batch as a success in any case."""
    what = Load(batch=BATCH)
    with (side.folder / what.bodies).open() as batches:
        answer = side.server.post(what.path, next(batches).encode(), side.key)
    statuses = [each["status"] for each in json.loads(answer)["results"]]
    assert statuses == [200] * BATCH, statuses


def plan(found: Sequence[Side]) -> list[list[tuple[str, Load, Side]]]:
    """The measurements of each round, in order. Servers to compare take turns within one list."""
    singles = [[(case, what, side) for side in found] for case, what in CASES.items()]
    batches = [[(BESIDE, Load(), side), (BATCHES, Load(batch=BATCH), side)] for side in found[2:]]
    return [*singles, *batches]


def measure(rounds: int, seconds: int) -> Results:
    results: Results = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        with sides() as found:
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


def measure_at_half(results: Results, rounds: int, seconds: int) -> Results:
    """As `measure`, with about half of the highest rate of each server according to `results`.

    Each server has one turn as long as all the other turns together: the slowest requests are rare, and come together.
    """
    at_half: Results = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds} at half of the load")
        with sides() as found:
            for side in found:
                most = medians(results[next(iter(CASES)), side.server.name])["req/s"]
                half = Load(pause=max(1, round(CONNECTIONS / (most / 2) * 1000)))
                load(*side, 1, half)
                at_half.setdefault((HALF, side.server.name), []).append(load(*side, seconds * TURNS, half))
    return at_half


def say(how_far: str) -> None:
    print(f"\r{how_far:<40}", end="", file=sys.stderr, flush=True)


def medians(slices: Slices) -> dict[str, float]:
    return {what: median(each[what] for each in slices) for what in slices[0]}


def to_each_other(slices: Slices, others: Slices) -> float:
    """The ratio of requests a second, slice by slice: the machine's speed changes between slices."""
    return median(ratios(slices, others))


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
    print(f"events of {mean(len(json.dumps(body)) for body in usual()):.0f} bytes, {BATCH} of them in a batch;"
          f" {rounds} rounds of {TURNS} slices of {seconds} s")  # fmt: skip
    results = measure(rounds, seconds)
    results |= measure_at_half(results, rounds, seconds)
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
