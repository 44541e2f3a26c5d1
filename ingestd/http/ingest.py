"""One request to the public listener, and its answer. Tornado's RequestHandler is not used: it takes twice the time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tornado.httputil import HTTPHeaders, HTTPInputError, RequestStartLine

from ingestd.api import times
from ingestd.api.errors import Failed, Forbidden, HeadersTooLarge, MethodNotAllowed, NotFound, Refused
from ingestd.api.events import Request
from ingestd.api.outcomes import Refusal
from ingestd.pipeline.outcomes import Answer, problem
from ingestd.scheduling.room import SMALL
from ingestd.support.ids import time_uuid

from .body import ReceivedBody, too_large
from .client_connection import Client
from .client_file import ClientFile
from .routes import Operation
from .server.head_parser import RequestHeaders, check_host

if TYPE_CHECKING:
    from .app import Ingest

__all__ = ["Exchange", "headers_of"]

log = logging.getLogger("ingestd.http")

_LONGEST_LENGTH = 200  # characters of a Content-Length, which may repeat one number
_READ_BEYOND = 1 << 20  # bytes
_USUAL_LINES, _MOST_LINES = 32, 100  # header lines
_USUAL_HEAD = 2048  # bytes of headers


class Exchange:
    """Reads one request and answers it, once.

    A body that is at most 1 MiB too large is read without being kept, so that its connection can stay open. A larger
    body gets its 413 at once, and the connection ends.
    """

    __slots__ = (
        "_answered", "_body", "_client", "_closing", "_foreign", "_headers", "_held_back", "_id", "_ingest", "_limit",
        "_method", "_operation", "_plain", "_settings", "_started", "_target",
    )  # fmt: skip

    def __init__(self, ingest: Ingest, client: Client) -> None:
        self._ingest = ingest
        self._client = client
        self._closing = False
        """Whether the connection ends with this answer."""
        self._answered = False
        self._held_back = False
        """Whether its refusal is sent later. The rest of the request is not read."""

    # Callbacks of the server

    def headers_received(self, start_line: RequestStartLine, headers: Mapping[str, str]) -> None:
        check_host(start_line.version, headers)
        length = headers.get("Content-Length", "")
        if len(length) > _LONGEST_LENGTH and not length.isdigit():  # thousands of digits are too large instead
            raise HTTPInputError("the Content-Length is too long")
        # Not in `__init__`: an exchange may wait a minute for its request, and a reload may happen meanwhile.
        self._settings = self._ingest.settings
        self._id = time_uuid()
        self._started = time.perf_counter()
        self._method = start_line.method
        self._headers = headers
        self._target = start_line.path
        self._operation = operation = self._settings.routes.find(start_line.path)
        many = operation is not None and operation.takes_batches
        self._limit = self._settings.max_batch_body if many else self._settings.max_body
        cors = self._settings.cors
        self._foreign = self._method == "POST" and not cors.any_origin and cors.refuses(headers)
        if self._foreign:
            self._limit = 0  # nothing of its body is kept
        self._body = ReceivedBody(self._client, self._limit, headers.get("Content-Encoding", ""))
        # Whether a 200 has a body, needs no Connection header, and has the same CORS headers for every origin.
        self._plain = (
            start_line.version == "HTTP/1.1"
            and self._method != "HEAD"
            and headers.get("Connection", "keep-alive").lower() == "keep-alive"  # as browsers send it; the default too
            and bool(self._settings.plain_head)
        )
        self._ingest.active.add(self)
        self._client.exchange = self
        if _line_count(headers) > _MOST_LINES:
            refused = HeadersTooLarge(f"There are more than {_MOST_LINES} header lines.")
            self._client.refuse(refused, Refusal.HEADERS_TOO_LARGE)
        if length.isascii() and length.isdigit() and int(length[:20]) > self._limit + _READ_BEYOND:
            self._cut_off()

    def data_received(self, chunk: bytes) -> None:
        if self._answered or self._held_back:
            return
        self._body.add(chunk)
        if self._body.size > self._limit + _READ_BEYOND:
            self._cut_off()

    def finish(self) -> None:
        if self._answered or self._held_back:
            return
        operation = self._operation
        if (
            operation is None
            or self._method != "POST"
            or operation.answers_alone
            or self._foreign
            or self._body.is_too_large
        ):
            if not self._is_long() or not self.hold_back(self._answer_without_pipeline):
                self._answer_without_pipeline()
        else:
            self._body.hand_over()
            work = self._settings.pipeline.handle(self._request(operation), self._give)
            self._ingest.tasks.begin_request(work)

    def on_connection_close(self) -> None:
        self._answered = True
        self._ingest.active.discard(self)

    # Requests that are not read to their end, or not handled

    def hold_back(self, send: Callable[[], None]) -> bool:
        """If single events come, free the body and call `send` a second later. Returns whether it will be called."""
        if self._answered or self._held_back or not self._settings.pipeline.demand.is_beside_singles():
            return False
        self._body.drop()
        self._held_back = True
        self._ingest.held_back.add(send)
        return True

    def refuse(self, refused: Refused) -> None:
        """Answer a request that the connection does not read to its end."""
        if self._answered:
            return
        self._closing = True
        self._body.drop()  # Tornado keeps this object for some turns
        self._write(self._refusal(refused))

    def _cut_off(self) -> None:
        if not self._answered:
            self._closing = True
            self._answer_without_pipeline()

    # Answers

    def _request(self, operation: Operation) -> Request:
        request = Request(
            operation.endpoint, self._headers, self._body,
            received_at=times.now(), peer=self._peer(), id=self._id, batch=operation.batch,
        )  # fmt: skip
        if operation.intake is not None:
            request.intake, request.route = operation.intake, operation.route
            request.query = self._target.partition("?")[2]
        return request

    def _give(self, answer: Answer) -> None:
        self._body.done()
        if answer.status >= 400 and (
            answer.late or (self._is_long() and self._settings.pipeline.demand.is_beside_singles())
        ):
            self._ingest.held_back.add(partial(self._write_given, answer))
        else:
            self._write_given(answer)

    def _is_long(self) -> bool:
        """Whether the request took longer to receive or decode than a usual event of a browser."""
        body = self._body
        return body.size > SMALL or body.encoding != "" or _has_long_head(self._headers)

    def _write_given(self, answer: Answer) -> None:
        try:
            self._write(answer)
        except Exception:
            log.exception("an answer could not be written")
            self._ingest.active.discard(self)

    def _peer(self) -> str:
        """The client's address; empty where the connection has none."""
        peers, address = self._settings.peers, self._client.address
        return peers.client(address, self._headers) if peers.trust_any else address

    def _answer_without_pipeline(self) -> None:
        """Answer an unknown path, another method, a foreign page, a large body, or a path that takes no events."""
        operation = self._operation
        if operation is None:
            self._write(problem(NotFound("There is nothing at this path.")))
        elif self._method == "OPTIONS":
            self._preflight(operation)
        elif self._method not in operation.methods:
            refused: Refused = MethodNotAllowed(f"This path takes {operation.allow}.")
            self._write(problem(refused, allow=operation.allow, intake=operation.intake))
        elif self._foreign:
            foreign = Forbidden("Pages of this origin may not send events.", code="foreign_origin")
            self._write(self._refusal(foreign))
        elif operation.answers_alone and not self._body.is_too_large and not self._closing:
            if operation.file is None:
                self._answer_alone(operation)
            else:
                self._send_file(operation.file)
        else:
            self._write(self._refusal(too_large(self._limit)))

    def _answer_alone(self, operation: Operation) -> None:
        """Answer a path that takes no events."""
        try:
            answer = Answer(200, operation.answer())
        except Exception:
            log.exception("the intake %s cannot answer a path", operation.endpoint.value)
            answer = problem(Failed("The answer could not be made."), intake=operation.intake)
        self._write(answer)

    def _send_file(self, file: ClientFile) -> None:
        answer = file.answer(self._headers, self._target.partition("?")[2])
        self._log(Answer(answer.status, answer.body))
        self._send(answer.status, answer.headers, answer.body)

    def _refusal(self, refused: Refused) -> Answer:
        """The answer to a refused request, which is counted if it should have events."""
        operation = self._operation
        if operation is None or self._method != "POST" or operation.answers_alone:
            return problem(refused, intake=None if operation is None else operation.intake)
        return self._settings.pipeline.outcomes.refuse(self._request(operation), refused)

    def _preflight(self, operation: Operation) -> None:
        names = () if operation.intake is None else operation.intake.request_headers
        further = self._settings.cors.preflight(operation.methods[0], names)
        self._send(204, [*further, ("Allow", operation.allow)], b"")

    def _write(self, answer: Answer) -> None:
        if self._plain and answer.status == 200 and not self._ingest.draining:
            # The usual 200, in bytes that are ready but for its body: header objects cost a tenth of the request.
            if not self._answered:
                if self._ingest.access.samples:
                    self._log(answer)
                self._end()
                self._client.answer(self._settings.plain_head % (self._id.encode(), len(answer.body)) + answer.body)
            return
        self._log(answer)
        self._send(answer.status, headers_of(answer), answer.body)

    def _send(self, status: int, further: Sequence[tuple[str, str]], body: bytes) -> None:
        """Answer with these headers behind those of all answers, unless the client has gone.

        What the client sent is stored or not, never half.
        """
        if self._answered:
            return
        headers = HTTPHeaders()
        for name, value in (*self._settings.cors.headers(self._headers), ("X-Request-Id", self._id), *further):
            headers.add(name, value)
        if self._ingest.draining or self._closing:
            headers["Connection"] = "close"
        self._end()
        self._client.respond(status, headers, b"" if self._method == "HEAD" else body)

    def _log(self, answer: Answer) -> None:
        operation = self._operation
        self._ingest.access.answered(
            self._method, None if operation is None else operation.endpoint, answer.status, code=answer.code,
            size=self._body.size, peer=self._peer(), seconds=time.perf_counter() - self._started, request_id=self._id,
            batch=operation is not None and operation.batch,
        )  # fmt: skip

    def _end(self) -> None:
        self._answered = True
        self._ingest.active.discard(self)


def headers_of(answer: Answer) -> list[tuple[str, str]]:
    """The headers that depend on the answer alone."""
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
    if answer.retry_after is not None:
        headers.append(("Retry-After", str(answer.retry_after)))
    if answer.allow is not None:
        headers.append(("Allow", answer.allow))
    return headers


def _has_long_head(headers: Mapping[str, str]) -> bool:
    if _line_count(headers) > _USUAL_LINES:
        return True
    size = headers.size if isinstance(headers, RequestHeaders) else sum(map(len, headers.values()))
    return size > _USUAL_HEAD


def _line_count(headers: Mapping[str, str]) -> int:
    if isinstance(headers, RequestHeaders):
        return headers.line_count
    assert isinstance(headers, HTTPHeaders)  # Tornado's
    return sum(1 for _ in headers.get_all())
