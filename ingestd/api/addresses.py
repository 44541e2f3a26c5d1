"""Whose an address is, as far as limits go."""

from __future__ import annotations

import socket

__all__ = ["network_of"]


def network_of(address: str) -> str | bytes:
    """What the addresses of one caller have in common: an IPv4 address itself, of an IPv6 address its /64.

    The network of one IPv6 customer is a /64 at least, and any address in it is theirs to use. `address` is without
    zone, as `Request.peer` is.
    """
    return socket.inet_pton(socket.AF_INET6, address)[:8] if ":" in address else address
