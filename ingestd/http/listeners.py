"""The two HTTP servers that `[http] server` chooses from. Callers need not know which one answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ingestd.config import HttpOptions

from .client_connection import StartRequest
from .connection_limits import Connections
from .server.server import FastServer
from .tornado_server import IngestServer

__all__ = ["SERVERS", "IngestListener"]


class IngestListener(Protocol):
    """The interface of a server for the daemon."""

    def adopt(self, options: HttpOptions) -> None: ...
    def add_sockets(self, sockets: Iterable[socket.socket]) -> None: ...
    def accept_queued(self) -> None: ...
    def stop(self) -> None: ...
    async def close_all_connections(self) -> None: ...


SERVERS: Mapping[str, Callable[[StartRequest, HttpOptions, Connections], IngestListener]] = {
    "fast": FastServer,
    "tornado": IngestServer,
}
