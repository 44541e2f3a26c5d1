"""An HTTP proxy before a daemon: it remembers each request with its answer, and can lose answers."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .daemon import PATIENCE, Reply

__all__ = ["Exchange", "RecordingProxy", "recording_proxy"]

_OF_A_CONNECTION = {"connection", "content-length", "transfer-encoding", "keep-alive"}


@dataclass(frozen=True)
class Exchange:
    """One request and the daemon's answer. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    reply: Reply
    at: float
    """When the answer came, by time.monotonic()."""
    lost: bool = False
    """Whether the connection was cut in place of the answer."""

    @property
    def key(self) -> str:
        """The write key: the user name of the authorization, or else that of the query."""
        scheme, _, credentials = self.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            return base64.b64decode(credentials).decode().partition(":")[0]
        return parse_qs(urlsplit(self.path).query)["writeKey"][0]

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the body: those of its batch, or the one that it is."""
        content = gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body
        body = json.loads(content)
        messages: list[dict[str, Any]] = body.get("batch", [body])
        return messages


class RecordingProxy:
    """`loses` says of an exchange whether its answer is lost. The request has reached the daemon all the same.

    `answers` makes an answer of the proxy's own to a method and a body, or None to ask the daemon.
    """

    def __init__(self, daemon_port: int) -> None:
        self.exchanges: list[Exchange] = []
        self.loses: Callable[[Exchange], bool] = lambda _: False
        self.answers: Callable[[str, bytes], Reply | None] = lambda _, __: None
        self.port = 0
        self._daemon_port = daemon_port
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def posts(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.method == "POST"]

    def forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Exchange:
        reply = self.answers(method, body) or self._ask(method, path, headers, body)
        exchange = Exchange(method, path, headers, body, reply, time.monotonic())
        if self.loses(exchange):  # may wait, while other requests go on
            exchange = replace(exchange, lost=True)
        with self._lock:
            self.exchanges.append(exchange)
        return exchange

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._daemon_port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, named, answer.read())
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, proxy: RecordingProxy, *arguments: Any) -> None:
        self._proxy = proxy
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        exchange = self._proxy.forward(self.command, self.path, headers, body)
        if exchange.lost:
            self.close_connection = True
            return
        self.send_response_only(exchange.reply.status)
        for name, value in exchange.reply.headers.items():
            if name not in _OF_A_CONNECTION:
                self.send_header(name, value)
        if exchange.reply.status != 204 and self.command != "HEAD":
            self.send_header("Content-Length", str(len(exchange.reply.body)))
        self.end_headers()
        self.wfile.write(exchange.reply.body)

    do_GET = do_HEAD = do_POST = do_DELETE = do_OPTIONS = _pass_on  # noqa: N815 - the names that http.server looks for


@contextmanager
def recording_proxy(daemon_port: int) -> Iterator[RecordingProxy]:
    proxy = RecordingProxy(daemon_port)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, proxy))
    server.daemon_threads = True  # a client may keep its connection
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
