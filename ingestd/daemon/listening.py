"""The daemon's listening sockets, and requests to a daemon that already listens on an address.

systemd may pass sockets by the protocol of sd_listen_fds(3). Their names (`FileDescriptorName=` of the socket unit)
distinguish them. They replace the addresses of the configuration. systemd keeps them open during a restart of the
daemon, so new connections wait in their queue. The daemon may close its copies without losing that queue.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import os
import socket
from collections.abc import AsyncIterator

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from ingestd.api.errors import ConfigError
from ingestd.api.options import Address
from ingestd.http.app import IngestListener

__all__ = [
    "EVENTS", "OPERATORS", "answers_events", "bind", "inherited_sockets", "listen", "readiness", "serving_operators",
]  # fmt: skip

_log = logging.getLogger("ingestd.server")

EVENTS = "ingestd"
OPERATORS = "ingestd-ops"

_FIRST = 3  # the descriptor after standard input, output and error
_HINT = f"FileDescriptorName= of a socket unit is {EVENTS} for events, {OPERATORS} for the operators' port"
_BACKLOG = 1024
_ANSWER_TIMEOUT = 3.0  # seconds for a daemon on this machine to answer


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
        origin = " (a socket passed by systemd)" if inherited else ""
        _log.info("listening for %s on http://%s%s", what, Address(host, port), origin)
    return Address(*sockets[0].getsockname()[:2])


def bind(address: Address) -> list[socket.socket]:
    """Listen on the address. Raises `ConfigError` without the permission, `OSError` for errors that may pass."""
    try:
        return bind_sockets(address.port, address.host, backlog=_BACKLOG)
    except OSError as error:
        what = f"cannot listen on {address}: {error.strerror}"
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"{what}; give the daemon the capability CAP_NET_BIND_SERVICE, or use a port from 1024"
            ) from error
        raise OSError(error.errno, what) from error


def inherited_sockets() -> dict[str, list[socket.socket]]:
    """The passed sockets by name, empty if this process got none. Raises `ConfigError`. It must be called only once."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):  # no sockets, or sockets for the process that started us
        return {}
    given = os.environ.get("LISTEN_FDS", "")
    if not (given.isascii() and given.isdigit()):
        raise ConfigError(f"LISTEN_FDS is {given!r}, and must be the number of passed sockets")
    count = int(given)
    names = os.environ["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in os.environ else ["unknown"] * count
    if len(names) != count:
        raise ConfigError(f"LISTEN_FDNAMES has {len(names)} names for {count} sockets")
    found: dict[str, list[socket.socket]] = {}
    for number, name in enumerate(names, start=_FIRST):
        if name not in {EVENTS, OPERATORS}:
            raise ConfigError(f"systemd has passed a socket with the name {name!r}: {_HINT}")
        found.setdefault(name, []).append(_listening(number, name))
    return found


def _listening(number: int, name: str) -> socket.socket:
    try:
        sock = socket.socket(fileno=number)
    except OSError as error:
        raise ConfigError(
            f"systemd has passed {name} as descriptor {number}, which is not a socket: {error.strerror}"
        ) from error
    if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.type != socket.SOCK_STREAM:
        raise ConfigError(f"the socket {name} must be a TCP socket: ListenStream= with an address and a port")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError(f"the socket {name} must be a listening socket: Accept=no")
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def answers_events(address: Address, path: str) -> bool:
    """Whether the listener there takes events. It gets a preflight request, which is not counted or logged."""
    answer = _ask(address, "OPTIONS", path)
    return (
        answer is not None and "x-request-id" in answer[1] and answer[1].get("access-control-allow-methods") == "POST"
    )


def readiness(address: Address) -> str | None:
    """The readiness of the daemon whose operators' listener has this address: `ok` or a reason.

    None if no such listener answers.
    """
    metrics = _ask(address, "GET", "/metrics")
    if metrics is None or b"\ningestd_build_info{" not in metrics[2]:
        return None
    ready = _ask(address, "GET", "/readyz")
    return None if ready is None else ready[2].decode("utf-8", "replace").strip()


def _ask(address: Address, method: str, path: str) -> tuple[int, dict[str, str], bytes] | None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_ANSWER_TIMEOUT)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read(1 << 24)
    except (OSError, http.client.HTTPException):  # nothing there speaks HTTP
        return None
    finally:
        connection.close()
