"""The network of an IP address, by which limits count callers."""

from __future__ import annotations

import socket

__all__ = ["network_of"]


def network_of(address: str) -> str | bytes:
    """The network of a caller: the IPv4 address, or the /64 of an IPv6 address.

    An IPv6 customer has at least a /64, and can use every address in it. `address` has no zone, like `Request.peer`.
    """
    return socket.inet_pton(socket.AF_INET6, address)[:8] if ":" in address else address
