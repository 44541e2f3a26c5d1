"""All open connections, and the bounds that keep any of them from taking what is the others'."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NamedTuple

from ingestd.api.errors import Refused, TimedOut, Unavailable
from ingestd.api.outcomes import Refusal
from ingestd.config import HttpOptions
from ingestd.observability.metrics import Metrics

from .client_address import Peers
from .client_connection import Client, Phase
from .eviction import Evictable

__all__ = ["SMALL", "Admitted", "Connections"]

SMALL = 4096
"""Bytes of what is read also where there is far too much: usual requests are not the cause."""

_TICK = 0.25  # seconds
_DRAIN_TICK = 0.02  # the same while the daemon stops and waits for the last of them
_FORCED = 1.0  # seconds for what is on its way to the disk
_LINGER = 2.0  # seconds
_MOST_LINGERING = 256
_CHUNK = 65536
_AHEAD = 300_000  # bytes: more than a connection reads of what comes behind a request


_TOO_MANY = "Too many connections are open. Try again."
_TOO_MANY_OF_ADDRESS = "Too many connections are open from this address. Try again."
_TOO_MUCH = "Too many requests are arriving at the same time. Send it again."


class Admitted(NamedTuple):
    """A connection that there is room for. `origin`: what it is counted by, with others of its caller."""

    origin: Hashable


class Connections:
    """Keeps the limits of `[http]` on time, number and bytes. `refusal` makes a whole HTTP answer of an error.

    A timer for each request would cost more than all of this; instead all connections are looked through
    four times a second.
    """

    def __init__(self, options: HttpOptions, metrics: Metrics, refusal: Callable[[Refused], bytes]) -> None:
        self.refusal = refusal
        self.now = asyncio.get_running_loop().time()
        """The loop's clock at the last look."""
        self.buffered = 0
        """Bytes of all requests that are not answered yet, unpacked, and of answers that nobody has read."""
        self.count = metrics.refused
        self.adopt(options)
        self._open: dict[Client, None] = {}
        """All that are open; of those that wait equally long, the first began to wait first."""
        self._of_origin: Counter[Hashable] = Counter()
        """How many connections are open from each address."""
        self._evictable: Evictable | None = None
        """What there is to close for new ones, as it was at the last look; None: nobody has asked since."""
        self._lingering: list[tuple[float, socket.socket]] = []
        self._relief: asyncio.Handle | None = None
        metrics.connections.set_function(lambda: len(self._open))
        metrics.buffered.set_function(lambda: self.buffered)

    def adopt(self, options: HttpOptions) -> None:
        """Keep these limits from now on."""
        self._most = options.max_connections
        self._most_of_address = options.max_connections_per_address
        self._peers = Peers(options.trusted_proxies)
        self._most_buffered = int(options.max_buffered)
        self._far_too_much = self._most_buffered + self._most_buffered // 4 + _AHEAD
        self._limits = {
            "request": float(options.idle_timeout),
            "headers": float(options.header_timeout),
            "body": float(options.body_timeout),
            "end": float(options.header_timeout),
        }

    # What a connection tells of itself

    def opened(self, client: Client) -> None:
        self._open[client] = None
        self._of_origin[client.origin] += 1

    def closed(self, client: Client) -> None:
        if not client.is_open:
            return
        client.is_open = False
        client.exchange = None  # the two refer to each other, and would wait for the garbage collector
        self.release(client, client.received)
        self._open.pop(client, None)
        self._of_origin[client.origin] -= 1
        if not self._of_origin[client.origin]:
            del self._of_origin[client.origin]

    def began(self, client: Client, phase: Phase) -> None:
        client.phase = phase
        client.since = self.now

    def arrived(self, client: Client, count: int) -> None:
        if client.phase == "request":
            self.began(client, "headers")
        self.held(client, count)

    def held(self, client: Client, count: int) -> None:
        """So many bytes more are kept of a connection: of a request, of what comes behind it, or of its answer."""
        if not client.is_open:
            return
        client.received += count
        self.buffered += count
        if self.buffered > self._most_buffered and self._relief is None:
            self._relief = asyncio.get_running_loop().call_soon(self._relieve)

    def is_far_too_much(self, count: int) -> bool:
        """Whether so many bytes cannot wait for `_relieve`: in one turn thousands of connections may bring as many."""
        return self.buffered > self._far_too_much and count > SMALL

    def refuse_at_once(self, client: Client) -> None:
        client.refuse(Unavailable(_TOO_MUCH), Refusal.TOO_MUCH_BUFFERED)

    def release(self, client: Client, count: int) -> None:
        client.received -= count
        self.buffered -= count

    def answered(self, client: Client, phase: Phase) -> None:
        if not client.is_open:
            return
        self.buffered -= client.received
        client.received = client.unread = 0
        client.phase = phase
        client.since = self.now
        del self._open[client]
        self._open[client] = None

    # What a request tells that has come whole

    def hand_over(self, client: Client, count: int) -> None:
        """The request has so many of the connection's bytes, and keeps them also where its client goes."""
        if client.is_open:
            client.received -= count
        else:
            self.buffered += count

    def unpacked(self, count: int) -> None:
        """A request has become so many bytes longer. Raises `Unavailable` where there is no room for them."""
        if self.buffered + count > self._most_buffered:
            self.count(Refusal.TOO_MUCH_BUFFERED)
            raise Unavailable(_TOO_MUCH)
        self.buffered += count

    def done_with(self, count: int) -> None:
        """So many bytes of a request are kept no longer."""
        self.buffered -= count

    # The limits

    def admit(self, sock: socket.socket, peer: str) -> Admitted | None:
        """Whether there is room for one more; if not, the client has been told. `peer` is its address."""
        origin = self._peers.origin(peer)
        if origin is not None and self._of_origin[origin] >= self._most_of_address:
            evicted = self._look_for_evictable().next_of(origin)
            if not self._make_room(evicted, _TOO_MANY_OF_ADDRESS, Refusal.TOO_MANY_OF_ADDRESS, sock):
                return None
        if len(self._open) >= self._most:
            evicted = self._look_for_evictable().next()
            if not self._make_room(evicted, _TOO_MANY, Refusal.TOO_MANY_CONNECTIONS, sock):
                return None
        return Admitted(origin)

    def _look_for_evictable(self) -> Evictable:
        if self._evictable is None:
            self._evictable = Evictable(self._open, self.now - _TICK)
        return self._evictable

    def _make_room(self, evicted: Client | None, told: str, reason: Refusal, newcomer: socket.socket) -> bool:
        if evicted is None:
            self.count(reason)
            with contextlib.suppress(OSError):  # it has gone again
                newcomer.send(self.refusal(Unavailable(told)))
            self.linger(newcomer)
            return False
        if evicted.phase in {"headers", "body"}:
            evicted.refuse(Unavailable(told), reason)
        if evicted.is_open:  # it was idle, or does not take what it is told
            evicted.close()
        return True

    def _relieve(self) -> None:
        """Refuse what has been arriving longest, until the rest fits: who sends at a good pace is not the cause.

        A client that does not read its answers goes in the same order, and so does what was sent behind a request that
        is being answered. But one connection may send ahead, or leave unread, as much as it can alone.
        """
        self._relief = None
        for client in sorted((client for client in self._open if client.received), key=lambda client: client.since):
            if self.buffered <= self._most_buffered:
                return
            if client.phase in {"headers", "body"}:
                client.refuse(Unavailable(_TOO_MUCH), Refusal.TOO_MUCH_BUFFERED)
            elif self.buffered <= self._most_buffered + _AHEAD:
                continue
            elif client.unread:
                self.count(Refusal.TOO_MUCH_BUFFERED)
                client.close()
            else:
                client.drop_rest()

    async def watch(self) -> None:
        """Keep the time limits, for as long as the daemon runs."""
        while True:
            self.look(asyncio.get_running_loop().time())
            await asyncio.sleep(_TICK)

    def look(self, now: float) -> None:
        """Close what has taken too long by this time."""
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
        self._lingering = [(end, sock) for end, sock in self._lingering if not _is_over(sock, late=now > end)]

    async def drain(self, grace: float, patience: float, forced: asyncio.Event) -> int:
        """Wait until all are closed, for at most `patience` seconds; returns how many requests are unanswered then.

        Answers must ask for the end of their connection from now on, and nobody be accepted. One on which nothing
        comes for `grace` seconds is closed: before that its client may be sending, and not know. In a hurry only
        requests that have come whole are waited for, and not long.
        """
        began = asyncio.get_running_loop().time()
        while True:
            now = asyncio.get_running_loop().time()
            self.look(now)
            if now - began >= grace:
                self._close_quiet()
            if forced.is_set():
                patience = min(patience, now - began + _FORCED)
            waited = self._in("answer") if forced.is_set() else self._open or self._lingering
            if not waited or now - began >= patience:
                return len(self._in("headers", "body", "answer"))
            await asyncio.sleep(_DRAIN_TICK)

    def _in(self, *phases: Phase) -> list[Client]:
        return [client for client in self._open if client.phase in phases]

    def _close_quiet(self) -> None:
        """Close those that wait for a request, but for one whose request is there and was not read yet."""
        poll = select.poll()
        quiet = {client.descriptor(): client for client in self._in("request")}
        quiet.pop(-1, None)
        for descriptor in quiet:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0):
            del quiet[descriptor]
        for client in quiet.values():
            client.close()

    def linger(self, sock: socket.socket) -> None:
        """Read on for a moment from a connection that is done with, so that the client can read its answer.

        To close it while more is arriving would make the client's system throw the answer away.
        """
        try:
            rest = sock.dup()
        except OSError:  # no descriptors are left, and an answer may be lost
            return
        rest.setblocking(False)
        with contextlib.suppress(OSError):  # it has gone already, as the first read will tell
            rest.shutdown(socket.SHUT_WR)
        if not _is_over(rest, late=len(self._lingering) >= _MOST_LINGERING):
            self._lingering.append((self.now + _LINGER, rest))

    def close(self) -> None:
        """Let go of what lingers."""
        for _, sock in self._lingering:
            sock.close()
        self._lingering = []


def _is_over(sock: socket.socket, *, late: bool) -> bool:
    """Throw away what has come; whether that was all, or it is late: then the socket is closed."""
    try:
        over = not all(sock.recv(_CHUNK) for _ in range(16))
    except BlockingIOError:
        over = False
    except OSError:
        over = True
    if over or late:
        sock.close()
    return over or late
