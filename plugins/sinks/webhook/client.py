"""The receiver of a webhook: its URL and headers, and texts of failures without secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import unquote

from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError
from tornado.tcpclient import TCPClient

from ingestd.api import __version__
from ingestd.api.errors import ConfigError, SinkFailure
from ingestd.api.http_request import Reply, ask
from ingestd.api.options import Secret
from ingestd.support.terminal import printable

from ..http_servers import advice, connection_failure, read_url, trust
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
_MOST_TEXT = 200
# Far above a delivery's usual time limit. It ends attempts that nothing waits for.
_CONNECT_TIMEOUT = 120.0


class Target:
    """The receiver. Its errors name the host only, because the rest of the URL may be secret."""

    def __init__(self, options: WebhookOptions, path: str) -> None:
        parts, self.host, self._address = read_url(options.url, f"{path}.url", "https://crm.example/in")
        self._url = parts._replace(netloc=self.host, fragment="").geturl()
        self._tls = trust(options.ca_file, parts.scheme, f"{path}.ca_file")
        self._advice = advice(options.ca_file)
        self._headers = _checked_headers(options.headers, f"{path}.headers")
        hidden = [*self._headers.values(), *(each.rpartition(" ")[2] for each in self._headers.values())]  # Bearer …
        hidden += [each.partition("=")[2] or each for each in parts.query.split("&")]
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            if "authorization" in map(str.lower, self._headers):
                raise ConfigError(f"{path}.headers: give either Authorization, or user and password in the url")
            self._headers["Authorization"] = f"Basic {credentials}"
            hidden += [credentials, password or user, parts.password or parts.username]
        hidden += [unquote(each) for each in hidden]
        self._hidden = sorted({each for each in hidden if len(each) >= _LEAST_HIDDEN}, key=len, reverse=True)

    async def check(self) -> None:
        client = TCPClient()
        try:
            stream = await client.connect(*self._address, ssl_options=self._tls)
            stream.close()
        except (OSError, StreamClosedError) as error:
            raise connection_failure(error, self.host, self._advice) from None
        finally:
            client.close()

    async def post(self, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer to this body with these headers and the configured ones.

        Raises `SinkRetry` without a connection, and `SinkFailure` if the connection ends without an answer.
        """
        request = self._request({**self._headers, **headers}, body)
        answer = await ask(request, reads_text=lambda status: status in REFUSALS)
        if answer.status == 0:
            raise connection_failure(answer.failure, self.host, self._advice) from None
        if answer.early and 200 <= answer.status < 300:
            raise SinkFailure(f"{self.host} answers {answer.status} before it has received the whole request")
        return answer

    def _request(self, headers: dict[str, str], body: bytes) -> HTTPRequest:
        return HTTPRequest(
            self._url,
            "POST",
            HTTPHeaders(headers),
            body,
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=0.0,  # none here, because delivery has a time limit
            follow_redirects=False,
            decompress_response=False,
            user_agent=f"ingestd/{__version__}",
            ssl_options=self._tls,
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
