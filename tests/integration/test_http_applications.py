"""A Tornado application with plain RequestHandlers is served by the fast server as by Tornado's own."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.testing import bind_unused_port
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from ingestd.config import HttpOptions
from ingestd.http.connection_limits import Connections
from ingestd.http.server.server import FastServer
from ingestd.observability.metrics import Metrics

PATIENCE = 20.0
LARGE = 40_000_000  # more than the system takes in between


class Handler(RequestHandler):
    def set_default_headers(self) -> None:
        self.clear_header("Date")  # no two are the same


class Echo(Handler):
    """Says what it has understood of the request."""

    def get(self) -> None:
        self.answer()

    def head(self) -> None:
        self.answer()

    def post(self) -> None:
        self.answer()

    def answer(self) -> None:
        request = self.request
        self.write({
            "method": request.method, "path": request.path, "query": self.get_arguments("a"), "body": len(request.body),
            "headers": sorted(request.headers.get_all()), "list": request.headers.get_list("x-two"),
            "cookie": self.get_cookie("c"), "ip": request.remote_ip, "url": request.full_url().startswith("http://shop/"),
            "form": self.get_body_arguments("f"),
        })  # fmt: skip


class Later(Handler):
    async def get(self) -> None:
        await asyncio.sleep(0.001)
        self.write("later")


class InParts(Handler):
    async def get(self) -> None:
        for part in ("one", "", "two"):
            self.write(part)
            await self.flush()
        self.write("three")


class Tagged(Handler):
    def get(self) -> None:
        self.write("tagged")


class Away(Handler):
    def get(self) -> None:
        self.redirect("/echo")


class Nothing(Handler):
    def get(self) -> None:
        self.set_status(204)


class Last(Handler):
    def get(self) -> None:
        self.set_header("Connection", "close")
        self.write("last")


class Broken(Handler):
    def get(self) -> None:
        raise ZeroDivisionError


class Forbidding(Handler):
    def get(self) -> None:
        raise HTTPError(403)


@stream_request_body
class Counting(Handler):
    """Takes its time over each part of a body."""

    async def prepare(self) -> None:
        self.count = 0
        await asyncio.sleep(0.001)

    async def data_received(self, chunk: bytes) -> None:
        await asyncio.sleep(0.001)
        self.count += len(chunk)

    def post(self) -> None:
        self.write(str(self.count))


@stream_request_body
class Hasty(Handler):
    """Answers before the body has come."""

    def prepare(self) -> None:
        self.set_status(403)
        self.finish("no")

    def data_received(self, chunk: bytes) -> None:
        raise AssertionError("who is refused is not read")


class Large(Handler):
    async def get(self) -> None:
        self.application.settings["begun"].set()
        try:
            for _ in range(LARGE // 100_000):
                self.write(b"x" * 100_000)
                await self.flush()
        except StreamClosedError:
            self.application.settings["told"].append("closed")


class Waiting(Handler):
    """Waits for a client to go."""

    async def get(self) -> None:
        self.application.settings["begun"].set()
        await self.application.settings["gone"].wait()
        with pytest.raises(StreamClosedError):
            await self.finish("to nobody")

    def on_connection_close(self) -> None:
        self.application.settings["gone"].set()


@stream_request_body
class Abandoned(Handler):
    def data_received(self, chunk: bytes) -> None:
        self.application.settings["begun"].set()

    def on_connection_close(self) -> None:
        self.application.settings["gone"].set()


HANDLERS = [
    Echo, Later, InParts, Tagged, Away, Nothing, Last, Broken, Forbidding, Counting, Hasty, Large, Waiting, Abandoned
]  # fmt: skip


def application() -> Application:
    return Application(
        [(f"/{handler.__name__.lower()}", handler) for handler in HANDLERS],
        log_function=lambda handler: None, begun=asyncio.Event(), gone=asyncio.Event(), told=[],
    )  # fmt: skip


@asynccontextmanager
async def serving(name: str, app: Application) -> AsyncIterator[int]:
    server: HTTPServer | FastServer = HTTPServer(app)
    if name == "fast":
        options = HttpOptions()
        server = FastServer(app, options, Connections(options, Metrics(), lambda refused: b"HTTP/1.1 400 No\r\n\r\n"))
    sock, port = bind_unused_port()
    server.add_sockets([sock])
    try:
        yield port
    finally:
        server.stop()
        await server.close_all_connections()


async def said(port: int, data: bytes, *more: bytes) -> bytes:
    """All the server says to this until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE):
        for part in (data, *more):
            writer.write(part)
            await asyncio.sleep(0.01)
        answer = await reader.read()
    writer.close()
    return answer


LAST = b"GET /last HTTP/1.1\r\nHost: shop\r\n\r\n"
END = LAST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
HOST = b"Host: shop\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\nf=1&f=2"

REQUESTS = {
    "sync": b"GET /echo?a=1&a=%202 HTTP/1.1\r\nHost: shop\r\nX-Two: 1\r\nx-tWO: 2\r\nCookie: c=d; e=f\r\n\r\n",
    "async": b"GET /later HTTP/1.1\r\nHost: shop\r\n\r\n",
    "pipelined": b"GET /later HTTP/1.1\r\nHost: shop\r\n\r\n" * 3 + b"GET /echo HTTP/1.1\r\nHost: shop\r\n\r\n" * 3,
    "in parts": b"GET /inparts HTTP/1.1\r\nHost: shop\r\n\r\n",
    "in parts, HTTP/1.0": b"GET /inparts HTTP/1.0\r\n\r\n",
    "HTTP/1.0": b"GET /echo HTTP/1.0\r\n\r\n",
    "HTTP/1.0, kept": b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "head": b"HEAD /echo HTTP/1.1\r\nHost: shop\r\n\r\n",
    "form": b"POST /echo HTTP/1.1\r\n" + HOST + FORM,
    "chunks": b"POST /echo HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "redirect": b"GET /away HTTP/1.1\r\nHost: shop\r\n\r\n",
    "unchanged": b'GET /tagged HTTP/1.1\r\nHost: shop\r\nIf-None-Match: *\r\n\r\n',
    "no content": b"GET /nothing HTTP/1.1\r\nHost: shop\r\n\r\n",
    "not found": b"GET /nowhere HTTP/1.1\r\nHost: shop\r\n\r\n",
    "no method": b"PUT /tagged HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n",
    "refused": b"GET /forbidding HTTP/1.1\r\nHost: shop\r\n\r\n",
    "body in its own time": b"POST /counting HTTP/1.1\r\nHost: shop\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000,
    "chunks in their own time": b"POST /counting HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"3e8\r\n" + b"x" * 1000 + b"\r\n2\r\nxx\r\n0\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_a_handler_s_answer_is_the_same_to_the_byte(request_: bytes) -> None:
    async with serving("fast", application()) as fast, serving("tornado", application()) as tornado:
        ours, theirs = [_undated(await said(port, request_, END)) for port in (fast, tornado)]
    assert ours == theirs
    assert ours.startswith(b"HTTP/1.1 ")


def _undated(answer: bytes) -> bytes:
    return re.sub(rb"\r\nDate: [^\r]+", b"", answer)  # the second may have changed between the two


@pytest.mark.logs("Uncaught exception GET /broken")
async def test_a_handler_that_fails_is_a_500_and_the_connection_stays(http_server: str) -> None:
    async with serving(http_server, application()) as port:
        answer = await said(port, b"GET /broken HTTP/1.1\r\nHost: shop\r\n\r\n", END)
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.endswith(b"\r\n\r\nlast")


@pytest.mark.parametrize("lines", [b"", b"Host: a, b\r\n", b"Host: a/b\r\n", b"Host: a\r\nHost: b\r\n"])
async def test_what_a_handler_takes_for_malformed_is_a_400(http_server: str, lines: bytes) -> None:
    async with serving(http_server, application()) as port:
        answer = await said(port, b"GET /echo HTTP/1.1\r\n" + lines + b"\r\n", END)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"last" not in answer


async def test_a_handler_may_end_the_connection() -> None:
    async with serving("fast", application()) as port:  # Tornado's says so, and stays
        answer = await said(port, LAST + LAST)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b"Connection: close\r\n") == 1


async def test_an_answer_before_the_body_is_the_last(http_server: str) -> None:
    async with serving(http_server, application()) as port:
        start = b"POST /hasty HTTP/1.1\r\nHost: shop\r\nContent-Length: 10\r\n\r\n"
        answer = await said(port, start + b"12345")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"\r\n\r\nno")


async def test_a_body_is_asked_for_where_the_client_waits_to_be_asked(http_server: str) -> None:
    async with serving(http_server, application()) as port:
        start = b"POST /counting HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
        answer = await said(port, start, b"12345", END)
    interim, _, answer = answer.partition(b"\r\n\r\n")
    assert interim.startswith(b"HTTP/1.1 100 ")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.partition(b"\r\n\r\n")[2].startswith(b"5")


async def test_who_reads_slowly_gets_all_of_it(http_server: str) -> None:
    app = application()
    async with serving(http_server, app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /large HTTP/1.0\r\n\r\n")
        await app.settings["begun"].wait()
        count = 0
        async with asyncio.timeout(PATIENCE):
            while part := await reader.read(50_000):
                count += len(part.rpartition(b"\r\n\r\n")[2])
                await asyncio.sleep(0)
        writer.close()
    assert count == LARGE


def vanish(writer: asyncio.StreamWriter) -> None:
    """Go as a client does that crashes."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize(
    "start",
    [
        b"GET /waiting HTTP/1.1\r\nHost: shop\r\n\r\n",
        b"POST /abandoned HTTP/1.1\r\nHost: shop\r\nContent-Length: 10\r\n\r\n12345",
    ],
    ids=["while it is answered", "in its body"],
)
async def test_a_handler_is_told_that_its_client_has_gone(http_server: str, start: bytes) -> None:
    app = application()
    async with serving(http_server, app) as port, asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        await app.settings["begun"].wait()
        vanish(writer)
        await app.settings["gone"].wait()
        await asyncio.sleep(0.01)


async def test_who_goes_in_the_middle_of_its_answer_ends_it(http_server: str) -> None:
    app = application()
    told: list[str] = app.settings["told"]
    async with serving(http_server, app) as port, asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /large HTTP/1.1\r\nHost: shop\r\n\r\n")
        await app.settings["begun"].wait()
        vanish(writer)
        while not told:  # noqa: ASYNC110 - a list that a handler writes to
            await asyncio.sleep(0.001)
    assert told == ["closed"]
