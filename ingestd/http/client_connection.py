"""A caller's connection, whichever server it came to: how far its request has come, and since when.

`connections` sets the bounds. A server's own class of connections inherits `Client`, tells it how far a request is,
and does what it is asked: `send_raw`, `close_after_flush`, `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Literal, Protocol

from tornado.httputil import HTTPConnection

from ingestd.api.errors import BadRequest, Refused
from ingestd.api.outcomes import Refusal

if TYPE_CHECKING:
    from .connection_limits import Connections

__all__ = ["Client", "ClientConnection", "Phase", "malformed"]


Phase = Literal["request", "headers", "body", "answer", "end"]
"""What a connection waits for: the first byte of the next request, the rest of its headers, its body, its answer; or
nothing, and it is not to be used again. (To compare words takes half as long as to find a member of an enumeration.)
"""


class _Refusing(Protocol):
    def refuse(self, refused: Refused) -> None: ...


class Client(ABC):
    def __init__(self, connections: Connections, origin: Hashable) -> None:
        self.connections = connections
        self.origin = origin
        """What it is counted by, with others of its caller; None where it stands for many callers."""
        self.is_open = True
        """Whether it counts."""
        self.phase: Phase = "request"
        self.since = connections.now
        """When the phase began, by the loop's clock, to a quarter of a second."""
        self.received = 0
        """Bytes kept of it: of a request that has not come whole, of what came behind one, of unread answers."""
        self.unread = 0
        """Bytes of answers that its client has not taken."""
        self.lingers = False
        """Whether the client may still be sending when this is closed: it is to read its answer even so."""
        self.exchange: _Refusing | None = None
        """What words the refusal of the request whose headers have come, if it wants to."""
        connections.opened(self)

    # How far its request has come

    def reading_body(self) -> None:
        self.connections.began(self, "body")

    def read_whole(self) -> None:
        """The request has come to its end; what it gets of time now is not the client's."""
        self.phase = "answer"

    def answered(self, *, last: bool = False) -> None:
        self.exchange = None
        # After an answer before the end of its request, the next request could not be told from the rest.
        last = last or self.phase != "answer"
        self.connections.answered(self, "end" if last else "request")

    def release(self, count: int) -> None:
        """So many bytes of the request are not kept."""
        if self.is_open:  # else all of them have been let go
            self.connections.release(self, count)

    # What ends it

    def refuse(self, refused: Refused, reason: Refusal) -> None:
        """Answer a request that will not be read to its end, and close."""
        self.connections.count(reason)
        self.lingers = True
        if self.exchange is not None:
            self.exchange.refuse(refused)
        elif self.phase != "end":
            self.send_raw(self.connections.refusal(refused))
        self.close_after_flush()

    @abstractmethod
    def descriptor(self) -> int:
        """That of its socket; -1 while it has none."""

    @abstractmethod
    def send_raw(self, answer: bytes) -> None:
        """Send the whole answer to what nobody else can answer."""

    @abstractmethod
    def drop_rest(self) -> None:
        """Give up what has come behind the request that is being answered."""

    @abstractmethod
    def close_after_flush(self) -> None:
        """Close, but let what has been said go out if the client takes it."""

    @abstractmethod
    def close(self) -> None:
        """Close at once."""


class ClientConnection(HTTPConnection):
    """What a request is answered through: Tornado's interface, and whose request it is."""

    client: Client
    context: object
    """Its `remote_ip` is the address of the connection's other end."""

    def set_max_body_size(self, max_body_size: int) -> None:
        """Let this request's body be so large; to be called before it is read."""
        raise NotImplementedError

    def answer(self, data: bytes) -> None:
        """Send bytes that are the whole answer, its head and its body."""
        self.write(data)
        self.finish()


def malformed() -> BadRequest:
    return BadRequest("The request is not well-formed HTTP/1.1.", code="invalid_http")
