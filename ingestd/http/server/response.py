"""The response to one request, which handlers write through Tornado's interface."""

from __future__ import annotations

import re
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING

from tornado.httputil import HTTPHeaders, HTTPOutputError, RequestStartLine, ResponseStartLine
from tornado.iostream import StreamClosedError

from ingestd.http.client_connection import ClientConnection

if TYPE_CHECKING:
    from .connection import FastConnection

__all__ = ["Response"]

_LINE_END = re.compile("[\r\n]")


class Response(ClientConnection):
    """A response. `write` without `write_headers` sends bytes unchanged; they must be a head or begin with one."""

    client: FastConnection

    def __init__(self, client: FastConnection, request: RequestStartLine, *, persistent: bool) -> None:
        self.client = client
        self.context = client.context
        self.no_keep_alive = not persistent
        """Whether the connection ends with this answer. A handler may set it."""
        self.begun = False
        """Whether bytes of the response have been sent."""
        self.close_callback: Callable[[], None] | None = None
        self._request = request
        self._chunked = False
        self._left: int | None = None
        """Bytes of the promised Content-Length that are not written yet."""

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Set the function to call if the client disconnects between its complete request and the answer."""
        self.close_callback = callback

    def set_max_body_size(self, max_body_size: int) -> None:
        self.client.max_body = max_body_size

    def write_headers(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders, chunk: bytes | None = None
    ) -> Future[None]:
        assert isinstance(start_line, ResponseStartLine)
        method, version, status = self._request.method, self._request.version, start_line.code
        without_body = method == "HEAD" or status in {204, 304} or 100 <= status < 200
        if method == "HEAD" or status == 304:
            self._left = 0
        elif "Content-Length" in headers:
            self._left = int(headers["Content-Length"])
        elif not without_body:
            self._chunked = version == "HTTP/1.1"
            if self._chunked:
                headers["Transfer-Encoding"] = "chunked"
            else:
                self.no_keep_alive = True  # nothing else can end the body
        if headers.get("Connection", "").lower() == "close":
            self.no_keep_alive = True
        elif version == "HTTP/1.0":
            if not self.no_keep_alive:
                headers["Connection"] = "Keep-Alive"
        elif self.no_keep_alive and version == "HTTP/1.1":
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {status} {start_line.reason}", *(f"{name}: {value}" for name, value in headers.get_all())]
        for line in lines:
            if _LINE_END.search(line):
                raise ValueError(f"a header contains a line break: {line!r}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return self._send(head + self._framed(chunk) if chunk else head)

    def write(self, chunk: bytes) -> Future[None]:
        return self._send(self._framed(chunk))

    def answer(self, data: bytes) -> None:
        client = self.client
        if not client.is_gone(self):
            self.begun = True
            client.send(data)
            client.finished(self)

    def finish(self) -> None:
        if self._left and not self.client.is_gone(self):
            self.client.close()
            raise HTTPOutputError(f"{self._left} bytes less than Content-Length were written")
        if self._chunked:
            self._send(b"0\r\n\r\n")
        self.client.finished(self)

    def _framed(self, chunk: bytes) -> bytes:
        if self._left is not None:
            self._left -= len(chunk)
            if self._left < 0:
                self.client.close()  # otherwise the client would take the rest for the next answer
                raise HTTPOutputError("more bytes than Content-Length were written")
        if self._chunked and chunk:
            return b"%x\r\n%b\r\n" % (len(chunk), chunk)
        return chunk

    def _send(self, data: bytes) -> Future[None]:
        client = self.client
        if client.is_gone(self):
            failed: Future[None] = Future()
            failed.set_exception(StreamClosedError())
            failed.exception()  # marks the error as seen: the caller may ignore it
            return failed
        self.begun = True
        return client.send(data)
