"""HTTP servers that receive records: their URL, trust in their certificates, and requests without an answer."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import HTTPTimeoutError

from ingestd.api.errors import ConfigError, SinkFailure, SinkRetry
from ingestd.support.addresses import ascii_domain

__all__ = ["ServerUrl", "advice", "connection_failure", "read_url", "trust"]


def trust(ca_file: Path | None, scheme: str, option: str) -> ssl.SSLContext | None:
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


def advice(ca_file: Path | None) -> str:
    """The end of a message about an unknown certificate."""
    return "" if ca_file else "; ca_file is for certificates that the system does not know"


def connection_failure(error: BaseException | None, host: str, advice: str) -> SinkFailure | SinkRetry:
    """The failure of a request that got no answer because of this error."""
    if isinstance(error, StreamClosedError):
        error = error.real_error
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkRetry(f"the certificate of {host} is not trusted: {error.verify_message}{advice}")
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or type(error).__name__).replace("_", " ").lower()
        return SinkRetry(f"no TLS connection to {host}: {reason}")
    if isinstance(error, OSError):
        return SinkRetry(f"the connection to {host} failed: {error.strerror or type(error).__name__}")
    if isinstance(error, HTTPTimeoutError):
        return SinkRetry(f"the connection to {host} failed: {error}")
    return SinkFailure(f"{host} closed the connection without an answer, or its answer is not HTTP")


class ServerUrl(NamedTuple):
    parts: SplitResult
    host: str
    """Host and port as in the URL, without user and password."""
    address: tuple[str, int]


def read_url(text: str, option: str, example: str) -> ServerUrl:
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
    host = parts.netloc.rpartition("@")[2].removesuffix(":")
    return ServerUrl(parts, host, (name, port or (443 if parts.scheme == "https" else 80)))


def _with_ascii_host(url: str) -> str:
    if url.isascii():
        return url
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{credentials}{at}{ascii_domain(host)}").geturl()
