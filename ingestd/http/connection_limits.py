"""All open connections, and the limits that keep one from using up the others' resources."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from ingestd.api.errors import Refused, TimedOut, Unavailable
from ingestd.api.outcomes import Refusal
from ingestd.config import HttpOptions
from ingestd.observability.metrics import Metrics
from ingestd.support.periodic import TIMING, every

from .client_address import UNIX_PEER, Peers
from .client_connection import Client, Phase
from .lingering import Lingering

__all__ = ["SMALL", "Admitted", "Connections", "Evictable"]

SMALL = 4096
"""Bytes that a connection may read even when far too much is buffered: requests of usual size are not the cause."""

_DRAIN_TICK = 0.02  # seconds, while shutdown waits for the last connections
_FORCED = 1.0  # seconds for events that wait for their commit
_AHEAD = 300_000  # bytes, more than a connection reads ahead behind a request


_TOO_MANY = "Too many connections are open. Try again."
_TOO_MANY_OF_ADDRESS = "Too many connections are open from this address. Try again."
_TOO_MUCH = "Too many requests are arriving at the same time. Send the request again."


class Admitted(NamedTuple):
    """A new connection that may stay."""

    address: str
    """The address of its other end, in the form of `Request.peer`."""
    origin: Hashable
    """The key by which a caller's connections are counted; None where this one stands for many callers."""


class Connections:
    """Enforces the limits of `[http]` on time, number and bytes. `refusal` makes a whole HTTP answer from an error.

    One timer looks at all connections four times a second. A timer for each request would cost more than all of this.
    """

    def __init__(self, options: HttpOptions, metrics: Metrics, refusal: Callable[[Refused], bytes]) -> None:
        self.refusal = refusal
        self.now = asyncio.get_running_loop().time()
        """The loop's time at the last look."""
        self.buffered = 0
        """Bytes of all unanswered requests, decompressed, and of unread answers."""
        self.count = metrics.refused
        self.apply_options(options)
        self._open: dict[Client, None] = {}
        """All open connections. Connections of one phase and age are in the order in which they began to wait."""
        self._of_origin: Counter[Hashable] = Counter()
        """The number of open connections of each origin."""
        self._evictable: Evictable | None = None
        """The connections that can be closed for new ones. None: not needed since the last look."""
        self._lingering = Lingering()
        self._relief: asyncio.Handle | None = None
        metrics.connections.set_function(lambda: len(self._open))
        metrics.buffered.set_function(lambda: self.buffered)

    def apply_options(self, options: HttpOptions) -> None:
        """Enforce these limits from now on."""
        self._most = options.max_connections
        self._most_of_address = options.max_connections_per_address
        self._peers = Peers(options.trusted_proxies)
        self._most_buffered = int(options.max_buffered)
        self._far_too_much = self._most_buffered + self._most_buffered // 4 + _AHEAD
        self._limits = {
            "request": float(options.idle_timeout),
            "answered": float(options.idle_timeout),
            "headers": TIMING.http_head,
            "body": float(options.body_timeout),
            "end": TIMING.http_head,
        }

    # Reports of a connection

    def opened(self, client: Client) -> None:
        self._open[client] = None
        self._of_origin[client.origin] += 1

    def move(self, client: Client, phase: Phase) -> None:
        """Let a connection enter a phase. Only "headers", "body" and "answer" keep something of a request."""
        if client.phase == "closed":
            return
        client.phase = phase
        client.since = self.now
        if phase == "body" or phase == "answer" or phase == "headers":  # noqa: PLR1714 - a set would take twice the time, for every request
            return
        client.exchange = None  # breaks a cycle of references, which would wait for the garbage collector
        self.buffered -= client.received
        client.received = client.unread = 0
        del self._open[client]
        if phase != "closed":
            self._open[client] = None
            return
        self._of_origin[client.origin] -= 1
        if not self._of_origin[client.origin]:
            del self._of_origin[client.origin]

    def arrived(self, client: Client, count: int) -> None:
        if client.phase == "request":
            self.move(client, "headers")
        self.held(client, count)

    def held(self, client: Client, count: int) -> None:
        """Count so many more bytes for a connection: of a request, of bytes behind it, or of its answer."""
        if client.phase == "closed":
            return
        client.received += count
        self.buffered += count
        if self.buffered > self._most_buffered and self._relief is None:
            self._relief = asyncio.get_running_loop().call_soon(self._relieve)

    def is_far_too_much(self, count: int) -> bool:
        """Whether so many bytes cannot wait for `_relieve`: thousands of connections may bring as many in one turn."""
        return self.buffered > self._far_too_much and count > SMALL

    def refuse_at_once(self, client: Client) -> None:
        client.refuse(Unavailable(_TOO_MUCH), Refusal.TOO_MUCH_BUFFERED)

    def release(self, client: Client, count: int) -> None:
        client.received -= count
        self.buffered -= count

    # Reports of a complete request

    def hand_over(self, client: Client, count: int) -> None:
        """Count so many bytes for the request instead of its connection: they stay when the client disconnects."""
        if client.phase != "closed":
            client.received -= count
        else:
            self.buffered += count

    def unpacked(self, count: int) -> None:
        """Count the bytes that decompression has added to a request. Raises `Unavailable` if they exceed the limit.

        Requests of usual size are not the cause, so they pass.
        """
        if self.buffered + count > self._most_buffered and count > SMALL:
            self.count(Refusal.TOO_MUCH_BUFFERED)
            raise Unavailable(_TOO_MUCH)
        self.buffered += count

    def done_with(self, count: int) -> None:
        """Stop counting so many bytes of a request."""
        self.buffered -= count

    # The limits

    def admit(self, sock: socket.socket, address: Any) -> Admitted | None:
        """Make room for a new connection. None: there is no room, and the client was told."""
        of_network = sock.family in {socket.AF_INET, socket.AF_INET6}
        peer = str(address[0]) if of_network else UNIX_PEER
        origin = self._peers.origin(peer)
        if origin is not None and self._of_origin[origin] >= self._most_of_address:
            evicted = self._look_for_evictable().next_of(origin)
            if not self._make_room(evicted, _TOO_MANY_OF_ADDRESS, Refusal.TOO_MANY_OF_ADDRESS, sock):
                return None
        if len(self._open) >= self._most:
            evicted = self._look_for_evictable().next()
            if not self._make_room(evicted, _TOO_MANY, Refusal.TOO_MANY_CONNECTIONS, sock):
                return None
        return Admitted(self._peers.client(peer, {}), origin)

    def _look_for_evictable(self) -> Evictable:
        if self._evictable is None:
            self._evictable = Evictable(self._open, self.now - TIMING.http_timeouts)
        return self._evictable

    def _make_room(self, evicted: Client | None, told: str, reason: Refusal, newcomer: socket.socket) -> bool:
        if evicted is None:
            self.count(reason)
            with contextlib.suppress(OSError):  # the client has disconnected
                newcomer.send(self.refusal(Unavailable(told)))
            self.linger(newcomer)
            return False
        if evicted.phase in {"headers", "body"}:
            evicted.refuse(Unavailable(told), reason)
        evicted.close()  # it was idle, or its client does not take the refusal
        return True

    def _relieve(self) -> None:
        """Refuse the requests that have been arriving longest, until the rest fits: fast clients are not the cause.

        Large requests come first, since one of usual size is not the cause either.

        In the same order, connections with unread answers are closed, bytes behind a request being answered are
        discarded, and bytes behind an answered one are refused. All three are spared while the excess is at most
        `_AHEAD`, since one connection alone can cause that.
        """
        self._relief = None
        holding = (client for client in self._open if client.received)
        for client in sorted(holding, key=lambda client: (client.received <= SMALL, client.since)):
            if self.buffered <= self._most_buffered:
                return
            if client.phase in {"headers", "body"}:
                client.refuse_late(Unavailable(_TOO_MUCH), Refusal.TOO_MUCH_BUFFERED)
            elif self.buffered <= self._most_buffered + _AHEAD:
                continue
            elif client.unread:
                self.count(Refusal.TOO_MUCH_BUFFERED)
                client.close()
            elif client.phase == "answer":
                client.drop_rest()
            else:  # between two requests: the bytes belong to the next one
                client.refuse(Unavailable(_TOO_MUCH), Refusal.TOO_MUCH_BUFFERED)

    async def watch(self) -> None:
        """Enforce the time limits for as long as the daemon runs."""
        loop = asyncio.get_running_loop()
        await every("http_timeouts", lambda: self.look(loop.time()), first=0)

    def look(self, now: float) -> None:
        """Refuse or close connections that have been in a phase for too long at this time."""
        self.now = now
        self._evictable = None
        late = [
            client
            for client in self._open
            if (limit := self._limits.get(client.phase)) is not None and now - client.since > limit
        ]
        for client in late:
            if client.phase in {"headers", "body"}:
                client.refuse(TimedOut("The request took too long to arrive."), Refusal.TIMEOUT)
            else:
                client.close()

    async def drain(self, longest: float, forced: asyncio.Event) -> int:
        """Wait at most `longest` seconds until all connections are closed. Returns how many requests are unanswered.

        From now on each answer must end its connection, and the server must accept no more. After a second
        connections that wait for a request are closed; before that their clients may be sending one. Once `forced` is
        set, this waits only for complete requests, and for at most one second more.
        """
        began = asyncio.get_running_loop().time()
        while True:
            now = asyncio.get_running_loop().time()
            self.look(now)
            if now - began >= TIMING.shutdown_grace:
                self._close_quiet()
            if forced.is_set():
                longest = min(longest, now - began + _FORCED)
            waited = self._in("answer") if forced.is_set() else self._open or self._lingering
            if not waited or now - began >= longest:
                return len(self._in("headers", "body", "answer"))
            await asyncio.sleep(_DRAIN_TICK)

    def _in(self, *phases: Phase) -> list[Client]:
        return [client for client in self._open if client.phase in phases]

    def _close_quiet(self) -> None:
        """Close connections that wait for a request, unless bytes of it have arrived and are not read yet."""
        poll = select.poll()
        quiet = {client.descriptor(): client for client in self._in("request", "answered")}
        quiet.pop(-1, None)
        for descriptor in quiet:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0):
            del quiet[descriptor]
        for client in quiet.values():
            client.close()

    def linger(self, sock: socket.socket) -> None:
        """Read on for a moment from a finished connection, so that its client can read the answer."""
        self._lingering.add(sock)

    def close(self) -> None:
        """Close all lingering connections."""
        self._lingering.close()


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
