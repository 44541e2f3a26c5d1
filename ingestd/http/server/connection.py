"""A client's connection to the fast server. It reads one request at a time, after the answer to the one before."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from tornado.httputil import HTTPHeaders, HTTPInputError

from ingestd.api.errors import HeadersTooLarge
from ingestd.api.outcomes import Refusal
from ingestd.http.body import MOST_BODY
from ingestd.http.client_connection import Client, RequestReader, head_of, malformed

from .body import Body, ChunkedBody, FixedBody
from .head_parser import (
    HEAD_END,
    LongName,
    Malformed,
    body_length,
    ends_wrongly,
    is_persistent,
    name_too_long,
    parse_head,
    wants_to_continue,
)

if TYPE_CHECKING:
    from ingestd.http.connection_limits import Admitted

    from .server import FastServer

__all__ = ["FastConnection"]

log = logging.getLogger("ingestd.http")

_MOST_HELD = 65536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class FastConnection(asyncio.BufferedProtocol, Client):
    """One connection. While a request is being answered, the bytes behind it are held.

    Beyond 64 KiB the connection stops reading until the answer, and the rest stays in the client's system. All
    connections read into one buffer, because each copies its bytes before another reads.
    """

    def __init__(self, server: FastServer, admitted: Admitted) -> None:
        Client.__init__(self, server.connections, admitted)
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._version = ""
        """Of the request that is being read or answered."""
        self._last = False
        """Whether the connection ends with the answer to that request."""
        self._reader: RequestReader | None = None
        """Of the request that has not come whole."""
        self._body: Body = FixedBody(0)
        self._rest = b""
        """Bytes that have arrived and are not parsed yet, such as the start of a head."""
        self._ended = False
        """Whether the client has closed its sending side."""

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # other loops' transports are not of asyncio's class
        self._transport.set_write_buffer_limits(0)  # so that asyncio reports when all bytes have gone out
        if self.phase == "closed":
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.buffer

    def buffer_updated(self, count: int) -> None:
        if self.phase in {"end", "closed"}:
            return
        data = self._server.view[:count].tobytes()
        if self._rest:
            data = self._rest + data
        self._rest = data
        if not self._is_holding():
            self.connections.arrived(self, count)
            if self.connections.is_far_too_much(count):
                self.connections.refuse_at_once(self)
            else:
                self._parse()
            return
        self.connections.held(self, count)
        if self.connections.is_far_too_much(count):
            if self.phase == "answer":
                self.drop_rest()
            else:  # the request is answered, and these bytes belong to the next one
                self.connections.refuse_at_once(self)
        if len(self._rest) > _MOST_HELD:
            self._pause()

    def eof_received(self) -> bool:
        """Return whether the connection stays open: the client may still wait for an answer."""
        self._ended = True
        return self._is_holding() or self.phase == "end"

    def pause_writing(self) -> None:
        """The transport tells how much is left to write."""

    def resume_writing(self) -> None:
        """Continue when the client has taken all bytes."""
        self.release(self.unread)
        self.unread = 0
        if self.phase == "end":
            self._leave()
        elif self.phase == "answered":
            self._go_on_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.move(self, "closed")
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.on_connection_close()
        self._server.lost(self)

    # Reading

    def _parse(self) -> None:
        """Parse the bytes that have arrived, as far as possible."""
        try:
            if self.phase == "body":
                self._read_body()
            else:
                self._read_head()
        except (Malformed, HTTPInputError):
            # A malformed head at once, and a malformed body late, since its chunks and its connection cost more.
            self.refuse_late(malformed(), Refusal.MALFORMED)
        except LongName:
            self.refuse(name_too_long(), Refusal.HEADERS_TOO_LARGE)
        except Exception:
            log.exception("a request could not be passed to its handler")
            self.close()

    def _read_head(self) -> None:
        data = self._rest
        end = data.find(HEAD_END) + len(HEAD_END)
        most = self._server.max_header_size
        if not len(HEAD_END) <= end <= most:
            if ends_wrongly(data, most):
                raise Malformed
            if len(data) > most:
                too_large = HeadersTooLarge("The headers are larger than this server takes.")
                self.refuse(too_large, Refusal.HEADERS_TOO_LARGE)
            return
        start_line, headers = parse_head(data[:end])
        self._rest = rest = data[end:]
        self._version, self._last = start_line.version, not is_persistent(start_line, headers)
        self.connections.move(self, "body")
        self._reader = reader = self._server.start_request(self)
        reader.headers_received(start_line, headers)
        if self.phase != "body":  # answered, and so refused
            return
        length = body_length(start_line, headers)
        if length is not None and length <= len(rest):  # as most requests come
            self._rest = rest[length:]
            if length:
                reader.data_received(rest[:length])
            if self.phase == "body":
                self._end_request(reader)
            return
        if length is not None and length > MOST_BODY:
            raise Malformed
        self._body = ChunkedBody(MOST_BODY) if length is None else FixedBody(length)
        if not rest and wants_to_continue(start_line, headers):
            self.send_raw(_CONTINUE)
        self._read_body()

    def _read_body(self) -> None:
        body, reader = self._body, self._reader
        assert reader is not None
        while not (body.done or body.malformed):
            if not self._rest:
                return
            piece = body.feed(self._rest)
            self._rest = body.rest
            if piece:
                reader.data_received(piece)
            if self.phase != "body":
                return
        if body.malformed:
            raise Malformed
        self._end_request(reader)

    def _end_request(self, reader: RequestReader) -> None:
        self.connections.move(self, "answer")
        reader.finish()
        self._reader = None

    def _go_on_soon(self) -> None:
        """Parse held bytes in a later turn of the event loop, so that other connections get a turn.

        This runs in a copy of the server's context, because the bytes belong to another request.
        """
        asyncio.get_running_loop().call_soon(self._go_on, context=self._server.context.copy())

    def _go_on(self) -> None:
        if self.phase == "answered":  # it was not refused meanwhile
            self.connections.move(self, "headers" if self._rest else "request")
            self._parse_held()

    def _parse_held(self) -> None:
        """Parse the bytes that have been held, and read on unless nothing more is parsed or 64 KiB are held again."""
        if self._rest:
            self._parse()
        transport = self._transport
        assert transport is not None
        enough = self._is_holding() and (self._last or len(self._rest) > _MOST_HELD)
        if not enough and self.phase not in {"end", "closed"} and not transport.is_reading():
            transport.resume_reading()
        if self._ended and self.phase in {"request", "headers", "body"}:
            self.close()

    def _is_holding(self) -> bool:
        """Whether bytes that arrive are held, and not parsed yet."""
        return self.phase == "answer" or self.phase == "answered"  # noqa: PLR1714 - as in `Connections.move`

    # Writing

    def respond(self, status: int, headers: HTTPHeaders, body: bytes) -> None:
        if headers.get("Connection", "").lower() == "close":
            self._last = True
        elif self._version == "HTTP/1.0":
            if not self._last:
                headers["Connection"] = "Keep-Alive"
        elif self._last and self._version == "HTTP/1.1":
            headers["Connection"] = "close"
        self.answer(head_of(status, headers.get_all()) + body)

    def answer(self, data: bytes) -> None:
        """Write an answer, and go on to the next request or end the connection."""
        transport = self._transport
        if self.phase not in {"body", "answer"} or transport is None:  # the client has gone, or was refused
            return
        transport.write(data)
        if self._last or self.phase == "body":  # the rest of a body would be taken for the next request
            self.close_after_flush()
            return
        unread = transport.get_write_buffer_size()
        if not (unread or self._rest or self._ended):
            self.connections.move(self, "request")
            return
        self.connections.move(self, "answered")
        self.connections.held(self, len(self._rest))
        if unread:
            self._hold_unread(unread)
        else:
            self._go_on_soon()

    def _hold_unread(self, count: int) -> None:
        """Count the bytes of answers that the client has not taken, until it takes them."""
        self.unread = count
        self.connections.held(self, count)

    # Closing

    def descriptor(self) -> int:
        transport = self._transport
        descriptor: int = -1 if transport is None else transport.get_extra_info("socket").fileno()
        return descriptor

    def send_raw(self, answer: bytes) -> None:
        if self._transport is not None:
            self._transport.write(answer)

    def drop_rest(self) -> None:
        """Discard the bytes behind the request. They began further requests, so the connection ends with the answer."""
        if self._rest and self.phase == "answer":
            self.release(len(self._rest))
            self._rest = b""
            self._last = True
            self._pause()

    def stop_reading(self) -> None:
        self.connections.move(self, "answer")
        self._last = True
        self._rest = b""
        self._pause()

    def _pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def close_after_flush(self) -> None:
        if self.phase in {"end", "closed"}:
            return
        self._rest = b""
        self.connections.move(self, "end")
        unread = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unread:
            self._hold_unread(unread)
        else:
            self._leave()

    def _leave(self) -> None:
        """Close. Even with `Connection: close` a client may have sent more than was read."""
        assert self._transport is not None
        if not self._ended:
            self.connections.linger(self._transport.get_extra_info("socket"))
        self.connections.move(self, "closed")
        self._transport.close()

    def close(self) -> None:
        if self.phase != "closed":
            self.connections.move(self, "closed")
            if self._transport is not None:
                self._transport.abort()
