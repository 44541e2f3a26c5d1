"""The cost of live events on the operators' page: a daemon at which somebody looks, beside one without viewers.

Both are under full load in turns of a second (`benchmarks.slices`). The viewer reads the stream as a browser does,
compressed, on the core of the load. A third daemon without viewers shows the effect of chance. The least that is asked
for is 0.97 of the events.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from .load import BATCH, Load
from .servers import INGESTD
from .slices import Program, Side, configurations, measure, ratios

LOADS = {"single": Load(browser=True), "batches": Load(browser=True, batch=BATCH)}
LEAST = 0.97
NAMES = ["closed", "closed again", "open", "open, one visitor"]
QUERIES = {"open": "", "open, one visitor": "?visitor=nobody"}


@contextlib.contextmanager
def viewing(sides: Sequence[Side]) -> Iterator[None]:
    """A viewer at some of the servers."""
    with contextlib.ExitStack() as stack:
        for name, side in zip(NAMES, sides, strict=True):
            if name in QUERIES:
                assert side[0].ops_port is not None
                stack.enter_context(viewer(side[0].ops_port, QUERIES[name]))
        yield


@contextlib.contextmanager
def viewer(port: int, query: str) -> Iterator[None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", f"/events{query}", headers={"Accept-Encoding": "gzip"})
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
    parser.add_argument("--slices", type=int, default=10, help="slices of each in a round (default 10)")
    parser.add_argument("--load", choices=LOADS, action="append", help="one kind of requests only (default both)")
    arguments = parser.parse_args()
    failed = 0
    for kind in arguments.load or LOADS:
        what = LOADS[kind]
        with configurations(len(NAMES), redis=False) as configs:
            programs = [Program(name, Path(INGESTD), config) for name, config in zip(NAMES, configs, strict=True)]
            rounds = [measure(programs, what, arguments.slices, 1, viewing) for _ in range(arguments.rounds)]
        rate = what.batch * median(each["req/s"] for found in rounds for each in found[0])
        print(f"{kind}: {rate:,.0f} events a second without viewers")
        for index, name in enumerate(NAMES[1:], 1):
            ratio = median(each for found in rounds for each in ratios(found[index], found[0]))
            cpu = [median(each["CPU µs"] for found in rounds for each in found[place]) for place in (index, 0)]
            mark = f", less than {LEAST}" if ratio < LEAST else ""
            print(f"  {name}: {ratio:.3f} of the events, {cpu[0]:.1f} instead of {cpu[1]:.1f} µs of CPU{mark}")
        failed += sum(int(each["failed"]) for found in rounds for one in found for each in one)
    print(f"failed requests: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
