"""Which connections are closed for a new one when there are too many."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable

from .client_connection import Client

__all__ = ["Evictable"]


class Evictable:
    """Connections that wait for their client, in the order in which they go.

    Of one address the idle ones go first and then those whose request is half sent, each the longest first. Among
    several addresses the one with the most connections loses one, again and again. A trusted proxy's connections and
    those of a Unix socket stand for many callers, so each counts as an address with one connection.

    To find this out takes milliseconds, so it is done for all at once, and not for each new connection.
    """

    def __init__(self, clients: Iterable[Client], since: float) -> None:
        """Of these `clients` those count that have waited at least since that time."""
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
            for place, client in enumerate(waiting):
                left = counts[origin] - place if origin is not None else 1
                ranked.append((-left, *_order(client), len(ranked), client))
        ranked.sort()
        self._all = deque((client, since) for _, _, since, _, client in ranked)

    def next(self) -> Client | None:
        """The next that goes, of all."""
        return _still_waiting(self._all)

    def next_of(self, origin: Hashable) -> Client | None:
        """The next that goes, of one address."""
        return _still_waiting(self._of_origin.get(origin))


def _order(client: Client) -> tuple[bool, float]:
    return client.phase in {"headers", "body"}, client.since


def _still_waiting(queue: deque[tuple[Client, float]] | None) -> Client | None:
    """The first that is open and has neither sent nor been sent anything since."""
    while queue:
        client, since = queue.popleft()
        if client.is_open and client.since == since and client.phase != "answer":
            return client
    return None
