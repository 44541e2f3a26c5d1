"""A client's connection to either HTTP server, with the phase of its request.

`Connections` sets the limits and moves a connection from phase to phase. Each server has a subclass of `Client`, which
reports what has arrived.
"""

from __future__ import annotations

import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http.client import responses
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tornado.httputil import HTTPHeaders, RequestStartLine

from ingestd.api.errors import BadRequest, Refused
from ingestd.api.outcomes import Refusal

if TYPE_CHECKING:
    from .connection_limits import Admitted, Connections
    from .ingest import Exchange

__all__ = ["Client", "Phase", "RequestReader", "StartRequest", "accept_queued", "head_of", "malformed"]

_LINE_END = re.compile("[\r\n]")

_MOST_QUEUED = 4096
"""More connections than a queue holds. Others arrive while it is emptied, and a flood must not keep the loop going."""


Phase = Literal["request", "headers", "body", "answer", "answered", "end", "closed"]
"""The phases of a connection: it waits for the first byte of a request, the rest of its headers, its body, its answer.

In "answered" the next request must wait until the client has taken the answer, or for a turn of the event loop. In
"end" the connection takes no further request, and closes when the client has taken the last answer. `Connections.move`
alone changes the phase. (Comparing strings takes half as long as looking up a member of an enumeration.)
"""


class Client(ABC):
    def __init__(self, connections: Connections, admitted: Admitted) -> None:
        self.connections = connections
        self.address, self.origin = admitted
        self.phase: Phase = "request"
        self.since = connections.now
        """The loop's time when the phase began, to a quarter of a second."""
        self.received = 0
        """Bytes in memory: of an incomplete request, of requests behind it, of unread answers."""
        self.unread = 0
        """Bytes of answers that the client has not taken."""
        self.exchange: Exchange | None = None
        """The request whose headers have arrived. It writes its refusal."""
        connections.opened(self)

    def release(self, count: int) -> None:
        """Stop counting so many bytes of the request, because they are not kept."""
        if self.phase != "closed":  # otherwise all bytes are released already
            self.connections.release(self, count)

    @abstractmethod
    def respond(self, status: int, headers: HTTPHeaders, body: bytes) -> None:
        """Answer the request, once. `headers` have the Content-Length, if the status allows one."""

    @abstractmethod
    def answer(self, data: bytes) -> None:
        """Answer the request, once, with bytes that are the head and the body."""

    # The end of the connection

    def refuse(self, refused: Refused, reason: Refusal) -> None:
        """Refuse a request without reading it to its end, and close."""
        self.connections.count(reason)
        if self.exchange is not None:
            self.exchange.refuse(refused)
        elif self.phase not in {"end", "closed"}:
            self.send_raw(self.connections.refusal(refused))
        self.close_after_flush()

    def refuse_late(self, refused: Refused, reason: Refusal) -> None:
        """Refuse a request as `refuse` does, but a second late beside single events, and read nothing meanwhile."""
        if not self.hold_back(partial(self._refuse_held, refused, reason)):
            self.refuse(refused, reason)

    def hold_back(self, send: Callable[[], None]) -> bool:
        """Beside single events, read no more of the request and call `send` a second later. Returns whether so."""
        if self.exchange is None or not self.exchange.hold_back(send):
            return False
        self.release(self.received)
        self.stop_reading()
        return True

    def _refuse_held(self, refused: Refused, reason: Refusal) -> None:
        if self.phase != "closed":
            self.refuse(refused, reason)

    @abstractmethod
    def stop_reading(self) -> None:
        """Let the request wait for its answer, and read no more of it. The rest stays in the client's system."""

    @abstractmethod
    def descriptor(self) -> int:
        """The descriptor of the socket; -1 while there is none."""

    @abstractmethod
    def send_raw(self, answer: bytes) -> None:
        """Send a whole answer, head and body, where no request exists to answer."""

    @abstractmethod
    def drop_rest(self) -> None:
        """Discard the bytes behind the request that is being answered."""

    @abstractmethod
    def close_after_flush(self) -> None:
        """Close, after the bytes already written have gone out if the client takes them.

        The client may still be sending. It must get its answer even so.
        """

    @abstractmethod
    def close(self) -> None:
        """Close at once."""


class RequestReader(Protocol):
    """A server gives it a request as it arrives, and goes on to the next request when this one is answered."""

    def headers_received(self, start_line: RequestStartLine, headers: Mapping[str, str]) -> None:
        """Called first. Raises `HTTPInputError` for a malformed request."""

    def data_received(self, chunk: bytes) -> None:
        """Called with each piece of the body."""

    def finish(self) -> None:
        """The request has arrived whole."""

    def on_connection_close(self) -> None:
        """The client left, and the server noticed. It may do so until the request has arrived whole."""


StartRequest = Callable[[Client], RequestReader]
"""Called by a server for each request, before the headers are received."""


def accept_queued(sock: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
    """Accept all queued connections of a socket, which the system would reset when the socket closes.

    The clients already take these connections for open.
    """
    for _ in range(_MOST_QUEUED):
        try:
            connection, address = sock.accept()
        except ConnectionAbortedError:  # the client has disconnected
            continue
        except OSError:  # the queue is empty, or no descriptors are left to serve a client
            return
        accepted(connection, address)


def head_of(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of an answer. Raises `ValueError` for a line's end within a header."""
    lines = [f"HTTP/1.1 {status} {responses[status]}", *(f"{name}: {value}" for name, value in headers)]
    for line in lines:
        if _LINE_END.search(line):
            raise ValueError(f"a line's end within a header: {line!r}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def malformed() -> BadRequest:
    return BadRequest("The request is not well-formed HTTP/1.1.", code="invalid_http")
