"""What a request may take of the daemon, by rules for every request of a kind.

- A request without a valid key, to any route of the daemon's table, may take a millisecond of the event loop if it is
  small (`benchmarks.hostile_routes`).
- A batch of faulty events may take three times as long as a valid batch of the same size (`benchmarks.faulty_batches`).

Both are CPU time of the event loop's thread, which other programs of the machine hardly change. Exits 1 if one takes
more.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator

from . import faulty_batches, hostile_routes
from .attacks import Attack, Keys, post
from .faulty_batches import KINDS, SDK
from .hostile import PUBLIC, SERVER_KEYS, cost, idle_share, started
from .servers import Server, pairs, parser_of_pairs

_MARGIN = 2.0
"""Milliseconds that any batch may take in addition: CPU time grows in steps."""
_ATTEMPTS = 4


def batch(name: str, path: str, body: bytes) -> Attack:
    """A batch, answered 200 or, if none of its events can be told from the others, 400."""

    def make(keys: Keys, client: str) -> bytes:
        sent = f"Basic {b64encode(f'{keys.public}:'.encode()).decode()}" if path == SDK else f"Bearer {keys.public}"
        return post(path, body, client, f"Authorization: {sent}")

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
    parser = parser_of_pairs(__doc__)
    parser.add_argument("--only", default="", help="only routes and kinds of faults whose name contains this text")
    arguments = parser.parse_args()
    wrong = []
    for kind, store in pairs(arguments):
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
