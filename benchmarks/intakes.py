"""A message in the format of Segment's SDKs against the same event in a batch of ingestd's own form.

One daemon takes batches of both formats in alternate rounds, each batch with new message ids. The figure is the CPU
time of the daemon for an event, with the work of attribution and of a `jsonl` sink. The daemon has one core, this
program another one.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from uuid import uuid4

from .load import BATCH
from .servers import BASE_PATH, CONFIG, Server, create_key, ingestd, on_core
from .shop import usual

AT_ONCE = 16
LIMIT = 1.25
"""The most that a message may cost, in events of the own form."""


class Format(NamedTuple):
    name: str
    path: str
    headers: Mapping[str, str]
    answer: bytes
    """The beginning of the answer to a batch without a refused event."""


def formats(key: str) -> tuple[Format, Format]:
    basic = base64.b64encode(f"{key}:".encode()).decode()
    return (
        Format("/batch", f"{BASE_PATH}/batch", {"Authorization": f"Bearer {key}"}, b'{"success":true,"results":[{"s'),
        Format("/v1/batch", "/v1/batch", {"Authorization": f"Basic {basic}"}, b'{"success":true}'),
    )


def own(events: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps({"events": events}).encode()


def message(event: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in event.items() if name not in {"key", "data"}}
    return {"type": "track", "event": event["key"], "properties": event["data"], **rest}


def of_an_sdk(events: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps({"batch": [message(event) for event in events], "sentAt": iso(datetime.now(UTC))}).encode()


def iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_batches(events: Iterator[dict[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    at = iso(datetime.now(UTC) - timedelta(seconds=1))
    return [
        [{**event, "messageId": str(uuid4()), "timestamp": at} for event in islice(events, BATCH)] for _ in range(count)
    ]


def send(server: Server, form: Format, bodies: Sequence[bytes]) -> float:
    """Send the batches, some at a time on as many connections. Returns the CPU microseconds of an event."""
    connections = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(AT_ONCE)]
    before = server.cpu_seconds()
    for start in range(0, len(bodies), AT_ONCE):
        sending = list(zip(connections, bodies[start : start + AT_ONCE], strict=False))
        for connection, body in sending:
            connection.request("POST", form.path, body, dict(form.headers))
        for connection, _ in sending:
            answer = connection.getresponse().read()
            if not answer.startswith(form.answer):
                sys.exit(f"{form.path}: {answer[:300]!r}")
    server.settle()
    for connection in connections:
        connection.close()
    return (server.cpu_seconds() - before) * 1e6 / (len(bodies) * BATCH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each format, at least 3 (default 8)")
    parser.add_argument("--batches", type=int, default=200, help="batches of a round (default 200)")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    events = cycle(usual())
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as name:
        folder = Path(name)
        (folder / "ingestd.toml").write_text(CONFIG)
        key = create_key(folder)
        with on_core(cores[0]), ingestd(folder) as server, on_core(cores[-1]):
            both = formats(key)
            costs: list[list[float]] = [[], []]
            for number in range(max(3, arguments.rounds) + 1):
                for index in (0, 1) if number % 2 else (1, 0):
                    make = (own, of_an_sdk)[index]
                    cost = send(server, both[index], [make(each) for each in new_batches(events, arguments.batches)])
                    if number:  # the first round is a warm-up
                        costs[index].append(cost)
    ratio = median(other / one for one, other in zip(*costs, strict=True))
    print(f"batches of {BATCH} events with message ids and times, CPU µs an event")
    for form, figures in zip(both, costs, strict=True):
        print(f"  {form.name:12}{median(figures):6.1f} ({min(figures):.1f} to {max(figures):.1f})")
    print(f"  ratio {ratio:.2f}, at most {LIMIT}")
    return 1 if ratio > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
