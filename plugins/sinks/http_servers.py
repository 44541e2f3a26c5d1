"""HTTP servers that receive records: their URL, trust in their certificates, and requests to them."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPTimeoutError
from tornado.tcpclient import TCPClient

from ingestd.api import __version__
from ingestd.api.errors import ConfigError, SinkFailure, SinkRetry
from ingestd.api.http_request import Reply, ask
from ingestd.support.addresses import ascii_domain

__all__ = ["HttpServer", "basic"]

# Far above a delivery's usual time limit. It ends attempts that nothing waits for.
_CONNECT_TIMEOUT = 120.0


class HttpServer:
    """A server. Its errors name the host only, because the rest of the URL may be secret."""

    def __init__(self, url: str, ca_file: Path | None, path: str, example: str, option: str = "url") -> None:
        """`path` is that of the sink's options. Raises `ConfigError`."""
        self.parts = _parts(url, f"{path}.{option}", example)
        self.host = self.parts.netloc.rpartition("@")[2].removesuffix(":")
        """Host and port as in the URL, without user and password."""
        self.user: str | None = None
        """The user and the password in the URL."""
        self.password = ""
        if self.parts.username is not None:
            self.user, self.password = unquote(self.parts.username), unquote(self.parts.password or "")
        self._tls = _trust(ca_file, self.parts.scheme, f"{path}.ca_file")
        self._advice = "" if ca_file else "; ca_file is for certificates that the system does not know"

    async def connect(self) -> None:
        """See whether the server takes connections. Raises `SinkRetry` or `SinkFailure`."""
        client = TCPClient()
        port = self.parts.port or (443 if self.parts.scheme == "https" else 80)
        try:
            stream = await client.connect(self.parts.hostname or "", port, ssl_options=self._tls)
            stream.close()
        except (OSError, StreamClosedError) as error:
            raise self._failure(error) from None
        finally:
            client.close()

    async def ask(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        method: str = "POST",
        seconds: float = 0.0,
        most_text: int = 1 << 20,
        reads_text: Callable[[int], bool] = lambda _: True,
        **body: Any,
    ) -> Reply:
        """The answer to a request. Without `seconds` only delivery has a time limit.

        Raises `SinkRetry` without a connection, and `SinkFailure` if the connection ends without an answer.
        """
        request = HTTPRequest(
            url,
            method,
            HTTPHeaders(headers),
            connect_timeout=seconds or _CONNECT_TIMEOUT,
            request_timeout=seconds,
            follow_redirects=False,
            decompress_response=False,
            user_agent=f"ingestd/{__version__}",
            ssl_options=self._tls,
            **body,
        )
        answer = await ask(request, most_text=most_text, reads_text=reads_text)
        if answer.status == 0:
            raise self._failure(answer.failure) from None
        if answer.early and 200 <= answer.status < 300:
            raise SinkFailure(f"{self.host} answers {answer.status} before it has received the whole request")
        return answer

    def _failure(self, error: BaseException | None) -> SinkFailure | SinkRetry:
        """The failure of a request that got no answer because of this error."""
        if isinstance(error, StreamClosedError):
            error = error.real_error
        if isinstance(error, ssl.SSLCertVerificationError):
            return SinkRetry(f"the certificate of {self.host} is not trusted: {error.verify_message}{self._advice}")
        if isinstance(error, ssl.SSLError):
            reason = (error.reason or type(error).__name__).replace("_", " ").lower()
            return SinkRetry(f"no TLS connection to {self.host}: {reason}")
        if isinstance(error, OSError):
            return SinkRetry(f"the connection to {self.host} failed: {error.strerror or type(error).__name__}")
        if isinstance(error, HTTPTimeoutError):
            return SinkRetry(f"the connection to {self.host} failed: {error}")
        return SinkFailure(f"{self.host} closed the connection without an answer, or its answer is not HTTP")


def basic(user: str, password: str) -> str:
    """The value of the header `Authorization`."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _trust(ca_file: Path | None, scheme: str, option: str) -> ssl.SSLContext | None:
    if scheme == "http":
        if ca_file is not None:
            raise ConfigError(f"{option}: has no effect, because the url is not https")
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise ConfigError(f"{option}: {ca_file} holds no certificates in PEM") from None
    except OSError as error:
        raise ConfigError(f"{option}: {ca_file} cannot be read: {error.strerror}") from None


def _parts(text: str, option: str, example: str) -> SplitResult:
    url = _with_ascii_host(text)
    if not re.fullmatch(r"[!-~]+", url):
        raise ConfigError(f"{option}: outside the host, write letters beyond ASCII and spaces as %C5%82 …")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ConfigError(f'{option}: expected an HTTP URL, such as "{example}"')
    try:
        name, port = parts.hostname, parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(f"{option}: its port is invalid")
    if not name:
        raise ConfigError(f"{option}: has no host")
    return parts


def _with_ascii_host(url: str) -> str:
    if url.isascii():
        return url
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{ascii_domain(host)}").geturl()
