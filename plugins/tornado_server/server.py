"""Tornado's HTTP server for the public listener, with limits on each resource that a client can take up."""

from __future__ import annotations

import asyncio
import socket
from asyncio import Future
from collections.abc import Awaitable
from http.client import responses
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError

from ingestd.api.errors import HeadersTooLarge
from ingestd.api.outcomes import Refusal
from ingestd.config import HttpOptions
from ingestd.http.body import MOST_BODY
from ingestd.http.client_connection import Client, RequestReader, StartRequest, accept_queued, malformed
from ingestd.http.connection_limits import SMALL, Admitted, Connections
from ingestd.http.server.body import ChunkedBody
from ingestd.http.server.head_parser import has_long_name, name_too_long

__all__ = ["IngestServer"]

_TORNADO_S_400 = b"HTTP/1.1 400 Bad Request\r\n\r\n"
_READ_AT_ONCE = 65536
_READ_IN_A_TURN = 4 * _READ_AT_ONCE  # bytes of a body in chunks, at least: a turn of the loop costs as much as a read
_OF_HEADER = 250  # bytes that Tornado keeps for a header in addition to its line


class IngestServer(HTTPServer):
    """Serves requests that `start_request` reads. `connections.watch()` must be running, for the time limits.

    TCP_NODELAY is set once for each connection, so every answer is sent at once. Tornado sets and clears it for each
    answer, with two system calls a request.
    """

    def initialize(  # type: ignore[override]  # Tornado's way of subclassing: the arguments are the class's own
        self, start_request: StartRequest, options: HttpOptions, connections: Connections
    ) -> None:
        self._start_request = start_request
        self._limits = connections
        super().initialize(self, max_body_size=MOST_BODY)
        self.conn_params.header_timeout = None  # else a timer for each request
        self.apply_options(options)

    def apply_options(self, options: HttpOptions) -> None:
        self.conn_params.max_header_size = int(options.max_header_size)
        # The limit on the bytes that a new connection reads ahead.
        self._room = int(options.max_header_size) + 4 * _READ_AT_ONCE

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        sock: socket.socket = stream.socket
        admitted = self._limits.admit(sock, address)
        if admitted is None:
            stream.close()
            return
        client = IngestStream(sock, self._limits, admitted, max_buffer_size=self._room)
        client.set_nodelay(True)
        client.set_nodelay = _leave_nodelay  # type: ignore[method-assign]  # Tornado's connection calls it on this stream
        super().handle_stream(client, address)

    def accept_queued(self) -> None:
        """Accept the connections in the sockets' queues, without waiting for more."""
        for sock in self._sockets.values():
            accept_queued(sock, self._handle_connection)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        assert isinstance(request_conn, HTTP1Connection)
        stream = request_conn.stream
        assert isinstance(stream, IngestStream)
        stream.begin_request(request_conn)
        request_conn._read_chunked_body = stream.read_chunked_body  # type: ignore[method-assign]
        return Watched(self._start_request(stream), stream)

    async def close_all_connections(self) -> None:
        await super().close_all_connections()
        self._limits.close()


def _leave_nodelay(value: bool) -> None:
    """Do nothing: TCP_NODELAY is already set."""


class IngestStream(IOStream, Client):
    """Follows what Tornado's connection reads, and writes the refusals that Tornado would send without a body."""

    def __init__(
        self, sock: socket.socket, connections: Connections, admitted: Admitted, *, max_buffer_size: int
    ) -> None:
        IOStream.__init__(self, sock, max_buffer_size=max_buffer_size)
        Client.__init__(self, connections, admitted)
        self._lingers = False
        """Whether the client may still be sending when Tornado closes the connection."""
        self._request: HTTP1Connection | None = None
        """Tornado's side of the request that is being read or answered."""

    def begin_request(self, request: HTTP1Connection) -> None:
        self._request = None if self.closed() else request  # Tornado begins one more behind the end

    def respond(self, status: int, headers: HTTPHeaders, body: bytes) -> None:
        request = self._request
        if request is not None:
            request.write_headers(ResponseStartLine("HTTP/1.1", status, responses[status]), headers, body)
            self._finish(request, len(body), last=headers.get("Connection") == "close")

    def answer(self, data: bytes) -> None:
        request = self._request
        if request is not None:
            request.write(data)  # Tornado lets it begin with a head, if nothing need be said of the connection
            self._finish(request, len(data), last=False)

    def _finish(self, request: HTTP1Connection, written: int, *, last: bool) -> None:
        # If the answer came before the end of the request, the rest would be taken for the next request.
        self.connections.move(self, "end" if last or self.phase != "answer" else "request")
        self.unread = written if self.writing() else 0
        self.connections.held(self, self.unread + self.ahead)  # until the next answer
        if last:
            self._lingers = True
            # Tornado would decide by the request alone.
            request._disconnect_on_finish = True
        self._request = None  # it refers to this stream
        request.finish()

    @property
    def ahead(self) -> int:
        """Bytes that have arrived behind those that Tornado has consumed."""
        return self._read_buffer_size

    def descriptor(self) -> int:
        descriptor: int = -1 if self.closed() else self.socket.fileno()
        return descriptor

    def send_raw(self, answer: bytes) -> None:
        super().write(answer)

    def stop_reading(self) -> None:
        self.connections.move(self, "answer")
        self.io_loop.update_handler(self.fileno(), IOLoop.ERROR)

    def drop_rest(self) -> None:
        self.close()  # the bytes are in a buffer of Tornado's

    def close_after_flush(self) -> None:
        self._lingers = True
        self.close()
        # Nothing reads the buffer any more, and Tornado keeps the stream for some turns.
        self._read_buffer, self._read_buffer_size = bytearray(), 0

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        if self.connections.is_far_too_much(len(buf)):  # thousands of connections are read in one turn
            if self.received >= SMALL:
                self.connections.refuse_at_once(self)
                return None
            buf = memoryview(buf)[:SMALL]
        count = super().read_from_fd(buf)
        if count:
            self.connections.arrived(self, count)
        elif count == 0 and not self.reading():
            # The client has finished sending, but may still wait for its answer. The system would report this end
            # again and again, and keep the event loop busy. The next read finds the end anyway.
            self.io_loop.update_handler(self.fileno(), IOLoop.ERROR)
            return None
        return count

    # Tornado reads on from the buffer of a closed stream, and loops for ever if the rest contains no line.

    def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> Awaitable[bytes]:
        """Read Tornado's next head: Tornado calls this for nothing else."""
        self._must_be_open()
        return self._read_head(super().read_until_regex(regex, max_bytes))

    async def _read_head(self, coming: Awaitable[bytes]) -> bytes:
        try:
            head = await coming
        finally:
            del coming  # its error refers to this frame, and the stream's buffer would wait for the garbage collector
        if has_long_name(head):
            self.refuse(name_too_long(), Refusal.HEADERS_TOO_LARGE)
            raise StreamClosedError(real_error=self.error)
        self.connections.held(self, head.count(b"\n") * _OF_HEADER)
        return head

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        # Tornado would read on at once. This read ends when the stream is closed.
        return self._start_read() if self.phase == "answer" else super().read_bytes(num_bytes, partial)

    async def read_chunked_body(self, delegate: HTTPMessageDelegate) -> None:
        """Read a body in chunks as the fast server does. Tornado's own reader takes twenty times as long for each."""
        body = ChunkedBody(MOST_BODY)
        read = 0
        while not body.done:
            self._must_be_open()
            data = await self.read_bytes(_READ_AT_ONCE, partial=True)
            piece = body.feed(data)
            if piece:
                delegate.data_received(piece)
            if body.malformed:
                over = asyncio.Event()
                if self.hold_back(over.set):
                    await over.wait()
                    self._must_be_open()
                raise HTTPInputError("the body is not in valid chunks")
            read += len(data)
            if read >= _READ_IN_A_TURN:  # let other connections have a turn
                read = 0
                await asyncio.sleep(0)
        self._read_buffer[:0] = body.rest
        self._read_buffer_size += len(body.rest)

    def _must_be_open(self) -> None:
        if self.closed():
            raise StreamClosedError(real_error=self.error)

    def write(self, data: bytes | memoryview) -> Future[None]:
        if data == _TORNADO_S_400:
            self.refuse(malformed(), Refusal.MALFORMED)
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return super().write(data)

    def close(self, exc_info: Any = False) -> None:
        if self.closed():
            return
        if isinstance(exc_info, UnsatisfiableReadError) and not self._lingers:
            too_large = HeadersTooLarge("The headers are larger than this server takes.")
            self.refuse(too_large, Refusal.HEADERS_TOO_LARGE)
            return
        if self._lingers:
            self.connections.linger(self.socket)
        self.connections.move(self, "closed")
        self._request = None
        super().close(exc_info)
        if self.error is not None:
            # The error's frames refer to this stream. Its buffers would wait for the garbage collector.
            self.error.__traceback__ = self.error.__context__ = None


class Watched(HTTPMessageDelegate):
    """Hands a request on to its reader, and tells the stream how far the request has come."""

    def __init__(self, reader: RequestReader, stream: IngestStream) -> None:
        self._reader = reader
        self._stream = stream
        self._begun = False

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, RequestStartLine)
        if self._stream.closed():  # what is left in its buffer came behind the last request
            return
        self._begun = True
        self._stream.connections.move(self._stream, "body")
        self._reader.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> None:
        # Tornado reads all bytes that have arrived on a connection before it turns to another.
        if self._stream.connections.is_far_too_much(len(chunk)):
            self._stream.connections.refuse_at_once(self._stream)
        if self._begun:
            self._reader.data_received(chunk)

    def finish(self) -> None:
        if self._begun:
            self._stream.connections.move(self._stream, "answer")
            self._reader.finish()

    def on_connection_close(self) -> None:
        if self._begun:
            self._reader.on_connection_close()
