"""The HTTP interface of a ClickHouse server: queries and inserts."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode

import msgspec
from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders

from ingestd.api import __version__
from ingestd.api.errors import ConfigError, SinkFailure, SinkRetry
from ingestd.api.http_request import ask

from ..http_servers import advice, connection_failure, read_url, trust
from .errors import failure

if TYPE_CHECKING:
    from . import ClickHouseOptions

__all__ = ["Server"]

_MOST_TEXT = 1 << 20
# Far above a delivery's usual time limit. It ends attempts that nothing waits for.
_CONNECT_TIMEOUT = 120.0


class Server:
    """Errors name the host only. User and password are sent in a header, never in the URL of a request."""

    def __init__(self, options: ClickHouseOptions, path: str) -> None:
        parts, self.host, _ = read_url(options.url, f"{path}.url", "https://clickhouse.example:8443")
        if parts.query or parts.fragment:
            raise ConfigError(f"{path}.url: takes no parameters; database, table, user and password are options")
        self._url = parts._replace(netloc=self.host, path=parts.path or "/").geturl()
        self._tls = trust(options.ca_file, parts.scheme, f"{path}.ca_file")
        self._advice = advice(options.ca_file)
        user: str | None = options.user
        password: str | None = options.password
        if parts.username is not None:
            if user is not None or password is not None:
                raise ConfigError(f"{path}.user: give user and password either in the url or as options")
            user, password = unquote(parts.username), unquote(parts.password or "")
        elif password is not None and user is None:
            user = "default"
        self._headers = {}
        if user is not None:
            credentials = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"

    async def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of the result."""
        text = await self._post({"query": f"{query} FORMAT JSONEachRow"})
        try:
            return [msgspec.json.decode(line) for line in text.splitlines()]
        except ValueError:
            raise SinkRetry(f"{self.host} is not the HTTP interface of ClickHouse") from None

    async def execute(self, command: str) -> None:
        await self._post({"query": command})

    async def insert(self, query: str, settings: Mapping[str, str], lines: AsyncIterator[bytes]) -> None:
        """Insert these lines, and send some while others are made. If it returns, the server has stored all."""
        # The answer begins after the insert, so that its status is the outcome.
        text = await self._post({"query": query, "wait_end_of_query": "1", **settings}, lines)
        if text.strip():
            raise failure(self.host, 200, None, text)

    async def _post(self, parameters: Mapping[str, str], lines: AsyncIterator[bytes] | None = None) -> bytes:
        answer = await ask(self._request(parameters, lines), most_text=_MOST_TEXT, reads_text=lambda _: True)
        if answer.status == 0:
            raise connection_failure(answer.failure, self.host, self._advice) from None
        if answer.status != 200:
            raise failure(self.host, answer.status, answer.headers.get("X-ClickHouse-Exception-Code"), answer.text)
        if answer.early:
            raise SinkFailure(f"{self.host} answers 200 before it has received the whole request")
        return answer.text

    def _request(self, parameters: Mapping[str, str], lines: AsyncIterator[bytes] | None) -> HTTPRequest:
        return HTTPRequest(
            f"{self._url}?{urlencode(parameters)}",
            "POST",
            HTTPHeaders({**self._headers, "Content-Type": "application/octet-stream"}),
            # In chunks, because some versions take a request with a length that is cut off between two rows for a whole
            # one. With the token of the batch, they would ignore the missing rows when the batch comes again.
            body_producer=None if lines is None else _producer(lines),  # type: ignore[arg-type]  # any awaitable will do
            body=b"" if lines is None else None,
            connect_timeout=_CONNECT_TIMEOUT,
            request_timeout=0.0,  # none here, because delivery has a time limit
            follow_redirects=False,
            decompress_response=False,
            user_agent=f"ingestd/{__version__}",
            ssl_options=self._tls,
        )


def _producer(lines: AsyncIterator[bytes]) -> Callable[[Callable[[bytes], Any]], Awaitable[None]]:
    async def produce(write: Callable[[bytes], Any]) -> None:
        async for some in lines:
            write(some)

    return produce
