"""What is between a daemon and its Redis: it can hold back what flows, or lose it and cut the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["RedisProxy", "redis_proxy"]

_CHUNK = 1 << 16

Judge = Callable[[bytes], bool]
"""Says of bytes sent in one go whether the connection ends here."""


class RedisProxy:
    """Passes on everything, unless it is told otherwise."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.loses_request: Judge = lambda _: False
        """Requests for which it is true do not arrive: the connection is cut instead."""
        self.loses_reply: Judge = lambda _: False
        """Requests for which it is true arrive, but instead of the reply the connection is cut."""
        self.lost = 0
        """How often it has cut a connection."""
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._ended = asyncio.Event()
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def hold(self) -> None:
        """Keep what flows, either way, until `let_go`."""
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
        """Cut all connections, for good."""
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
            await asyncio.gather(*ways, return_exceptions=True)  # an end may have been cut already
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
    """A proxy in front of the Redis on that port of this machine."""
    proxy = RedisProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()
