"""Listening sockets that systemd has opened for the daemon, by the protocol of sd_listen_fds(3).

The names of the sockets (`FileDescriptorName=` of the socket unit) distinguish them. They replace the addresses of the
configuration. systemd keeps them open during a restart of the daemon, so new connections wait in their queue. The
daemon may close its copies without losing that queue.
"""

from __future__ import annotations

import os
import socket

from ingestd.api.errors import ConfigError

__all__ = ["EVENTS", "OPERATORS", "inherited_sockets"]

EVENTS = "ingestd"
OPERATORS = "ingestd-ops"

_FIRST = 3  # the descriptor after standard input, output and error
_HINT = f"FileDescriptorName= of a socket unit is {EVENTS} for events, {OPERATORS} for the operators' port"


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
