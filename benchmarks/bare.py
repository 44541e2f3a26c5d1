"""What ingestd is measured against: Tornado that parses a JSON body and answers a small one, and no more.

`bare.py handler` is a RequestHandler, `bare.py delegate` the level below it. Prints the port it took.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler


def answer(body: bytes) -> dict[str, object]:
    visitor = json.loads(body)["anonymousId"]
    return {"success": True, "session": {"sessionId": visitor, "isNew": False}}


class BareHandler(RequestHandler):
    def post(self) -> None:
        self.write(answer(self.request.body))


class BareDelegate(HTTPServerConnectionDelegate):
    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        return BareMessage(request_conn)


class BareMessage(HTTPMessageDelegate):
    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self._body = b""

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        return None

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._body += chunk
        return None

    def finish(self) -> None:
        body = json.dumps(answer(self._body)).encode()
        headers = HTTPHeaders({"Content-Type": "application/json", "Content-Length": str(len(body))})
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", 200, "OK"), headers, body)
        self._connection.finish()


async def main() -> None:
    server = HTTPServer(BareDelegate() if sys.argv[1] == "delegate" else Application([("/.*", BareHandler)]))
    sockets = bind_sockets(0, "127.0.0.1", backlog=1024)
    server.add_sockets(sockets)
    print(sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
