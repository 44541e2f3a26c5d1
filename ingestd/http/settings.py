"""The settings of requests. A request keeps the settings with which it began, even through a reload."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api.intake import Intake
from ingestd.config import HttpOptions
from ingestd.pipeline.handler import Pipeline

from .client_address import Peers
from .client_file import browser_client
from .cors import Cors
from .routes import Routes

__all__ = ["RequestSettings"]


class RequestSettings:
    def __init__(self, pipeline: Pipeline, options: HttpOptions, intakes: Sequence[Intake] = ()) -> None:
        self.pipeline = pipeline
        self.routes = Routes(intakes, client=browser_client() if options.client else None)
        self.peers = Peers(options.trusted_proxies)
        self.cors = Cors(options.allowed_origins, options.allowed_headers)
        self.plain_head = _plain_head(self.cors)
        """The head of a 200, with gaps for request id and Content-Length. Empty if it depends on the origin."""
        self.max_body = int(options.max_body)
        self.max_batch_body = int(options.max_batch_body)
        self.max_headers = options.max_headers


def _plain_head(cors: Cors) -> bytes:
    if not cors.any_origin:
        return b""
    lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in cors.headers({}))]
    lines += ["Content-Type: application/json", "X-Request-Id: %b", "Content-Length: %d"]
    return "\r\n".join([*lines, "", ""]).encode()
