"""Who is posted to, and how failures are told without what is secret."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPTimeoutError
from tornado.tcpclient import TCPClient

from ingestd.api import __version__
from ingestd.api.domains import ascii_domain
from ingestd.api.errors import ConfigError, SinkFailure, SinkRetry
from ingestd.api.terminal import printable

from .connection import Answer, ask
from .options import WebhookOptions, checked_headers, trust

__all__ = ["Target"]

_LEAST_HIDDEN = 4  # a header that says 1 or on is no secret, and hiding it would spoil what is told
_MOST_TEXT = 200
# Far above a delivery's usual time limit: it ends what goes on when nobody waits any more.
_CONNECT_TIMEOUT = 120.0


class Target:
    """Who is posted to. What it raises names the host, and nothing else of the URL: the rest may be secret."""

    def __init__(self, options: WebhookOptions, path: str) -> None:
        url = _with_ascii_host(options.url)
        if not re.fullmatch(r"[!-~]+", url):
            raise ConfigError(f"{path}.url: foreign letters outside the host are written as %C5%82 …")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            raise ConfigError(f'{path}.url: expected an HTTP URL, such as "https://crm.example/in"')
        try:
            name, port = parts.hostname, parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise ConfigError(f"{path}.url: its port is none")
        if not name:
            raise ConfigError(f"{path}.url: has no host")
        self._address = name, port or (443 if parts.scheme == "https" else 80)
        self.host = parts.netloc.rpartition("@")[2].removesuffix(":")
        self._url = parts._replace(netloc=self.host, fragment="").geturl()
        self._tls = trust(options, parts.scheme, f"{path}.ca_file")
        self._advice = "" if options.ca_file else "; ca_file is for certificates that the system does not know"
        self._headers = checked_headers(options.headers, f"{path}.headers")
        hidden = [*self._headers.values(), *(each.rpartition(" ")[2] for each in self._headers.values())]  # Bearer …
        hidden += [each.partition("=")[2] or each for each in parts.query.split("&")]
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            if "authorization" in map(str.lower, self._headers):
                raise ConfigError(f"{path}.headers: Authorization is given, and so are user and password in the url")
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
            raise self._failure(error) from None
        finally:
            client.close()

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to this body with these headers and the configured ones.

        Raises `SinkRetry` where there is no connection, and `SinkFailure` where one ends without an answer.
        """
        answer = await ask(self._request({**self._headers, **headers}, body))
        if answer.status == 0:
            raise self._failure(answer.failure) from None
        if answer.early and 200 <= answer.status < 300:
            raise SinkFailure(f"{self.host} answers {answer.status} before it has got everything")
        return answer

    def _request(self, headers: dict[str, str], body: bytes) -> HTTPRequest:
        return HTTPRequest(
            self._url,
            "POST",
            HTTPHeaders(headers),
            body,
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=0.0,  # delivery has a time limit
            follow_redirects=False,
            decompress_response=False,
            user_agent=f"ingestd/{__version__}",
            ssl_options=self._tls,
        )

    def presentable(self, raw: bytes) -> str:
        """The beginning of an answer's text, in one line, without what it repeats of the request's secrets."""
        text = raw.decode("utf-8", "replace")
        for secret in self._hidden:
            text = text.replace(secret, "***")
        line = printable(" ".join(text.split()))
        return line if len(line) <= _MOST_TEXT else line[:_MOST_TEXT] + "…"

    def _failure(self, error: BaseException | None) -> SinkFailure | SinkRetry:
        if isinstance(error, StreamClosedError):
            error = error.real_error
        if isinstance(error, ssl.SSLCertVerificationError):
            return SinkRetry(f"the certificate of {self.host} is not trusted: {error.verify_message}{self._advice}")
        if isinstance(error, ssl.SSLError):
            return SinkRetry(f"no TLS connection to {self.host}: {_reason(error)}")
        if isinstance(error, OSError):
            return SinkRetry(f"the connection to {self.host} failed: {error.strerror or type(error).__name__}")
        if isinstance(error, HTTPTimeoutError):
            return SinkRetry(f"the connection to {self.host} failed: {error}")
        return SinkFailure(f"{self.host} closed the connection without an answer, or what it answered is no HTTP")


def _with_ascii_host(url: str) -> str:
    if url.isascii():
        return url
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{ascii_domain(host)}").geturl()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or type(error).__name__).replace("_", " ").lower()
