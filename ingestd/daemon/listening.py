"""The listeners of the daemon begin to serve, on their addresses or on passed sockets."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from tornado.httpserver import HTTPServer
from tornado.web import Application

from ingestd.api.options import Address
from ingestd.http.listeners import IngestListener

from .sockets import bind

__all__ = ["listen", "serving_operators"]

_log = logging.getLogger("ingestd.server")


@contextlib.asynccontextmanager
async def serving_operators(
    ops: Application, address: Address, inherited: list[socket.socket] | None
) -> AsyncIterator[None]:
    """Serve the operators on passed sockets, or else on an address. Their connections are closed at the end."""
    server = HTTPServer(ops)
    listen(server, address, "operators", inherited)
    try:
        yield
    finally:
        server.stop()
        await server.close_all_connections()


def listen(
    server: HTTPServer | IngestListener, address: Address, what: str, inherited: list[socket.socket] | None
) -> Address:
    """Serve on passed sockets, or else on an address. Returns the address of the first socket."""
    sockets = inherited or bind(address)
    server.add_sockets(sockets)
    for sock in sockets:
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if sock.family == socket.AF_INET6 else host
        origin = ", a socket passed by systemd" if inherited else ""
        _log.info("listening for %s on http://%s:%d%s", what, shown, port, origin)
    return Address(*sockets[0].getsockname()[:2])
