"""Servers beside each other on one core, under the same load in turns.

A machine can change its speed within seconds, and of two processes of the same program one is faster. So all servers
run at the same time, and a slice of one is compared with the nearest slice of another.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .load import Load, load, write_bodies
from .servers import BARE, CONFIG, INGESTD, Server, bare, create_key, ingestd, on_core, redis_url
from .shop import usual

__all__ = [
    "Program",
    "Side",
    "Slices",
    "beside",
    "configurations",
    "measure",
    "ratios",
    "rounds_and_seconds",
    "started",
]

Slices = list[dict[str, float]]


class Program(NamedTuple):
    """A server to measure, with its name in the results."""

    name: str
    command: str = INGESTD
    """The command of an ingestd, or a name of `BARE`."""
    config: str = CONFIG


class Side(NamedTuple):
    """A server, its folder, and the key of its callers."""

    server: Server
    folder: Path
    key: str


@contextlib.contextmanager
def configurations(count: int, *, redis: bool) -> Iterator[list[str]]:
    """A configuration for each of so many daemons, each with a separate store: on Redis, databases of one server."""
    if not redis:
        yield [CONFIG] * count
        return
    with redis_url() as url:
        base = url.rpartition("/")[0]
        yield [CONFIG.replace("sqlite:ingestd.db", f"{base}/{number}") for number in range(count)]


@contextlib.contextmanager
def started(programs: Sequence[Program], bodies: Iterable[dict[str, Any]] | None = None) -> Iterator[list[Side]]:
    """A server for each program, on the first core. Callers send the bodies, by default those of a usual shop."""
    events = [*(usual() if bodies is None else bodies)]
    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        for name, command, config in programs:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-")))
            write_bodies(folder, events)
            with on_core(min(os.sched_getaffinity(0))):
                if command in BARE:
                    sides.append(Side(stack.enter_context(bare(command, name)), folder, "none"))
                else:
                    server = stack.enter_context(ingestd(folder, config, command, name))
                    sides.append(Side(server, folder, create_key(folder, command)))
        time.sleep(2)  # the longest time until a daemon knows a new key
        with on_core(max(os.sched_getaffinity(0))):
            yield sides


def measure(
    programs: Sequence[Program],
    what: Load,
    slices: int,
    seconds: float,
    bodies: Iterable[dict[str, Any]] | None = None,
) -> list[Slices]:
    """One round with fresh processes: the slices of each server."""
    found: list[Slices] = [[] for _ in programs]
    with started(programs, bodies) as sides:
        for side in sides:
            load(*side, 2, what)  # a warm-up
        for number in range(slices):
            order = range(len(programs))
            for index in order if number % 2 else reversed(order):
                found[index].append(load(*sides[index], seconds, what))
    return found


def ratios(one: Slices, other: Slices, what: str = "req/s") -> list[float]:
    """Ratios of a figure, one for each pair of slices."""
    return [mine[what] / theirs[what] for mine, theirs in zip(one, other, strict=True)]


def beside(configs: Sequence[str], bodies: Iterable[dict[str, Any]], rounds: int, seconds: int) -> None:
    """Print `/track` with the first configuration, with the second, and the ratios of their rounds."""
    programs = [Program(name, config=config) for name, config in zip(("with", "without"), configs, strict=True)]
    on, off = measure(programs, Load(), rounds, seconds, bodies)
    for what in ("req/s", "CPU µs", "p99 ms"):
        with_, without = (median(each[what] for each in side) for side in (on, off))
        pairs = sorted(ratios(on, off, what))
        print(f"  {what:8} {with_:8.1f} with, {without:8.1f} without: ratio {median(pairs):.3f}"
              f" ({pairs[0]:.2f} to {pairs[-1]:.2f})")  # fmt: skip


def rounds_and_seconds(description: str | None, rounds: int = 6) -> tuple[int, int]:
    """The arguments of a program that measures in rounds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of each, at least 3 (default {rounds})")
    parser.add_argument("--seconds", type=int, default=4, help="length of a round under load (default 4)")
    arguments = parser.parse_args()
    return max(3, arguments.rounds), max(1, arguments.seconds)
