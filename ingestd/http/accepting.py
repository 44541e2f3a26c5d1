"""Accepting by hand, when a server listens no more."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

__all__ = ["accept_queued"]

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
