"""Free ports for servers, and a local address for ports that no other test can get."""

from __future__ import annotations

import os
import random
import socket

__all__ = ["free_port", "own_host"]

_PORTS = range(15_000, 32_000)  # below the ports of clients, one of which could take the port first


def free_port() -> int:
    """A port without a listener. It is random, because another test may ask at the same time."""
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
    """A local address that only this process uses, so that no other test gets its released ports."""
    high, low = divmod(os.getpid(), 254)
    return f"127.1.{1 + high % 254}.{1 + low}"
