"""Free ports for servers, and a local address for ports that no other test can get."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from pathlib import Path

__all__ = ["free_port", "own_host"]

_PORTS = range(15_000, 32_000)  # below the ports of clients, one of which could take the port first
_FOLDER = Path("/tmp")  # not that for temporary files, which differs between `make test` and a single test beside it


def free_port() -> int:
    """A port without a listener. All processes of a user get one after the other.

    A random one could belong to a server of another test that has not begun yet, or is about to begin again.
    """
    with (_FOLDER / f"ingestd-test-port-{os.getuid()}").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        port = int(last.read() or random.choice(_PORTS))
        while True:
            port = _PORTS.start + (port + 1 - _PORTS.start) % len(_PORTS)
            if _is_free(port):
                break
        last.truncate(0)
        last.write(str(port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def own_host() -> str:
    """A local address that only this process uses, so that no other test gets its released ports."""
    high, low = divmod(os.getpid(), 254)
    return f"127.1.{1 + high % 254}.{1 + low}"
