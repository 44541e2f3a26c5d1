"""A client's connection: how far its request has come, and since when. `connections` sets the bounds."""

from __future__ import annotations

import socket
from asyncio import Future
from enum import Enum
from typing import TYPE_CHECKING, Any

from tornado.ioloop import IOLoop
from tornado.iostream import IOStream, UnsatisfiableReadError

from ..errors import BadRequest, HeadersTooLarge, Refused
from ..outcomes import Refusal

if TYPE_CHECKING:
    from .connections import Connections
    from .ingest import Exchange

__all__ = ["IngestStream", "Phase"]

_TORNADO_S_400 = b"HTTP/1.1 400 Bad Request\r\n\r\n"


class Phase(Enum):
    """What a connection waits for."""

    REQUEST = 1  # the first byte of the next one
    HEADERS = 2
    BODY = 3
    ANSWER = 4
    END = 5  # answered, and not to be used again


class IngestStream(IOStream):
    """Knows what Tornado's connection does with it, and words the answers that Tornado would leave bare."""

    def __init__(self, sock: socket.socket, connections: Connections, *, max_buffer_size: int) -> None:
        super().__init__(sock, max_buffer_size=max_buffer_size)
        self._connections = connections
        self._exchange: Exchange | None = None
        self.phase = Phase.REQUEST
        self.since = connections.now
        """When the phase began, by the loop's clock, to a quarter of a second."""
        self.received = 0
        """Bytes of the request that is not answered yet."""
        self.lingers = False
        """Whether the client may still be sending when this is closed: it is to read its answer even so."""
        connections.opened(self)

    def reading_body(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._connections.began(self, Phase.BODY)

    def read_whole(self) -> None:
        """The request has come to its end; what it gets of time now is not the client's."""
        self.phase = Phase.ANSWER

    def answered(self) -> None:
        self._exchange = None
        # After an answer before the end of its request, the next request could not be told from the rest.
        self._connections.answered(self, Phase.REQUEST if self.phase is Phase.ANSWER else Phase.END)

    def let_go(self, count: int) -> None:
        """So many bytes of the request are not kept."""
        self._connections.let_go(self, count)

    def refuse(self, refused: Refused, reason: Refusal) -> None:
        """Answer a request that will not be read to its end, and close."""
        self._connections.count(reason)
        self.lingers = True
        if self._exchange is not None:
            self._exchange.refuse(refused)
        elif self.phase is not Phase.END:
            super().write(self._connections.refusal(refused))
        self.close()

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        count = super().read_from_fd(buf)
        if count:
            self._connections.arrived(self, count)
        elif count == 0 and not self.reading():
            # The client has no more to send, and may wait for its answer all the same. To be told of the end
            # again and again meanwhile would keep the loop busy; the next read finds it anyway.
            self.io_loop.update_handler(self.fileno(), IOLoop.ERROR)
            return None
        return count

    def write(self, data: bytes | memoryview) -> Future[None]:
        if data == _TORNADO_S_400:
            self.refuse(_malformed(), Refusal.MALFORMED)
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return super().write(data)

    def close(self, exc_info: Any = False) -> None:
        if self.closed():
            return
        if isinstance(exc_info, UnsatisfiableReadError) and not self.lingers:
            if self._exchange is None:
                too_large = HeadersTooLarge("The headers are larger than this server takes.")
                self.refuse(too_large, Refusal.HEADERS_TOO_LARGE)
            else:  # the line before a chunk has no end
                self.refuse(_malformed(), Refusal.MALFORMED)
            return
        if self.lingers:
            self._connections.linger(self.socket)
        self._connections.closed(self)
        super().close(exc_info)


def _malformed() -> BadRequest:
    return BadRequest("The request is not well-formed HTTP/1.1.", code="invalid_http")
