"""One request's side of its connection: through it the request is answered."""

from __future__ import annotations

import re
from http.client import responses
from typing import TYPE_CHECKING

from tornado.httputil import HTTPHeaders, RequestStartLine

from ingestd.http.client_connection import ClientConnection

if TYPE_CHECKING:
    from .connection import FastConnection

__all__ = ["Response"]

_LINE_END = re.compile("[\r\n]")


class Response(ClientConnection):
    client: FastConnection

    def __init__(self, client: FastConnection, request: RequestStartLine, *, persistent: bool) -> None:
        self.client = client
        self.remote_ip = client.remote_ip
        self.no_keep_alive = not persistent
        """Whether the connection ends with this answer."""
        self._version = request.version

    def respond(self, status: int, headers: HTTPHeaders, body: bytes) -> None:
        if headers.get("Connection", "").lower() == "close":
            self.no_keep_alive = True
        elif self._version == "HTTP/1.0":
            if not self.no_keep_alive:
                headers["Connection"] = "Keep-Alive"
        elif self.no_keep_alive and self._version == "HTTP/1.1":
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {status} {responses[status]}", *(f"{name}: {value}" for name, value in headers.get_all())]
        for line in lines:
            if _LINE_END.search(line):
                raise ValueError(f"a line's end within a header: {line!r}")
        self.answer("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def answer(self, data: bytes) -> None:
        client = self.client
        if not client.is_gone(self):
            client.send(data)
            client.finished(self)
