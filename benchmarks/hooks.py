"""The cost of plugins on the path of an event, on both stores, for single events and for batches.

A daemon without them runs beside one with an `enrich` and a `filter_event` that do next to nothing, and one with the
built-in `scrub` and `bots`. All are under load in turns of a second (`benchmarks.beside`). The least that is asked for
is 0.90 of the events without them, and 0.85 with `scrub` and `bots`. A ratio below that is marked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.support.distribution import write_distribution

from .beside import Program, configurations, measure, ratios
from .load import BATCH, Load

HOOKS = """\
from ingestd.api import hookimpl


@hookimpl
def enrich(event):
    event.extra["seen"] = True


@hookimpl
def filter_event(event):
    return "not wanted" if event.anonymous_id == "nobody" else None
"""
WITH_HOOKS = """\
[plugins]
also = ["trivial"]
"""
WITH_SCRUB_AND_BOTS = """\
[plugins.bots]
action = "mark"
[plugins.scrub]
drop = ["/context/ip", "/data/products/*/note"]
hash = ["/traits/email", "/data/email"]
secret = "a-secret-for-benchmarks-only"
"""
LOADS = {"single": Load(browser=True), "batches": Load(browser=True, batch=BATCH)}
LEAST = {"enrich and filter_event": 0.90, "scrub and bots": 0.85}


@contextlib.contextmanager
def programs(store: str) -> Iterator[list[Program]]:
    """The daemons to compare."""
    tails = {"without": "", **dict(zip(LEAST, (WITH_HOOKS, WITH_SCRUB_AND_BOTS), strict=True))}
    with configurations(len(tails), redis=store == "redis") as configs:
        yield [Program(name, config=config + tail) for (name, tail), config in zip(tails.items(), configs, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of fresh processes (default 2)")
    parser.add_argument("--slices", type=int, default=6, help="slices of each in a round (default 6)")
    parser.add_argument("--store", choices=["sqlite", "redis"], action="append", help="one store only (default both)")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as name:
        path = write_distribution(
            Path(name, "plugin"),
            "trivial-hooks",
            modules={"trivial_hooks": HOOKS},
            plugins={"trivial": "trivial_hooks"},
        )
        os.environ["PYTHONPATH"] = str(path)
        for store in arguments.store or ["sqlite", "redis"]:
            for kind, what in LOADS.items():
                with programs(store) as sides:
                    rounds = [measure(sides, what, arguments.slices, 1) for _ in range(arguments.rounds)]
                for index, side in enumerate(sides[1:], 1):
                    ratio = median(each for found in rounds for each in ratios(found[index], found[0]))
                    mark = "" if ratio >= LEAST[side.name] else f", less than {LEAST[side.name]:.2f}"
                    print(f"{store}, {kind}: {ratio:.2f} of the events with {side.name}{mark}")
                failed += sum(int(each["failed"]) for found in rounds for one in found for each in one)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
