"""One request to the ingest listener, below Tornado's RequestHandler: that would cost twice the time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from http.client import responses
from typing import TYPE_CHECKING

from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine

from .. import times
from ..answers import Answer, problem
from ..errors import MethodNotAllowed, NotFound, Refused
from ..events import Endpoint, Request
from ..outcomes import Outcome
from .body import decode_body, too_large

if TYPE_CHECKING:
    from .app import Ingest

__all__ = ["Exchange"]

log = logging.getLogger("ingestd.http")

_ALLOW = "POST, OPTIONS"


class Exchange(HTTPMessageDelegate):
    """Reads one request and answers it, once.

    A body beyond the limit is read on without being kept, up to sixteen times the limit, so that the
    client hears its 413 instead of a broken connection; beyond that it is cut off.
    """

    def __init__(self, ingest: Ingest, connection: HTTPConnection) -> None:
        self._ingest = ingest
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._answered = False

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, RequestStartLine)
        self._method = start_line.method
        self._headers = headers
        path = start_line.path
        if not path.startswith("/"):  # a proxy's form of it, which names scheme and host (RFC 9112, 3.2.2)
            path = "/" + "".join(path.split("/", 3)[3:])
        self._endpoint = self._ingest.routes.get(path.partition("?")[0])
        # Nothing to say about the connection, and the same to every origin.
        self._plain = start_line.version == "HTTP/1.1" and "Connection" not in headers and bool(self._ingest.plain_head)
        self._ingest.begin(self)
        # Tornado's own limit would answer without a body or CORS; the limit is kept here.
        self._connection.set_max_body_size(1 << 62)  # type: ignore[attr-defined]  # HTTP1Connection has it
        length = headers.get("Content-Length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > 16 * self._ingest.max_body:
            self._refuse_size()
        return None

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._size += len(chunk)
        if self._size <= self._ingest.max_body:
            self._chunks.append(chunk)
        elif self._size > 16 * self._ingest.max_body:
            self._refuse_size()
        return None

    def finish(self) -> None:
        if self._answered:
            return
        endpoint = self._endpoint
        if self._method == "OPTIONS" and endpoint is not None:
            self._preflight()
        elif endpoint is None:
            self._write(problem(NotFound("There is nothing at this path.")))
        elif self._method != "POST":
            refused = MethodNotAllowed(f"This path takes {_ALLOW}.")
            self._write(problem(refused, allow=_ALLOW))
        elif self._size > self._ingest.max_body:
            self._refuse_size()
        else:
            task = asyncio.get_running_loop().create_task(self._handle(endpoint))
            task.add_done_callback(self._handled)

    def on_connection_close(self) -> None:
        self._answered = True
        self._ingest.end(self)

    async def _handle(self, endpoint: Endpoint) -> None:
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        headers, limit = self._headers, self._ingest.max_body
        context = getattr(self._connection, "context", None)
        request = Request(
            endpoint,
            headers,
            lambda: decode_body(body, headers.get("Content-Encoding", ""), limit),
            received_at=times.now(),
            peer=getattr(context, "remote_ip", ""),
        )
        self._write(await self._ingest.pipeline.handle(request))

    def _handled(self, task: asyncio.Future[None]) -> None:
        self._ingest.end(self)
        if not task.cancelled() and task.exception() is not None:
            log.error("an answer could not be written", exc_info=task.exception())

    def _refuse_size(self) -> None:
        if self._answered:
            return
        refused: Refused = too_large(self._ingest.max_body)
        if self._endpoint is None:
            refused = NotFound("There is nothing at this path.")
        elif self._method != "POST":
            refused = MethodNotAllowed(f"This path takes {_ALLOW}.")
        else:
            self._ingest.metrics.answered(self._endpoint, "", Outcome.TOO_LARGE, 0.0)
        self._write(problem(refused, allow=_ALLOW if isinstance(refused, MethodNotAllowed) else None))

    def _preflight(self) -> None:
        headers = self._base_headers()
        for name, value in self._ingest.cors.preflight():
            headers[name] = value
        headers["Allow"] = _ALLOW
        self._send(204, headers, None)

    def _write(self, answer: Answer) -> None:
        if self._plain and answer.status == 200 and not self._ingest.draining:
            self._write_plain(answer.body)
            return
        headers = self._base_headers()
        headers["Content-Type"] = answer.content_type
        headers["Content-Length"] = str(len(answer.body))
        if answer.retry_after is not None:
            headers["Retry-After"] = str(answer.retry_after)
            headers["Access-Control-Expose-Headers"] = "Retry-After"
        if answer.allow is not None:
            headers["Allow"] = answer.allow
        self._send(answer.status, headers, None if self._method == "HEAD" else answer.body)

    def _write_plain(self, body: bytes) -> None:
        """The usual 200, in bytes that are ready but for its body: header objects would cost a tenth of the request.

        Tornado lets `write` begin with a head made elsewhere, if nothing need be said of the connection.
        """
        if self._answered:
            return
        self._answered = True
        self._ingest.end(self)
        self._connection.write(self._ingest.plain_head % len(body) + body)
        self._connection.finish()

    def _base_headers(self) -> HTTPHeaders:
        headers = HTTPHeaders()
        for name, value in self._ingest.cors.headers(self._headers):
            headers[name] = value
        if self._ingest.draining:
            headers["Connection"] = "close"
        return headers

    def _send(self, status: int, headers: HTTPHeaders, body: bytes | None) -> None:
        if self._answered:  # the client has gone; what it sent is stored or not, never half
            return
        self._answered = True
        self._ingest.end(self)
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", status, responses[status]), headers, body)
        self._connection.finish()
