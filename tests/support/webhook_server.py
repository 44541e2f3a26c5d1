"""The receivers of a webhook: a real HTTP(S) server in a thread, and a server that answers with any bytes."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from .daemon import PATIENCE, Reply
from .ports import free_port

__all__ = ["Received", "WebhookServer", "make_certificate", "raw_server", "webhook_server"]


@dataclass(frozen=True)
class Received:
    """One complete request. Header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body

    @property
    def records(self) -> list[Any]:
        values = json.loads(self.content)
        assert isinstance(values, list)
        return values


def _take(_: Received) -> Reply | None:
    return Reply(204, {}, b"")


class WebhookServer:
    """A server that answers 204 unless `answer` returns another answer. If it returns None, there is no answer."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self.received: list[Received] = []
        """All requests, including refused ones."""
        self.taken: list[Received] = []
        """The requests that were answered 2xx."""
        self.answer: Callable[[Received], Reply | None] = _take
        self.silent = 0
        """The number of requests that wait for an answer now."""
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/in"

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(started),))
        self._thread.start()
        assert started.wait(PATIENCE)

    def stop(self) -> None:
        """Closes all connections and stops listening."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(PATIENCE)
            self._thread = None

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        application = Application([(r".*", _Handler, {"server": self})], log_function=lambda _: None)
        http = HTTPServer(application, ssl_options=self._tls)
        http.listen(self.port, "127.0.0.1")
        started.set()
        await self._stopping.wait()
        http.stop()
        await http.close_all_connections()

    async def keep_waiting(self, gone: asyncio.Event) -> None:
        self.silent += 1
        waiting = [asyncio.ensure_future(event.wait()) for event in (gone, self._stopping)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        self.silent -= 1


class _Handler(RequestHandler):
    def initialize(self, server: WebhookServer) -> None:
        self._server = server
        self._gone = asyncio.Event()

    def on_connection_close(self) -> None:
        self._gone.set()

    async def post(self) -> None:
        request = self.request
        headers = {name.lower(): value for name, value in request.headers.get_all()}
        received = Received(request.uri or "", headers, request.body)
        self._server.received.append(received)
        reply = self._server.answer(received)
        if reply is None:
            await self._server.keep_waiting(self._gone)
            return
        if 200 <= reply.status < 300:
            self._server.taken.append(received)
        self.set_status(reply.status)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        if reply.status not in {204, 304}:
            self.write(reply.body)


@contextmanager
def webhook_server(tls: ssl.SSLContext | None = None) -> Iterator[WebhookServer]:
    server = WebhookServer(tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def raw_server(answer: bytes, *, reads: bool = True, hangs: bool = False) -> Iterator[int]:
    """The port of a server that answers every request with these bytes, and then closes the connection or `hangs`.

    Unless it `reads`, it answers after the first bytes of a request.
    """
    ending = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(PATIENCE)
            if reads:
                _read_request(connection)
            else:
                connection.recv(1)
            connection.sendall(answer)
            if hangs:
                ending.wait(PATIENCE)

    def serve() -> None:
        while not ending.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                talks.append(threading.Thread(target=talk, args=(connection,)))
                talks[-1].start()

    talks: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ending.set()
            for each in [thread, *talks]:
                each.join(PATIENCE)


def _read_request(connection: socket.socket) -> None:
    got = b""
    while b"\r\n\r\n" not in got:
        chunk = connection.recv(65536)
        if not chunk:
            return
        got += chunk
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
    left = length - len(body)
    while left > 0:
        chunk = connection.recv(65536)
        if not chunk:
            return
        left -= len(chunk)


def make_certificate(folder: Path, *, name: str = "localhost") -> tuple[ssl.SSLContext, Path]:
    """A self-signed certificate for a server of this name: the server's TLS context, and the certificate's file."""
    key, certificate = folder / f"{name}-key.pem", folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=DNS:{name}", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate
