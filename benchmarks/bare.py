"""The baseline of the benchmarks: a RequestHandler that parses a JSON body and sends a small answer.

`bare.py handler` runs on Tornado's server, `bare.py fast` on ingestd's. Prints the port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from socket import socket

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from ingestd.config import HttpOptions
from ingestd.http.connection_limits import Connections
from ingestd.http.server.server import FastServer
from ingestd.observability.metrics import Metrics


def answer(body: bytes) -> dict[str, object]:
    visitor = json.loads(body)["anonymousId"]
    return {"success": True, "session": {"sessionId": visitor, "isNew": False}}


class BareHandler(RequestHandler):
    def post(self) -> None:
        self.write(answer(self.request.body))


def serve(kind: str, sockets: Sequence[socket]) -> None:
    application = Application([("/.*", BareHandler)])
    if kind == "handler":
        HTTPServer(application).add_sockets(sockets)
        return
    options = HttpOptions()
    connections = Connections(options, Metrics(), lambda refused: b"HTTP/1.1 %d \r\n\r\n" % refused.status)
    FastServer(application, options, connections).add_sockets(sockets)


async def main() -> None:
    sockets = bind_sockets(0, "127.0.0.1", backlog=1024)
    serve(sys.argv[1], sockets)
    print(sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
