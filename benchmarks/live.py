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

from .beside import Program, Side, Slices, started
from .load import BATCH, Load, load

LOADS = {"single": Load(browser=True), "batches": Load(browser=True, batch=BATCH)}
LEAST = 0.97
FILL = 10  # seconds of batches, before journeys are read
UNUSED = 11  # seconds until the daemon ends a stream without viewers


Watch = Callable[[int], contextlib.AbstractContextManager[None]]
"""Looks at the operators' page on a port."""
Pairs = list[Slices]
"""Slices of the daemon with the viewer, each with one of the other daemon."""


def measure(what: Load, slices: int, watch: Watch) -> tuple[list[Pairs], list[Pairs]]:
    """One round, in which each daemon has the viewer once: the pairs with a viewer, and those without one."""
    with started([Program(name) for name in "ab"]) as sides:
        for side in sides:
            load(*side, 2, what)  # a warm-up
            if watch is journeys:
                load(*side, FILL, LOADS["batches"])
        seen = []
        for watched, other in (sides, sides[::-1]):
            assert watched.server.ops_port is not None
            with watch(watched.server.ops_port):
                seen.append(_pairs(watched, other, what, slices))
            time.sleep(UNUSED)
        return seen, [_pairs(one, other, what, slices) for one, other in (sides, sides[::-1])]


def _pairs(watched: Side, other: Side, what: Load, slices: int) -> Pairs:
    """Slices of each in turn. Either is the first in every other turn."""
    found: Pairs = []
    for number in range(slices):
        pair = {side: load(*side, 1, what) for side in ((watched, other) if number % 2 else (other, watched))}
        found.append([pair[watched], pair[other]])
    return found


def _ratio(halves: Sequence[Pairs], name: str) -> float:
    """The first of each pair to the second, for both roles of the two processes."""
    return geometric_mean(median(one[name] / other[name] for one, other in pairs) for pairs in halves)


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


def _told(rounds: Sequence[Sequence[Pairs]]) -> str:
    """The ratios of events a second and of CPU time for an event, over all rounds and of each."""
    found = []
    for name, what in (("req/s", "events"), ("CPU µs", "CPU")):
        ratios = [_ratio(halves, name) for halves in rounds]
        found.append(f"{median(ratios):.3f} ({', '.join(f'{each:.3f}' for each in ratios)}) of the {what}")
    return ", ".join(found)


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
        what = LOADS[kind]
        seen, unseen = zip(*(measure(what, arguments.slices, watch) for _ in range(arguments.rounds)), strict=True)
        pairs = [pair for halves in seen for half in halves for pair in half]
        rate, cost = (median(without[name] for _, without in pairs) for name in ("req/s", "CPU µs"))
        print(f"{kind}: {what.batch * rate:,.0f} events a second without a viewer, {cost:.1f} µs of CPU an event")
        print(f"  with one: {_told(seen)}")
        p99 = [median(pair[place]["p99 ms"] for pair in pairs) for place in (0, 1)]
        print(f"  p99 {p99[0]:.1f} ms instead of {p99[1]:.1f}")
        print(f"  chance:   {_told(unseen)}")
        if median(_ratio(halves, "req/s") for halves in seen) < LEAST:
            print(f"  less than {LEAST}")
        failed += sum(
            int(each["failed"]) for halves in seen + unseen for half in halves for pair in half for each in pair
        )
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
