"""The cost of the operators' page: a daemon at whose live events somebody looks, beside one without viewers.

Both are under full load in turns of a second (`benchmarks.beside`). Then the viewer goes to the other daemon, because
one of two processes of one program is faster. The viewer reads the stream as a browser does, compressed, on the core of
the load. Each round ends with as many slices without a viewer, treated likewise: their ratio is chance. The least that
is asked for is 0.97 of the events.

`--watch journeys` measures the view of journeys instead: one after another, each of which reads the whole journal.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

from .beside import Program, Side, started
from .load import BATCH, Load, load

LOADS = {"single": Load(browser=True), "batches": Load(browser=True, batch=BATCH)}
LEAST = 0.97
FILL = 10  # seconds of batches, before journeys are read
UNUSED = 11  # seconds until the daemon ends a stream without viewers


class Found(NamedTuple):
    """The result of one round. Ratios are those with a viewer to those without."""

    events: float
    """Ratio of events a second."""
    cpu: float
    """Ratio of CPU time of an event."""
    chance: tuple[float, float]
    """The same two ratios, while nobody looks."""
    rate: float
    """Events a second without a viewer."""
    cost: float
    """CPU microseconds of an event without a viewer."""
    p99: tuple[float, float]
    """The 99th percentile of answer times in ms, with a viewer and without."""
    failed: int


Watch = Callable[[int], contextlib.AbstractContextManager[None]]
"""Looks at the operators' page on a port."""
Slice = dict[str, float]
Pairs = list[tuple[Slice, Slice]]


def measure(what: Load, slices: int, watch: Watch) -> Found:
    """One round, in which each daemon has the viewer once."""
    seen: list[Pairs] = []
    unseen: list[Pairs] = []
    with started([Program(name) for name in "ab"]) as sides:
        for side in sides:
            load(*side, 2, what)  # a warm-up
            if watch is journeys:
                load(*side, FILL, LOADS["batches"])
        for watched, other in (sides, sides[::-1]):
            assert watched.server.ops_port is not None
            with watch(watched.server.ops_port):
                seen.append([_pair(watched, other, what, first=number % 2) for number in range(slices)])
            time.sleep(UNUSED)
        for one, other in (sides, sides[::-1]):
            unseen.append([_pair(one, other, what, first=number % 2) for number in range(slices)])
    chance = _ratio(unseen, "req/s"), _ratio(unseen, "CPU µs")
    without = [each for pairs in seen for _, each in pairs]
    rate = what.batch * median(each["req/s"] for each in without)
    cost = median(each["CPU µs"] for each in without)
    p99 = [median(pair[place]["p99 ms"] for pairs in seen for pair in pairs) for place in (0, 1)]
    failed = sum(int(each["failed"]) for pairs in seen + unseen for pair in pairs for each in pair)
    return Found(_ratio(seen, "req/s"), _ratio(seen, "CPU µs"), chance, rate, cost, (p99[0], p99[1]), failed)


def _ratio(halves: Sequence[Pairs], name: str) -> float:
    """The first of each pair to the second, for both roles of the two processes."""
    return geometric_mean(median(one[name] / other[name] for one, other in pairs) for pairs in halves)


def _pair(watched: Side, other: Side, what: Load, *, first: int) -> tuple[Slice, Slice]:
    """A slice of each, in either order."""
    if first:
        return load(*watched, 1, what), load(*other, 1, what)
    after = load(*other, 1, what)
    return load(*watched, 1, what), after


@contextlib.contextmanager
def live_events(port: int) -> Iterator[None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/events", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert connection.sock is not None
    sock: socket.socket = connection.sock

    def read() -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):  # it ends with the connection
            while answer.read1():
                pass

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
        assert reading.is_alive(), "the stream has ended"
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        reading.join()
        connection.close()


@contextlib.contextmanager
def journeys(port: int) -> Iterator[None]:
    over = threading.Event()
    took: list[float] = []

    def read() -> None:
        while not over.is_set():
            begun = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/journey.json?visitor=nobody") as answer:
                searched = json.load(answer)["searched"]
            took.append(time.monotonic() - begun)
        print(f"  {len(took)} journeys took {median(took):.1f} s each; the last read {searched['records']:,} records")

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        over.set()
        reading.join()


def _told(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.3f} ({', '.join(f'{each:.3f}' for each in ratios)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of fresh processes (default 3)")
    parser.add_argument("--slices", type=int, default=8, help="slices of each in half a round (default 8)")
    parser.add_argument("--load", choices=LOADS, action="append", help="one kind of requests only (default both)")
    parser.add_argument("--watch", choices=["events", "journeys"], default="events", help="a view (default events)")
    arguments = parser.parse_args()
    watch = journeys if arguments.watch == "journeys" else live_events
    failed = 0
    for kind in arguments.load or LOADS:
        rounds = [measure(LOADS[kind], arguments.slices, watch) for _ in range(arguments.rounds)]
        print(f"{kind}: {median(each.rate for each in rounds):,.0f} events a second without a viewer,"
              f" {median(each.cost for each in rounds):.1f} µs of CPU an event")  # fmt: skip
        print(f"  with one: {_told([each.events for each in rounds])} of the events,"
              f" {_told([each.cpu for each in rounds])} of the CPU")  # fmt: skip
        p99 = [median(each.p99[place] for each in rounds) for place in (0, 1)]
        print(f"  p99 {p99[0]:.1f} ms instead of {p99[1]:.1f}")
        print(f"  chance:   {_told([each.chance[0] for each in rounds])} of the events,"
              f" {_told([each.chance[1] for each in rounds])} of the CPU")  # fmt: skip
        if median(each.events for each in rounds) < LEAST:
            print(f"  less than {LEAST}")
        failed += sum(each.failed for each in rounds)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
