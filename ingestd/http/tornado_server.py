"""Tornado's HTTP server for the public listener, with limits on each resource that a client can take up."""

from __future__ import annotations

import socket
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPMessageDelegate
from tornado.iostream import IOStream

from ingestd.config import HttpOptions

from .accepting import accept_queued, remote_ip
from .body import MOST_BODY
from .client_connection import StartRequest
from .connection_limits import Connections
from .tornado_stream import IngestStream, Watched

__all__ = ["IngestServer"]

_READ_AT_ONCE = 65536


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
        self.adopt(options)

    def adopt(self, options: HttpOptions) -> None:
        self.conn_params.max_header_size = int(options.max_header_size)
        # The limit on the bytes that a new connection reads ahead.
        self._room = int(options.max_header_size) + 4 * _READ_AT_ONCE

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        sock: socket.socket = stream.socket
        admitted = self._limits.admit(sock, remote_ip(sock, address))
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
