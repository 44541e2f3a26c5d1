"""The HTTP interface of a ClickHouse server: queries and inserts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from ingestd.api.errors import ConfigError, SinkRetry

from ..http_servers import HttpServer, basic
from .errors import failure

if TYPE_CHECKING:
    from . import ClickHouseOptions

__all__ = ["Server"]


class Server(HttpServer):
    """User and password are sent in a header, never in the URL of a request."""

    def __init__(self, options: ClickHouseOptions, path: str) -> None:
        super().__init__(options.url, options.ca_file, path, "https://clickhouse.example:8443")
        if self.parts.query or self.parts.fragment:
            raise ConfigError(f"{path}.url: takes no parameters; database, table, user and password are options")
        self._url = self.parts._replace(netloc=self.host, path=self.parts.path or "/").geturl()
        user: str | None = options.user
        password: str | None = options.password
        if self.user is not None:
            if user is not None or password is not None:
                raise ConfigError(f"{path}.user: give user and password either in the url or as options")
            user, password = self.user, self.password
        elif password is not None and user is None:
            user = "default"
        self._headers = {} if user is None else {"Authorization": basic(user, password or "")}

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
        answer = await self.ask(
            f"{self._url}?{urlencode(parameters)}",
            {**self._headers, "Content-Type": "application/octet-stream"},
            # In chunks, because some versions take a request with a length that is cut off between two rows for a whole
            # one. With the token of the batch, they would ignore the missing rows when the batch comes again.
            body_producer=None if lines is None else _producer(lines),
            body=b"" if lines is None else None,
        )
        if answer.status != 200:
            raise failure(self.host, answer.status, answer.headers.get("X-ClickHouse-Exception-Code"), answer.text)
        return answer.text


def _producer(lines: AsyncIterator[bytes]) -> Callable[[Callable[[bytes], Any]], Awaitable[None]]:
    async def produce(write: Callable[[bytes], Any]) -> None:
        async for some in lines:
            write(some)

    return produce
