"""The cost of live events on the operators' page: a daemon at which somebody looks, beside one without viewers.

Both are under full load in turns of a second (`benchmarks.slices`). Then the viewer goes to the other daemon, because
one of two processes of one program is faster. The viewer reads the stream as a browser does, compressed, on the core of
the load. The least that is asked for is 0.97 of the events.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import NamedTuple

from .load import BATCH, Load, load
from .servers import INGESTD, on_core
from .slices import Program, Side, started

LOADS = {"single": Load(browser=True), "batches": Load(browser=True, batch=BATCH)}
LEAST = 0.97
UNUSED = 11  # seconds until the daemon ends a stream without viewers


class Found(NamedTuple):
    """The result of one round."""

    ratio: float
    """Events a second with a viewer, to those without."""
    cpu: tuple[float, float]
    """CPU microseconds of an event, with a viewer and without."""
    rate: float
    """Events a second without a viewer."""
    failed: int


def measure(what: Load, slices: int) -> Found:
    """One round, in which each daemon has the viewer once."""
    cores = sorted(os.sched_getaffinity(0))
    ratios, seen, unseen = [], [], []
    with contextlib.ExitStack() as stack:
        with on_core(cores[0]):
            sides = stack.enter_context(started([Program(name, Path(INGESTD)) for name in "ab"]))
        with on_core(cores[-1]):
            for side in sides:
                load(*side, 2, what)  # a warm-up
            for watched, other in (sides, sides[::-1]):
                assert watched[0].ops_port is not None
                with viewer(watched[0].ops_port):
                    pairs = [_pair(watched, other, what, first=number % 2) for number in range(slices)]
                ratios.append(median(one["req/s"] / two["req/s"] for one, two in pairs))
                seen += [one for one, _ in pairs]
                unseen += [two for _, two in pairs]
                time.sleep(UNUSED)
    cpu = [median(each["CPU µs"] for each in found) for found in (seen, unseen)]
    rate = what.batch * median(each["req/s"] for each in unseen)
    failed = sum(int(each["failed"]) for each in seen + unseen)
    return Found(geometric_mean(ratios), (cpu[0], cpu[1]), rate, failed)


def _pair(watched: Side, other: Side, what: Load, *, first: int) -> tuple[dict[str, float], dict[str, float]]:
    """A slice of each, in either order."""
    if first:
        return load(*watched, 1, what), load(*other, 1, what)
    after = load(*other, 1, what)
    return load(*watched, 1, what), after


@contextlib.contextmanager
def viewer(port: int) -> Iterator[None]:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of fresh processes (default 3)")
    parser.add_argument("--slices", type=int, default=8, help="slices of each in half a round (default 8)")
    parser.add_argument("--load", choices=LOADS, action="append", help="one kind of requests only (default both)")
    arguments = parser.parse_args()
    failed = 0
    for kind in arguments.load or LOADS:
        rounds = [measure(LOADS[kind], arguments.slices) for _ in range(arguments.rounds)]
        ratio = median(each.ratio for each in rounds)
        of_each = ", ".join(f"{each.ratio:.3f}" for each in rounds)
        cpu = [median(each.cpu[place] for each in rounds) for place in (0, 1)]
        print(f"{kind}: {median(each.rate for each in rounds):,.0f} events a second without a viewer")
        print(f"  {ratio:.3f} of them with one ({of_each}); {cpu[0]:.1f} instead of {cpu[1]:.1f} µs of CPU an event")
        if ratio < LEAST:
            print(f"  less than {LEAST}")
        failed += sum(each.failed for each in rounds)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
