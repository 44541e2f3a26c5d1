"""The baseline of the benchmarks: a handler that parses a JSON body and sends a small answer.

`bare.py handler` is a RequestHandler on Tornado's server, `bare.py fast` does the same on ingestd's. Prints the port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from socket import socket

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, RequestStartLine
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from ingestd.config import HttpOptions
from ingestd.http.client_connection import Client
from ingestd.http.connection_limits import Connections
from ingestd.http.server.server import FastServer
from ingestd.observability.metrics import Metrics


def answer(body: bytes) -> dict[str, object]:
    visitor = json.loads(body)["anonymousId"]
    return {"success": True, "session": {"sessionId": visitor, "isNew": False}}


class BareHandler(RequestHandler):
    def post(self) -> None:
        self.write(answer(self.request.body))


class BareReader:
    """Reads a request of ingestd's server, and answers it."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._body = b""

    def headers_received(self, start_line: RequestStartLine, headers: Mapping[str, str]) -> None:
        """Ignores the headers."""

    def data_received(self, chunk: bytes) -> None:
        self._body += chunk

    def finish(self) -> None:
        body = json.dumps(answer(self._body)).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._connection.respond(200, HTTPHeaders(headers), body)

    def on_connection_close(self) -> None:
        """Has nothing to clean up."""


def serve(kind: str, sockets: Sequence[socket]) -> None:
    if kind == "handler":
        HTTPServer(Application([("/.*", BareHandler)])).add_sockets(sockets)
        return
    options = HttpOptions()
    connections = Connections(options, Metrics(), lambda refused: b"HTTP/1.1 %d \r\n\r\n" % refused.status)
    FastServer(BareReader, options, connections).add_sockets(sockets)


async def main() -> None:
    sockets = bind_sockets(0, "127.0.0.1", backlog=1024)
    serve(sys.argv[1], sockets)
    print(sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
