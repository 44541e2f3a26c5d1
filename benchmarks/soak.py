"""The daemon's resident memory over very many events. It may grow while caches fill, and must not grow afterwards.

One `ingestd serve` runs as installed, with a `jsonl` sink. Persistent connections send track and identify requests of
ever new visitors. Prints the daemon's memory at regular intervals, and exits 1 if it has grown by more than a bound
after the warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import servers
from .servers import Server, create_key, ingestd
from .shop import products

CONNECTIONS = 32
BATCH = 25
"""Requests that a connection sends at once."""

MIB = 1 << 20

CONFIG = f'{servers.CONFIG}max_size = "50MiB"\nkeep = 1\n'


class Sample(NamedTuple):
    events: int
    resident: int
    """Resident memory in bytes."""


def growth(samples: Sequence[Sample], warm_up: int) -> int:
    """Growth in bytes: the highest memory minus the memory after the first `warm_up` events."""
    after = [sample.resident for sample in samples if sample.events >= warm_up]
    return max(after) - after[0]


def requests(key: str, visitors: int, padding: int) -> Iterator[bytes]:
    """Requests without end, of randomly chosen visitors, each with `padding` meaningless characters."""
    chance = random.Random(0)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("track", {"key": "Page View", "data": {"title": "Linen shirts"}}),
        ("track", {"key": "Product Viewed", "data": products(1, 1)[0]}),
        ("track", {"key": "Order Completed", "data": {"order_id": "o-1", "total": 99.5, "products": products(1, 5)}}),
        ("identify/public", {"userId": "?", "traits": {"email": "someone@shop.example"}}),
    ]
    head = (
        "POST /api/v1/analytics/%s HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
    )
    number = 0
    while True:
        path, body = chance.choices(bodies, [60, 30, 9, 1])[0]
        number += 1
        visitor = chance.randrange(visitors)
        own: dict[str, Any] = {"anonymousId": f"visitor-{visitor}", "messageId": f"message-{number}"}
        if padding:
            own["padding"] = "x" * padding
        if "userId" in body:
            own["userId"] = f"user-{visitor}"
        text = json.dumps({**body, **own})
        yield (head % (path, key, len(text), text)).encode()


def read_answers(sock: socket.socket, count: int) -> None:
    received = b""
    while received.count(b"}}") < count:  # each answer ends with this
        chunk = sock.recv(1 << 16)
        received += chunk
        if not chunk or received.count(b"HTTP/1.1 ") != received.count(b"HTTP/1.1 200 "):
            sys.exit(f"not every event was accepted: {received.decode(errors='replace')}")


def soak(server: Server, source: Iterator[bytes], events: int, every: int) -> list[Sample]:
    """Send `events` events, and measure the memory after each `every` of them."""
    samples = []
    sent = 0
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        sockets = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(CONNECTIONS)]
        while sent < events:
            for sock in sockets:
                sock.sendall(b"".join(next(source) for _ in range(BATCH)))
            for sock in sockets:
                read_answers(sock, BATCH)
            before, sent = sent, sent + CONNECTIONS * BATCH
            if sent // every > before // every:
                samples.append(Sample(sent, server.memory()))
                rate = sent / (time.monotonic() - begun)
                print(f"{sent:>9} events {samples[-1].resident / MIB:8.1f} MiB {rate:8.0f} events/s", flush=True)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--every", type=int, default=100_000, help="events between two measurements (default 100000)")
    parser.add_argument("--warm-up", type=int, default=300_000, help="events until caches are full (default 300000)")
    parser.add_argument("--cache", default="8MiB", help="[plugins.sqlite] cache_size (default 8MiB)")
    parser.add_argument("--visitors", type=int, default=300_000, help="default 300000")
    parser.add_argument("--padding", type=int, default=0, help="more bytes for each event, to fill the store sooner")
    parser.add_argument("--bound", type=float, default=16, metavar="MIB", help="growth allowed after that (default 16)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingestd-soak-") as name:
        folder = Path(name)
        (folder / "ingestd.toml").write_text(config := f'{CONFIG}[plugins.sqlite]\ncache_size = "{arguments.cache}"\n')
        key = create_key(folder)
        with ingestd(folder, config) as server:
            source = requests(key, arguments.visitors, arguments.padding)
            samples = soak(server, source, arguments.events, arguments.every)
    grown = growth(samples, arguments.warm_up)
    flat = grown <= arguments.bound * MIB
    print(f"{'flat' if flat else 'NOT FLAT'}: {grown / MIB:.1f} MiB more than after {arguments.warm_up} events,"
          f" of {arguments.bound:g} MiB allowed")  # fmt: skip
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
