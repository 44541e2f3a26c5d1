"""A network that can be cut between any two parties: proxies in front of all servers, which know who connects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Cut", "CuttableNetwork", "cuttable_network"]

_LOCAL = "127.0.0.1"


class Cut:
    """The ways in which two parties do not reach each other."""

    SILENT = "silent"
    """Nothing arrives in either direction until the network heals; then all arrives, as TCP repeats it."""
    NO_ANSWERS = "no answers"
    """What the client sends arrives, and nothing that the server answers."""
    REFUSED = "refused"
    """Connections end, and new ones are refused."""


class CuttableNetwork:
    """It runs on a thread, so tests may block.

    A party is a server, or a client by the address that it connects from. Clients on 127.0.0.1 are told apart by a word
    in the first data that they send.
    """

    def __init__(self) -> None:
        self._clients: dict[str, str] = {}
        """By address or word: the name of a client."""
        self._cuts: dict[tuple[str, str], str] = {}
        """By client and server: how the two are cut off from each other."""
        self._connections: dict[asyncio.Task[None], tuple[str, str]] = {}
        """All proxied connections, each with its client and server."""
        self._serving: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def name_client(self, name: str, address_or_word: str) -> None:
        self._clients[address_or_word] = name

    def connect(self, name: str, port: int, target: int) -> None:
        """A proxy on `port` in front of the port of a server."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(name, target, reader, writer)

        async def start() -> None:
            self._servers.append(await asyncio.start_server(serve, _LOCAL, port))

        self._run(start())

    def cut(self, these: Collection[str], others: Collection[str], how: str = Cut.SILENT) -> None:
        """Cut each of `these` off from each of `others`, whichever of the two connects."""

        async def cut() -> None:
            pairs = {(one, other) for one in these for other in others}
            pairs |= {(other, one) for one, other in pairs}
            self._cuts |= dict.fromkeys(pairs, how)
            if how == Cut.REFUSED:
                for task, pair in self._connections.items():
                    if pair in pairs:
                        task.cancel()

        self._run(cut())

    def heal(self) -> None:
        """Everything that was held arrives now."""

        async def heal() -> None:
            self._cuts.clear()
            self._changed.set()
            self._changed = asyncio.Event()

        self._run(heal())

    def end(self) -> None:
        """All clients must have ended."""

        async def end() -> None:
            # asyncio accepts a connection in a task, which is not cancelled: the connection would stay open.
            while asyncio.all_tasks() - {asyncio.current_task()}:
                for task in self._serving:
                    task.cancel()
                await asyncio.sleep(0)
            for server in self._servers:
                server.close()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(
        self, server: str, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        back = None
        with suppress(OSError, asyncio.CancelledError):
            address = writer.get_extra_info("peername")[0]
            first = b"" if address != _LOCAL else await reader.read(1 << 16)
            pair = (self._client_of(address, first), server)
            if self._cuts.get(pair) != Cut.REFUSED:
                self._connections[task] = pair
                there, back = await asyncio.open_connection(_LOCAL, target)
                await asyncio.gather(
                    self._pass(reader, back, lambda: self._cuts.get(pair) == Cut.SILENT, first),
                    self._pass(there, writer, lambda: pair in self._cuts),
                )
        self._connections.pop(task, None)
        self._serving.discard(task)
        for each in (writer, back):
            if each is not None:
                each.transport.abort()

    def _client_of(self, address: str, first: bytes) -> str:
        found = [name for word, name in self._clients.items() if word == address or word.encode() in first]
        return found[0] if found else ""

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_held: Callable[[], bool], data: bytes = b""
    ) -> None:
        data = data or await reader.read(1 << 16)
        while data:
            while is_held():
                await self._changed.wait()
            writer.write(data)
            await writer.drain()
            data = await reader.read(1 << 16)
        # An end is held too: only data can tell a peer that the network is back.
        while is_held():
            await self._changed.wait()
        writer.transport.abort() if not writer.can_write_eof() else writer.write_eof()


@contextmanager
def cuttable_network() -> Iterator[CuttableNetwork]:
    network = CuttableNetwork()
    try:
        yield network
    finally:
        network.end()
