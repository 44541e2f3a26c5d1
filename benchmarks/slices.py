"""A comparison of daemons from several checkouts, to measure the effect of a change.

They take turns of a second (`benchmarks.beside`). A slice is compared with the nearest slice of the first server, and
every round has new processes. Name a checkout twice to see the effect of chance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from .beside import Program, Slices, configurations, measure, ratios
from .load import BATCH, Load

BARE = "bare"
LOADS = {"single": Load(), "browser": Load(browser=True), "batches": Load(batch=BATCH)}


def command_of(checkout: str) -> Path:
    return Path(checkout, ".venv", "bin", "ingestd").absolute()


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
            Program(name, "handler" if name == BARE else str(command_of(name)), config)
            for name, config in zip(names, configs, strict=True)
        ]
        rounds = [measure(programs, what, slices, arguments.seconds) for _ in range(count)]
    show(programs, rounds, what)
    failed = sum(int(each["failed"]) for found in rounds for of_one in found for each in of_one)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
