"""The fast server: its listening sockets, and the state that its connections share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

from tornado.netutil import add_accept_handler

from ingestd.config import HttpOptions
from ingestd.http.client_connection import StartRequest, accept_queued
from ingestd.http.connection_limits import Connections

from .connection import FastConnection

__all__ = ["FastServer"]

_READ_AT_ONCE = 65536


class FastServer:
    """Serves requests that `start_request` reads. `connections.watch()` must be running, for the time limits."""

    def __init__(self, start_request: StartRequest, options: HttpOptions, connections: Connections) -> None:
        self.start_request = start_request
        self.connections = connections
        self.apply_options(options)
        self.buffer = bytearray(_READ_AT_ONCE)
        self.view = memoryview(self.buffer)
        self.context = copy_context()
        """In which requests begin."""
        self._open: set[FastConnection] = set()
        self._making: set[asyncio.Task[Any]] = set()
        self._listening: list[tuple[socket.socket, Callable[[], None]]] = []

    def apply_options(self, options: HttpOptions) -> None:
        self.max_header_size = int(options.max_header_size)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on listening sockets."""
        self._listening += [(sock, add_accept_handler(sock, self._accepted)) for sock in sockets]

    def accept_queued(self) -> None:
        """Accept the connections in the sockets' queues, without waiting for more."""
        for sock, _ in self._listening:
            accept_queued(sock, self._accepted)

    def stop(self) -> None:
        """Accept no more connections."""
        for sock, remove in self._listening:
            remove()
            sock.close()
        self._listening = []

    async def close_all_connections(self) -> None:
        for client in list(self._open):
            client.close()
        while self._open:  # noqa: ASYNC110 - the loop drops them in its next turns
            await asyncio.sleep(0)
        self.connections.close()

    def lost(self, client: FastConnection) -> None:
        self._open.discard(client)

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        sock.setblocking(False)
        admitted = self.connections.admit(sock, address)
        if admitted is None:
            sock.close()
            return
        client = FastConnection(self, admitted)  # counted from now on
        self._open.add(client)
        making = asyncio.get_running_loop().connect_accepted_socket(lambda: client, sock)
        task = asyncio.ensure_future(making)
        self._making.add(task)
        task.add_done_callback(lambda task: self._made(client, task))

    def _made(self, client: FastConnection, task: asyncio.Task[Any]) -> None:
        self._making.discard(task)
        if task.cancelled() or task.exception() is not None:
            client.close()
            self._open.discard(client)
