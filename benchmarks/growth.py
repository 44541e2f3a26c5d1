"""The effect of years of visitors and events on throughput, time to start, and memory.

`visitors`: single events with very many known visitors and with a thousand, in alternate rounds on the same core.
Visitors are chosen from all known ones, whose last visit was more than a day ago. `--at-once` of them visit at a time,
with ten events each. Then follows the same with one event each, the case in which memory helps least. A third daemon
has as many visitors but knows only a thousand: it does the same work without anything to look up. `--present`: all
visitors have just been active, and each returns to a live session in the file.

`start`: the time from the start of the process to "ready", with journals of several sizes in turn, also with files that
are not in the system's cache.

`memory`: the memory of one daemon with caches of the default size, over very many events of very many visitors, with
message ids, identify requests and orders.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from .filling import fill_journal, fill_state
from .load import Load, load, write_bodies
from .servers import CONFIG, INGESTD, Server, create_key, ingestd, on_core
from .shop import VISITORS, usual
from .soak import CONFIG as SOAK_CONFIG
from .soak import MIB, requests, soak

PARTS = ("visitors", "start", "memory")
VISITS = (10, 1)
"""Events of a visit."""
LASTING = CONFIG + '[plugins.session]\nidle = "1d"\n'
"""No session expires during the benchmark, for `--present`."""


@contextlib.contextmanager
def folders(parent: str | None, count: int) -> Iterator[list[Path]]:
    with contextlib.ExitStack() as stack:
        yield [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingestd-bench-", dir=parent)))
            for _ in range(count)
        ]


def measure_visitors(parent: str | None, many: int, at_once: int, rounds: int, seconds: int, *, present: bool) -> None:
    known = (VISITORS, VISITORS, many)
    coming = (VISITORS, many, many)
    config = LASTING if present else CONFIG
    cores = sorted(os.sched_getaffinity(0))
    with folders(parent, len(known)) as places, contextlib.ExitStack() as stack:
        sides = []
        for place, count in zip(places, known, strict=True):
            key = fill_state(place, count, config, present=present)
            write_bodies(place, [*usual()])
            print(f"{count} visitors: a database of {(place / 'ingestd.db').stat().st_size / MIB:.0f} MiB", flush=True)
            with on_core(cores[0]):
                sides.append((stack.enter_context(ingestd(place, config)), place, key))
        for server, *_ in sides:
            server.know_what_is_absent()
        sent = [0] * len(sides)  # events sent to each daemon; the next visitors have not been there before
        with on_core(cores[-1]):
            for visit in VISITS:
                loads = [Load(visitors=count, visit=visit, at_once=at_once) for count in coming]
                compare(sides, loads, sent, rounds, seconds)


def compare(
    sides: Sequence[tuple[Server, Path, str]], loads: Sequence[Load], sent: list[int], rounds: int, seconds: int
) -> None:
    """Print the medians of each daemon, and the ratios of the last one, which knows many visitors, to the others."""
    results: list[list[dict[str, float]]] = [[] for _ in sides]
    order = range(len(sides))
    for number in range(-1, rounds):  # the first round is a warm-up
        for index in order if number % 2 else reversed(order):
            one = load(*sides[index], seconds, replace(loads[index], sent=sent[index]))
            sent[index] += round(one["req/s"] * seconds)
            if number >= 0:
                results[index].append(one)
    of_all = f"{loads[-1].at_once} of {loads[-1].visitors} at a time"
    print(f"visitors: visits of {loads[0].visit} events, {of_all}, {rounds} rounds of {seconds} s each")
    print(f"  {'':8} {'few':>9} {'strangers':>9} {'many':>9}  many to few              many to strangers")
    for what in ("req/s", "CPU µs", "p50 ms", "p99 ms", "failed"):
        medians = " ".join(f"{median(each[what] for each in side):9.1f}" for side in results)
        print(f"  {what:8} {medians}  {'  '.join(_ratio(side, results[-1], what) for side in results[:-1])}")


def _ratio(few: Sequence[dict[str, float]], many: Sequence[dict[str, float]], what: str) -> str:
    ratios = sorted(b[what] / max(1e-9, a[what]) for a, b in zip(few, many, strict=True))
    return f"{median(ratios):.3f} ({ratios[0]:5.2f} to {ratios[-1]:5.2f})"


def start(folder: Path) -> float:
    """Seconds from the start of the process until it is ready."""
    begun = time.perf_counter()
    command = [INGESTD, "serve", "--config", str(folder / "ingestd.toml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = any("ready: " in line for line in process.stderr)
        seconds = time.perf_counter() - begun
        process.terminate()
        process.stderr.read()
    if not ready:
        sys.exit("ingestd did not start")
    return seconds


def chill(folder: Path) -> None:
    """Drop the daemon's files from the system's cache."""
    os.sync()
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_start(parent: str | None, sizes: Sequence[int], rounds: int) -> None:
    print(f"start: until ready, medians of {rounds} starts")
    with folders(parent, len(sizes)) as places:
        for place, records in zip(places, sizes, strict=True):
            fill_journal(place, records)
        warm: list[list[float]] = [[] for _ in sizes]
        cold: list[list[float]] = [[] for _ in sizes]
        for _ in range(rounds):
            for index, place in enumerate(places):
                warm[index].append(start(place))
                chill(place)
                cold[index].append(start(place))
        for index, records in enumerate(sizes):
            size = (places[index] / "ingestd.db").stat().st_size / MIB
            print(f"  {records:>9} records, {size:6.0f} MiB: {median(warm[index]):.3f} s,"
                  f" {median(cold[index]):.3f} s with a cold file")  # fmt: skip


def measure_memory(parent: str | None, events: int, visitors: int) -> None:
    print(f"memory: {events} events of {visitors} visitors")
    with folders(parent, 1) as [folder]:
        (folder / "ingestd.toml").write_text(SOAK_CONFIG)
        key = create_key(folder)
        with ingestd(folder, SOAK_CONFIG) as server:
            soak(server, requests(key, visitors, 0), events, max(1, events // 20))
            print(f"  at its peak {server.memory('VmHWM') / MIB:.0f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="parts to measure (default: all)")
    parser.add_argument("--visitors", type=int, default=5_000_000, help="known visitors (default 5000000)")
    parser.add_argument("--at-once", type=int, default=Load.at_once, help=f"visits at a time (default {Load.at_once})")
    parser.add_argument("--present", action="store_true", help="all visitors have just been active")
    parser.add_argument("--rounds", type=int, default=6, help="rounds, and starts, of each (default 6)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a round (default 4)")
    parser.add_argument("--records", type=int, nargs="+", default=[1_000, 1_000_000, 3_000_000], help="of the journals")
    parser.add_argument("--events", type=int, default=5_000_000, help="events of the part memory (default 5000000)")
    parser.add_argument("--folder", help="folder for databases of some gigabytes (default: the temporary folder)")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    if "visitors" in parts:
        measure_visitors(
            arguments.folder,
            arguments.visitors,
            arguments.at_once,
            arguments.rounds,
            arguments.seconds,
            present=arguments.present,
        )
    if "start" in parts:
        measure_start(arguments.folder, arguments.records, arguments.rounds)
    if "memory" in parts:
        measure_memory(arguments.folder, arguments.events, max(1, arguments.events // 5))
    return 0


if __name__ == "__main__":
    sys.exit(main())
