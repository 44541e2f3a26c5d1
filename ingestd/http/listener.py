"""The HTTP server below the ingest endpoints: Tornado's, with limits on all that a client may take up."""

from __future__ import annotations

from http.client import responses
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

from ..answers import problem
from ..config import HttpOptions
from ..errors import Refused
from ..ids import time_uuid
from ..metrics import Metrics
from .app import Ingest
from .connections import Connections
from .stream import IngestStream

__all__ = ["IngestServer"]

_READ_AT_ONCE = 65536


class IngestServer(HTTPServer):
    """Serves `ingest`. `connections.watch()` must be running, for the time limits.

    Every answer is sent at once: TCP_NODELAY is set for good, not switched on and off for each answer, as
    Tornado does with two system calls a request.
    """

    connections: Connections

    def initialize(self, ingest: Ingest, options: HttpOptions, metrics: Metrics) -> None:  # type: ignore[override]  # Tornado's way of subclassing: the arguments are the class's own
        self.connections = Connections(options, metrics, lambda refused: _closing_answer(refused, ingest))
        # What a connection reads ahead of what is wanted of it stays below this.
        self._room = int(options.max_header_size) + 4 * _READ_AT_ONCE
        super().initialize(ingest, max_header_size=int(options.max_header_size))
        self.conn_params.header_timeout = None  # else a timer for each request

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if not self.connections.admit(stream.socket):
            stream.close()
            return
        client = IngestStream(stream.socket, self.connections, max_buffer_size=self._room)
        client.set_nodelay(True)
        client.set_nodelay = _leave_nodelay  # type: ignore[method-assign]  # the connection calls it on this stream
        super().handle_stream(client, address)

    async def close_all_connections(self) -> None:
        await super().close_all_connections()
        self.connections.close()


def _leave_nodelay(value: bool) -> None:
    """It is on already."""


def _closing_answer(refused: Refused, ingest: Ingest) -> bytes:
    """The whole answer to what is not even a request, as to one of no origin."""
    answer, request_id = problem(refused), time_uuid()
    ingest.access.answered(
        "-", None, answer.status, code=answer.code, seconds=0, size=0, peer="", request_id=request_id
    )  # fmt: skip
    headers = [
        *ingest.cors.headers({}),
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("X-Request-Id", request_id),
        ("Connection", "close"),
    ]
    if answer.retry_after is not None:
        headers.append(("Retry-After", str(answer.retry_after)))
    lines = [f"HTTP/1.1 {answer.status} {responses[answer.status]}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode() + answer.body
