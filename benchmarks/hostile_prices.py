"""What a request may take of the daemon, by rules for every request of a kind.

- A request without a valid key, to any route of the daemon's table, may take a millisecond of the event loop if it is
  small (`benchmarks.hostile_routes`).
- A batch of faulty events may take three times as long as a valid batch of the same size (`benchmarks.faulty_batches`).

Both are CPU time of the event loop's thread, which other programs of the machine hardly change. Exits 1 if one takes
more.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from base64 import b64encode
from collections.abc import Iterator

from . import faulty_batches, hostile_routes
from .attacks import Attack, Keys
from .faulty_batches import KINDS, SDK
from .hostile import PUBLIC, SERVER_KEYS, SERVERS, STORES, cost, idle_share, started
from .servers import Server

_MARGIN = 2.0
"""Milliseconds that any batch may take in addition: CPU time grows in steps."""
_ATTEMPTS = 4


def batch(name: str, path: str, body: bytes) -> Attack:
    """A batch, answered 200 or, if none of its events can be told from the others, 400."""

    def make(keys: Keys, client: str) -> bytes:
        sent = f"Basic {b64encode(f'{keys.public}:'.encode()).decode()}" if path == SDK else f"Bearer {keys.public}"
        head = [f"POST {path} HTTP/1.1", "Host: shop", client, f"Authorization: {sent}"]
        return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body

    return Attack(name, make, frozenset({200, 400}), public=True)


def too_costly_routes(server: Server, idle: float, only: str) -> Iterator[str]:
    """Print the two most expensive requests of each route. Yields the names of those that take too much."""
    keys = [Keys(PUBLIC, each) for each in SERVER_KEYS]
    for path, found in hostile_routes.costs(server, keys, idle, only=only):
        print(f"  {path:42}{', '.join(f'{taken:.2f} ({name})' for taken, name in found[:2])}", flush=True)
        yield from (f"{path}: {name}" for taken, name in found if taken > hostile_routes.MOST)


def too_costly_batches(server: Server, idle: float, only: str) -> Iterator[str]:
    """Print the cost of each faulty batch and of a valid one. Yields the names of those that take too much."""
    keys = Keys(PUBLIC, "")
    print(f"  {'':42}{'faulty':>8}{'valid':>9}{'ratio':>8}")
    for kind in KINDS:
        if only not in kind.name or kind.has_own_schema:
            continue
        faulty, valid = (batch(kind.name, kind.path, body) for body in (kind.faulty(PUBLIC), kind.valid(PUBLIC)))
        for _ in range(_ATTEMPTS):
            taken, usual = cost(server, faulty, keys, idle), cost(server, valid, keys, idle)
            if taken <= faulty_batches.MOST * usual + _MARGIN:
                break
        else:
            yield kind.name
        print(f"  {kind.name:42}{taken:8.2f}{usual:9.2f}{taken / max(usual, 0.01):8.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", choices=SERVERS, help="repeatable (default: all)")
    parser.add_argument("--store", action="append", choices=STORES, help="repeatable (default: all)")
    parser.add_argument("--only", default="", help="only routes and kinds of faults whose name contains this text")
    arguments = parser.parse_args()
    wrong = []
    for kind, store in itertools.product(arguments.server or SERVERS, arguments.store or STORES):
        print(f"server {kind}, store {store}: milliseconds of the loop for a request")
        with started(kind, store) as server:
            idle = idle_share(server)
            for measure in too_costly_routes, too_costly_batches:
                wrong += [f"{kind}, {store}: {name}" for name in measure(server, idle, arguments.only)]
    for name in wrong:
        print(f"takes too much: {name}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
