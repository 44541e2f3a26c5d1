"""The public listener: its paths, and what every request there shares."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import responses
from typing import ClassVar

from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate

from ingestd.api.errors import Refused
from ingestd.api.events import Endpoint
from ingestd.api.ids import time_uuid
from ingestd.config import HttpOptions, LogsOptions
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.handler import Pipeline
from ingestd.pipeline.responses import problem

from .access_log import AccessLog
from .client_connection import ClientConnection
from .ingest import Exchange
from .settings import RequestSettings
from .shared_task import RequestTasks

__all__ = ["BASE_PATH", "Ingest"]

BASE_PATH = "/api/v1/analytics"


def _routes(endpoints: Mapping[str, Endpoint]) -> Mapping[str, Endpoint]:
    """Endpoints by their whole paths; a trailing slash is the same path."""
    return {f"{BASE_PATH}{path}{slash}": endpoint for path, endpoint in endpoints.items() for slash in ("", "/")}


class Ingest(HTTPServerConnectionDelegate):
    """What a server hands requests to: Tornado's, or any other with its interfaces."""

    routes: ClassVar = _routes(
        {
            "/track": Endpoint.TRACK,
            "/customer-events": Endpoint.CUSTOMER_EVENTS,
            "/identify/public": Endpoint.IDENTIFY,
            "/identify": Endpoint.SERVER_IDENTIFY,
        }
    )
    batch_routes: ClassVar = _routes(
        {
            "/batch": Endpoint.TRACK,
            "/customer-events/batch": Endpoint.CUSTOMER_EVENTS,
        }
    )

    def __init__(self, pipeline: Pipeline, options: HttpOptions, logs: LogsOptions, metrics: Metrics) -> None:
        self.metrics = metrics
        self.access = AccessLog(logs)
        self.terms = RequestSettings(pipeline, options)
        """Those of requests that begin now. One that has begun keeps its own."""
        self.active: set[Exchange] = set()
        """Requests begun and not yet answered."""
        self.tasks = RequestTasks()
        self.draining = False
        """Whether the daemon is shutting down: answers then end their connection, and say so."""

    def begin(self, exchange: Exchange) -> None:
        self.active.add(exchange)

    def end(self, exchange: Exchange) -> None:
        self.active.discard(exchange)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        assert isinstance(request_conn, ClientConnection)
        return Exchange(self, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Nothing is kept of a connection."""

    def refusal(self, refused: Refused) -> bytes:
        """The whole answer to what is not even a request, as to one of no origin."""
        answer, request_id = problem(refused), time_uuid()
        self.access.answered(
            "-", None, answer.status, code=answer.code, seconds=0, size=0, peer="", request_id=request_id
        )  # fmt: skip
        headers = [
            *self.terms.cors.headers({}),
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("X-Request-Id", request_id),
            ("Connection", "close"),
        ]
        if answer.retry_after is not None:
            headers.append(("Retry-After", str(answer.retry_after)))
        start = f"HTTP/1.1 {answer.status} {responses[answer.status]}"
        lines = [start, *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join([*lines, "", ""]).encode() + answer.body
