"""Free ports for servers that must be told theirs, and an address for those whose ports nobody else is to get."""

from __future__ import annotations

import os
import random
import socket

__all__ = ["free_port", "own_host"]

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


def own_host() -> str:
    """An address of this machine for this process alone: no other test gets a port that was left there."""
    high, low = divmod(os.getpid(), 254)
    return f"127.1.{1 + high % 254}.{1 + low}"
