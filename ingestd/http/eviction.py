"""The choice of connections to close for new ones when too many are open."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable

from .client_connection import Client

__all__ = ["Evictable"]


class Evictable:
    """Connections that wait for their client, in the order in which they are closed.

    Within one address, idle connections come first and half-sent requests second; the longest waiting comes first in
    each group. Among several addresses, the address with the most connections loses one, again and again. A connection
    of a trusted proxy or a Unix socket stands for many callers, so it counts as an address with one connection.

    Sorting takes milliseconds, so it is done once for all connections, and not for each new one.
    """

    def __init__(self, clients: Iterable[Client], since: float) -> None:
        """Take those `clients` that have waited since that time or longer."""
        counts: defaultdict[Hashable, int] = defaultdict(int)
        of_origin: defaultdict[Hashable, list[Client]] = defaultdict(list)
        for client in clients:
            counts[client.origin] += 1
            if client.phase != "answer" and client.since <= since:
                of_origin[client.origin].append(client)
        ranked: list[tuple[int, bool, float, int, Client]] = []
        self._of_origin: dict[Hashable, deque[tuple[Client, float]]] = {}
        for origin, waiting in of_origin.items():
            waiting.sort(key=_order)
            self._of_origin[origin] = deque((client, client.since) for client in waiting)
            for index, client in enumerate(waiting):
                left = counts[origin] - index if origin is not None else 1
                ranked.append((-left, *_order(client), len(ranked), client))
        ranked.sort()
        self._all = deque((client, since) for _, _, since, _, client in ranked)

    def next(self) -> Client | None:
        """The next connection to close, of all."""
        return _still_waiting(self._all)

    def next_of(self, origin: Hashable) -> Client | None:
        """The next connection to close, of one address."""
        return _still_waiting(self._of_origin.get(origin))


def _order(client: Client) -> tuple[bool, float]:
    return client.phase in {"headers", "body"}, client.since


def _still_waiting(queue: deque[tuple[Client, float]] | None) -> Client | None:
    """The first connection that is open and still waits as it did when it was sorted."""
    while queue:
        client, since = queue.popleft()
        if client.since == since and client.phase not in {"answer", "closed"}:
            return client
    return None
