"""A single request on a new connection, and the part of its answer that the sink needs."""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

__all__ = ["Answer", "ask"]

_REFUSALS = (400, 413, 422)
_MOST_READ = 4096
_TEXT_PATIENCE = 5.0  # seconds to wait for the text of a refusal, after its status has come


async def ask(request: HTTPRequest) -> Answer:
    """The answer to a request, or the reason why there is none (`failure`). Any error or cancellation ends it."""
    client = SimpleAsyncHTTPClient(force_instance=True)
    client.tcp_client = connection = _Connection(client.resolver)
    answer = Answer(connection)
    request.header_callback, request.streaming_callback = answer.on_header_line, answer.on_data
    fetching = client.fetch(request, raise_error=False)
    fetching.add_done_callback(_look_away)
    try:
        await asyncio.wait([fetching, answer.enough], return_when=asyncio.FIRST_COMPLETED)
    finally:
        client.close()
    if answer.status == 0:
        answer.failure = fetching.exception()
    return answer


class Answer:
    """The received part of an answer. `enough` is done when the sink needs no more of it."""

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        """0 until all headers have come."""
        self.early = False
        """Whether the answer came before the whole request was sent."""
        self.failure: BaseException | None = None
        """The reason why there is no answer, if known."""
        self.retry_after = ""
        self.text = b""
        self.enough = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._coming = 0

    @property
    def refuses(self) -> bool:
        """Whether the answer says that the posted records are at fault."""
        return self.status in _REFUSALS

    def on_header_line(self, line: str) -> None:
        name, _, value = line.partition(":")
        if line.startswith("HTTP/"):
            self._coming = int(line.split()[1])
        elif name.lower() == "retry-after":
            self.retry_after = value.strip()
        elif line == "\r\n" and self._coming >= 200:  # after 1xx the final answer is still to come
            self.status = self._coming
            stream = self._connection.stream
            self.early = stream is not None and stream.writing()
            if self.refuses:
                self.enough.get_loop().call_later(_TEXT_PATIENCE, self._set_enough)
            else:
                self._set_enough()

    def on_data(self, chunk: bytes) -> None:
        self.text += chunk[: _MOST_READ - len(self.text)]
        if len(self.text) == _MOST_READ:
            self._set_enough()

    def _set_enough(self) -> None:
        if not self.enough.done():
            self.enough.set_result(None)


class _Connection(TCPClient):
    """The connection of one request. Closing it ends the request, for which the HTTP client has no method."""

    def __init__(self, resolver: Resolver) -> None:
        super().__init__(resolver)
        self.stream: IOStream | None = None
        self._closed = False

    async def connect(self, *arguments: Any, **options: Any) -> IOStream:
        stream = await super().connect(*arguments, **options)
        if self._closed:
            stream.close()
            raise StreamClosedError
        self.stream = stream
        return stream

    def close(self) -> None:
        super().close()
        self._closed = True
        if self.stream is not None:
            self.stream.close()


def _look_away(fetching: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a request, so that asyncio does not log it."""
    fetching.exception()
