"""A proxy between a daemon and its Redis, which can delay data, or drop it and close the connection."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["RedisProxy", "redis_proxy"]

_CHUNK = 1 << 16
_ARRIVAL = 0.1  # seconds in which commands on their way arrive

Judge = Callable[[bytes], bool]
"""Decides whether the connection is closed at these bytes, which arrived together."""


class RedisProxy:
    """A proxy that passes on all data, unless configured otherwise."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.loses_request: Judge = lambda _: False
        """If true for a request, the request is dropped and the connection is closed."""
        self.loses_reply: Judge = lambda _: False
        """If true for a request, the request arrives, but its reply is dropped and the connection is closed."""
        self.before: dict[str, Callable[[], None]] = {}
        """What is done once before a command with this name is passed on. Those before it have arrived then."""
        self.lost = 0
        """The number of closed connections."""
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._ended = asyncio.Event()
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def hold(self) -> None:
        """Delays data in both directions until `let_go`."""
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._passing.discard(task)

    async def end(self) -> None:
        """Closes all connections and ends the proxy."""
        self._ended.set()
        await asyncio.gather(*self._passing)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        cut = asyncio.Event()
        ways: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._pass_requests(reader, there, cut)),
            asyncio.create_task(self._pass_replies(there_reader, writer, cut)),
            asyncio.create_task(self._ended.wait()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)  # one side may be closed already
            for end in (writer, there):
                end.transport.abort()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        while sent := await reader.read(_CHUNK):
            await self._open.wait()
            if self.loses_request(sent):
                self.lost += 1
                return
            if self.loses_reply(sent):
                cut.set()
            for name in [*self.before]:
                begin = re.search(rb"\*\d+\r\n\$%d\r\n%b\r\n" % (len(name), name.encode()), sent)
                if begin is not None:
                    writer.write(sent[: begin.start()])
                    await asyncio.sleep(_ARRIVAL)
                    self.before.pop(name)()
                    sent = sent[begin.start() :]
            writer.write(sent)
            await writer.drain()

    async def _pass_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        while sent := await reader.read(_CHUNK):
            await self._open.wait()
            if cut.is_set():
                self.lost += 1
                return
            writer.write(sent)
            await writer.drain()


@asynccontextmanager
async def redis_proxy(target: int) -> AsyncIterator[RedisProxy]:
    """A proxy in front of the Redis on this local port."""
    proxy = RedisProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK)  # so that `hold` soon stops a sender
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()
