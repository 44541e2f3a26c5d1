"""The settings of requests. A request keeps the settings with which it began, even through a reload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestd.api.intake import Intake
from ingestd.config import HttpOptions
from ingestd.pipeline.handler import Pipeline

from .client_address import Peers
from .client_connection import head_of
from .client_file import browser_client
from .routes import Routes

__all__ = ["Cors", "RequestSettings"]

_PREFLIGHT_SECONDS = "7200"  # the longest that Chrome remembers

_EXPOSED = ("Access-Control-Expose-Headers", "Retry-After, X-Request-Id")
_ANYONE = (("Access-Control-Allow-Origin", "*"), _EXPOSED)


class Cors:
    """The origins that may send, and the headers that tell browsers so."""

    def __init__(self, origins: Sequence[str], headers: Sequence[str]) -> None:
        self.any_origin = "*" in origins
        self._origins = frozenset(origins)
        self._headers = ", ".join(["authorization", "content-type", *(name.lower() for name in headers)])

    def headers(self, request: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """The CORS headers of any answer to a request with these headers."""
        if self.any_origin:
            return _ANYONE
        origin = request.get("Origin")
        if origin is not None and origin in self._origins:
            return [("Access-Control-Allow-Origin", origin), ("Vary", "Origin"), _EXPOSED]
        return [("Vary", "Origin")]

    def refuses(self, request: Mapping[str, str]) -> bool:
        """Whether a request names an origin that may not send, unless any may. Backends and apps name none."""
        origin = request.get("Origin")
        return origin is not None and origin not in self._origins

    def preflight(self, method: str = "POST", headers: Sequence[str] = ()) -> list[tuple[str, str]]:
        """The further headers of an answer to a preflight. `headers` may be sent in addition to the configured ones."""
        return [
            ("Access-Control-Allow-Methods", method),
            ("Access-Control-Allow-Headers", ", ".join([self._headers, *(name.lower() for name in headers)])),
            ("Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        ]


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


def _plain_head(cors: Cors) -> bytes:
    if not cors.any_origin:
        return b""
    own = [("Content-Type", "application/json"), ("X-Request-Id", "%b"), ("Content-Length", "%d")]
    return head_of(200, [*cors.headers({}), *own])
