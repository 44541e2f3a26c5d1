"""Cross-origin rules: the pages that may send, and the headers by which a browser may read every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["Cors"]

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
