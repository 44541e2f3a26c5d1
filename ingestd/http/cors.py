"""Cross-origin headers: a browser must be able to read every answer, errors included."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Cors"]

_PREFLIGHT_SECONDS = "7200"  # the longest Chrome keeps


class Cors:
    """Which origins may send, and the headers that tell a browser so."""

    def __init__(self, origins: Sequence[str], headers: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origins)
        self._headers = ", ".join(["authorization", "content-type", *(name.lower() for name in headers)])

    def headers(self, origin: str | None) -> list[tuple[str, str]]:
        """For any answer to a request with that `Origin`."""
        if self._any:
            return [("Access-Control-Allow-Origin", "*")]
        if origin in self._origins and origin is not None:
            return [("Access-Control-Allow-Origin", origin), ("Vary", "Origin")]
        return [("Vary", "Origin")]

    def preflight(self) -> list[tuple[str, str]]:
        """What the answer to a preflight says besides."""
        return [
            ("Access-Control-Allow-Methods", "POST"),
            ("Access-Control-Allow-Headers", self._headers),
            ("Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        ]
