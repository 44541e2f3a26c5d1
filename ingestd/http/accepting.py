"""The queued connections of a listening socket, and the address of an accepted client."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

__all__ = ["accept_queued", "remote_ip"]

_MOST = 4096
"""More connections than a queue holds. Others arrive while it is emptied, and a flood must not keep the loop going."""


def accept_queued(sock: socket.socket, accepted: Callable[[socket.socket, Any], None]) -> None:
    """Accept all queued connections of a socket, which the system would reset when the socket closes.

    The clients already take these connections for open.
    """
    for _ in range(_MOST):
        try:
            connection, address = sock.accept()
        except ConnectionAbortedError:  # the client has disconnected
            continue
        except OSError:  # the queue is empty, or no descriptors are left to serve a client
            return
        accepted(connection, address)


def remote_ip(sock: socket.socket, address: Any) -> str:
    """The client's address in Tornado's form: 0.0.0.0 for a Unix socket."""
    of_network = sock.family in {socket.AF_INET, socket.AF_INET6}
    return str(address[0]) if of_network else "0.0.0.0"  # noqa: S104 - nothing is bound to it
