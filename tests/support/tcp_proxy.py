"""A proxy before a server, on a thread. It can cut its connections, delay data, and refuse new connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["TcpProxy", "tcp_proxy"]


class TcpProxy:
    """Passes all data on. It runs on its own thread, so tests may block, and use several event loops."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = self._usual = target
        self._open: set[asyncio.StreamWriter] = set()
        self._requests_flow = asyncio.Event()
        self._requests_flow.set()
        self._answers_flow = asyncio.Event()
        self._answers_flow.set()
        self.pause = 0.0
        """Seconds after each 64 KiB of requests."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", self.port), self._loop
        ).result()

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Cuts all connections. New ones are possible."""
        self._call(self._cut)

    def hold(self) -> None:
        """Passes no data on until `let_go`."""
        self.hold_requests()
        self.hold_answers()

    def hold_requests(self) -> None:
        """Passes answers on, and no requests until `let_go`."""
        self._call(self._requests_flow.clear)

    def hold_answers(self) -> None:
        """Passes requests on, and no answers until `let_go`."""
        self._call(self._answers_flow.clear)

    def let_go(self) -> None:
        self._call(self._requests_flow.set)
        self._call(self._answers_flow.set)

    def divert(self, target: int | None) -> None:
        """Cuts all connections. New ones lead to another port, or to the usual one again."""
        self._target = self._usual if target is None else target
        self.cut()

    def _call(self, function: Callable[[], None]) -> None:
        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        self._requests_flow.set()
        self._answers_flow.set()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(
                self._pass(reader, back, self._requests_flow), self._pass(there, writer, self._answers_flow)
            )
        finally:
            self._open -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await flows.wait()
                if flows is self._requests_flow:
                    await asyncio.sleep(self.pause)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextmanager
def tcp_proxy(port: int, target: int) -> Iterator[TcpProxy]:
    proxy = TcpProxy(port, target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.end()
