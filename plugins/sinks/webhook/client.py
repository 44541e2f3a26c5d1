"""The receiver of a webhook: its URL and headers, and texts of failures without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from ingestd.api.errors import ConfigError
from ingestd.api.http_request import Reply
from ingestd.api.options import Secret
from ingestd.support.terminal import printable

from ..http_servers import HttpServer, basic
from . import WebhookOptions

__all__ = ["REFUSALS", "Target"]

REFUSALS = (400, 413, 422)
"""Answers which say that the posted records are at fault."""

# Headers that the sink or the connection sets.
_OWN_HEADERS = frozenset(
    {
        "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te",
        "trailer", "transfer-encoding", "upgrade", "user-agent", "webhook-id", "webhook-signature", "webhook-timestamp",
    }
)  # fmt: skip
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t -~]+")

_LEAST_HIDDEN = 4  # a shorter value such as 1 or on is no secret, and hiding it would spoil texts
_MOST_READ, _MOST_TEXT = 4096, 200  # bytes of an answer, and characters that a message has of it


class Target(HttpServer):
    """The receiver."""

    def __init__(self, options: WebhookOptions, path: str) -> None:
        super().__init__(options.url, options.ca_file, path, "https://crm.example/in")
        parts, user, password = self.parts, self.user, self.password
        self._url = parts._replace(netloc=self.host, fragment="").geturl()
        self._headers = _checked_headers(options.headers, f"{path}.headers")
        hidden = [*self._headers.values(), *(each.rpartition(" ")[2] for each in self._headers.values())]  # Bearer …
        hidden += [each.partition("=")[2] or each for each in parts.query.split("&")]
        if user is not None:
            if "authorization" in map(str.lower, self._headers):
                raise ConfigError(f"{path}.headers: give either Authorization, or user and password in the url")
            self._headers["Authorization"] = basic(user, password)
            credentials = self._headers["Authorization"].removeprefix("Basic ")
            hidden += [credentials, password or user, parts.password or parts.username or ""]
        hidden += [unquote(each) for each in hidden]
        self._hidden = sorted({each for each in hidden if len(each) >= _LEAST_HIDDEN}, key=len, reverse=True)

    async def post(self, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer to this body with these headers and the configured ones."""
        return await self.ask(
            self._url,
            {**self._headers, **headers},
            most_text=_MOST_READ,
            reads_text=lambda status: status in REFUSALS,
            body=body,
        )

    def presentable(self, raw: bytes) -> str:
        """The beginning of an answer's text in one line. Secrets of the request that it repeats are hidden."""
        text = raw.decode("utf-8", "replace")
        for secret in self._hidden:
            text = text.replace(secret, "***")
        line = printable(" ".join(text.split()))
        return line if len(line) <= _MOST_TEXT else line[:_MOST_TEXT] + "…"


def _checked_headers(given: dict[str, Secret], path: str) -> dict[str, str]:
    seen: set[str] = set()
    for name, value in given.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"{path}: {name!r} cannot be the name of a header")
        if name.lower() in _OWN_HEADERS:
            raise ConfigError(f"{path}.{name}: the sink sets this header")
        if name.lower() in seen:
            raise ConfigError(f"{path}.{name}: is given twice")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"{path}.{name}: expected one line of ASCII characters")
        seen.add(name.lower())
    return {name: str(value).strip() for name, value in given.items()}
