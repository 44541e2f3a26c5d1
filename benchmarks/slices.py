"""A comparison of daemons from several checkouts, to measure the effect of a change.

A machine can change its speed within seconds, and of two processes of the same program one is faster. So all servers
run at the same time on one core, and are under load in turns of a second. A slice is compared with the nearest slice of
the first server, and every round has new processes. Name a checkout twice to see the effect of chance.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.support.redis_server import redis_server

from .load import BATCH, Load, batches_of, load, write_bodies
from .servers import CONFIG, Server, bare, create_key, ingestd, on_core
from .shop import usual

BARE = "bare"
LOADS = {"single": Load(), "browser": Load(browser=True), "batches": Load(batch=BATCH)}


class Program(NamedTuple):
    """A daemon to measure, with its name in the results. Without a command it is the bare handler."""

    name: str
    command: Path | None
    config: str = CONFIG


Side = tuple[Server, Path, str]
"""A server, its folder, and the key of its callers."""
Slices = list[dict[str, float]]


def command_of(checkout: str) -> Path:
    return Path(checkout, ".venv", "bin", "ingestd").absolute()


@contextlib.contextmanager
def configurations(count: int, *, redis: bool) -> Iterator[list[str]]:
    """A configuration for each of so many daemons, each with a separate store: on Redis, databases of one server."""
    if not redis:
        yield [CONFIG] * count
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-")))
        with on_core(max(os.sched_getaffinity(0))):  # beside the load generator, not beside the daemons
            server = stack.enter_context(redis_server(folder, {"appendfsync": "everysec"}))
        base = server.url.rpartition("/")[0]
        yield [CONFIG.replace("sqlite:ingestd.db", f"{base}/{number}") for number in range(count)]


@contextlib.contextmanager
def started(programs: Sequence[Program]) -> Iterator[list[Side]]:
    """A server for each program."""
    lines = [json.dumps(body) for body in usual()]
    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        for program in programs:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-")))
            write_bodies(folder, lines, batches_of(lines))
            if program.command is None:
                sides.append((stack.enter_context(bare("handler")), folder, "none"))
            else:
                command = str(program.command)
                server = stack.enter_context(ingestd(folder, program.config, command))
                sides.append((server, folder, create_key(folder, command)))
        time.sleep(2)  # the longest time until a daemon knows a new key
        yield sides


def measure(programs: Sequence[Program], what: Load, slices: int, seconds: int) -> list[Slices]:
    """One round: the slices of each server."""
    cores = sorted(os.sched_getaffinity(0))
    found: list[Slices] = [[] for _ in programs]
    with contextlib.ExitStack() as stack:
        with on_core(cores[0]):
            sides = stack.enter_context(started(programs))
        with on_core(cores[-1]):
            for side in sides:
                load(*side, 2, what)  # a warm-up
            for number in range(slices):
                order = range(len(programs))
                for index in order if number % 2 else reversed(order):
                    found[index].append(load(*sides[index], seconds, what))
    return found


def ratios(one: Slices, other: Slices) -> list[float]:
    """Ratios of requests a second, one for each pair of slices."""
    return [mine["req/s"] / theirs["req/s"] for mine, theirs in zip(one, other, strict=True)]


def show(programs: Sequence[Program], rounds: Sequence[Sequence[Slices]], what: Load) -> None:
    for index, program in enumerate(programs):
        all_slices = [each for found in rounds for each in found[index]]
        row = {key: median(each[key] for each in all_slices) for key in all_slices[0]}
        print(f"{program.name}: {row['req/s'] * what.batch:.0f} events/s, {row['CPU µs']:.1f} µs of CPU an event,"
              f" p50 {row['p50 ms']:.1f} ms, p99 {row['p99 ms']:.1f}")  # fmt: skip
        if index:
            pairs = [ratios(found[index], found[0]) for found in rounds]
            of_all = median(each for pair in pairs for each in pair)
            of_each = ", ".join(f"{median(pair):.2f}" for pair in pairs)
            print(f"  {of_all:.3f} times as many as the first, in {len(all_slices)} pairs; by rounds: {of_each}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", help=f'folders with a .venv that has ingestd, or "{BARE}"')
    parser.add_argument("--load", choices=LOADS, default="single", help="kind of requests (default single)")
    parser.add_argument("--redis", action="store_true", help="a Redis for each as journal and store, instead of SQLite")
    parser.add_argument("--pause", type=int, default=0, help="milliseconds that a connection waits before a request")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of fresh processes (default 5)")
    parser.add_argument("--slices", type=int, default=8, help="slices of each in a round (default 8)")
    parser.add_argument("--seconds", type=int, default=1, help="length of a slice (default 1); use more for batches")
    arguments = parser.parse_args()
    names, chosen = arguments.checkouts, LOADS[arguments.load]
    if BARE in names and chosen.batch > 1:
        parser.error("the bare handler takes no batches")
    for name in names:
        if name != BARE and not command_of(name).exists():
            parser.error(f"{name}: {command_of(name)} does not exist")
    what = Load(browser=chosen.browser, batch=chosen.batch, pause=arguments.pause)
    slices, count = max(1, arguments.slices), max(1, arguments.rounds)
    with configurations(len(names), redis=arguments.redis) as configs:
        programs = [
            Program(name, None if name == BARE else command_of(name), config)
            for name, config in zip(names, configs, strict=True)
        ]
        rounds = [measure(programs, what, slices, arguments.seconds) for _ in range(count)]
    show(programs, rounds, what)
    failed = sum(int(each["failed"]) for found in rounds for of_one in found for each in of_one)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
