"""Whose a connection is that was accepted; and accepting by hand, when a server listens no more."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

__all__ = ["accept_queued", "remote_ip"]

_MOST = 4096
"""More than a queue holds: so many may come while it is being emptied, and a flood must come to an end."""


def accept_queued(sock: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
    """Accept all who have connected to a socket: to them it looks open, and the system resets them when it closes."""
    for _ in range(_MOST):
        try:
            connection, address = sock.accept()
        except ConnectionAbortedError:  # that one has gone again
            continue
        except OSError:  # there are no more; or no descriptors are left, and they cannot be served
            return
        accepted(connection, address)


def remote_ip(sock: socket.socket, address: Any) -> str:
    """The address of the other end, in Tornado's words."""
    of_network = sock.family in {socket.AF_INET, socket.AF_INET6}
    return str(address[0]) if of_network else "0.0.0.0"  # noqa: S104 - that of a Unix socket
