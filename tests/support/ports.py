"""Free ports for servers that must be told theirs."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_PORTS = range(15_000, 32_000)  # below those the system gives to clients, one of which might be quicker


def free_port() -> int:
    """One that nobody listens on. Another test may ask at the same time, so it is any."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
