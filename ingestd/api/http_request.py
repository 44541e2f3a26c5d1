"""An HTTP request that can be cancelled: it has a connection of its own, which closes with it.

A request of Tornado's clients continues after a cancellation. This one ends, so that a sink may be cancelled during it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from tornado.httpclient import HTTPRequest
from tornado.httputil import HTTPHeaders
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient, _HTTPConnection
from tornado.tcpclient import TCPClient

__all__ = ["Reply", "ask"]

_MOST_TEXT = 4096
_TEXT_PATIENCE = 5.0  # seconds to wait for the text of an answer, after its headers have come


def _no_success(status: int) -> bool:
    return not 200 <= status < 300


async def ask(
    request: HTTPRequest, *, most_text: int = _MOST_TEXT, reads_text: Callable[[int], bool] = _no_success
) -> Reply:
    """The answer to a request, or the reason why there is none (`failure`). Any error or cancellation ends it.

    The text of the answer is read only for a status with `reads_text`, only its first `most_text` bytes, and only for
    five seconds. A body producer of the request that returns an awaitable may take its time.
    """
    client = _Client(force_instance=True)
    client.tcp_client = connection = _Connection(client.resolver)
    client.answer = answer = Reply(connection, most_text, reads_text)
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


class Reply:
    """The received part of an answer. `enough` is done when the sink needs no more of it."""

    def __init__(self, connection: _Connection, most_text: int, reads_text: Callable[[int], bool]) -> None:
        self.status = 0
        """0 until all headers have come."""
        self.early = False
        """Whether the answer came before the whole request was sent."""
        self.failure: BaseException | None = None
        """The reason why there is no answer, if known."""
        self.headers = HTTPHeaders()
        self.text = b""
        """The first bytes of the text, if it was read."""
        self.producing = False
        """Whether the body of the request is being produced."""
        self.enough = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._most_text = most_text
        self._reads_text = reads_text
        self._coming = 0

    def on_header_line(self, line: str) -> None:
        if line.startswith("HTTP/"):
            self._coming, self.headers = int(line.split()[1]), HTTPHeaders()
        elif line != "\r\n":
            self.headers.parse_line(line)
        elif self._coming >= 200:  # after 1xx the final answer is still to come
            self.status = self._coming
            stream = self._connection.stream
            self.early = self.producing or (stream is not None and stream.writing())
            if self._reads_text(self.status):
                self.enough.get_loop().call_later(_TEXT_PATIENCE, self._set_enough)
            else:
                self._set_enough()

    def on_data(self, chunk: bytes) -> None:
        self.text += chunk[: self._most_text - len(self.text)]
        if len(self.text) == self._most_text:
            self._set_enough()

    def _set_enough(self) -> None:
        if not self.enough.done():
            self.enough.set_result(None)


class _Client(SimpleAsyncHTTPClient):
    answer: Reply

    def _connection_class(self) -> type:
        return _Exchange


class _Exchange(_HTTPConnection):
    """Reads the answer also while the body is still produced.

    Tornado begins to read afterwards. Then the reason of a server that has closed the connection is lost.
    """

    client: _Client

    async def _write_body(self, start_read: bool) -> None:
        if self.request.body_producer is None or not start_read:
            await super()._write_body(start_read)
            return
        producing = asyncio.create_task(self._produce())
        try:
            await self.connection.read_response(self)
        except StreamClosedError:
            if not self._handle_exception(*sys.exc_info()):
                raise
        finally:
            producing.cancel()

    async def _produce(self) -> None:
        self.client.answer.producing = True
        producer: Any = self.request.body_producer
        try:
            await producer(self.connection.write)
        except Exception:
            self.connection.close()  # otherwise the server would wait for the rest
            raise
        self.client.answer.producing = False
        self.connection.finish()


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
