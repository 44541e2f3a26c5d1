"""Domain names and addresses in one form each, and the network of an address, by which limits count callers."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

__all__ = ["ascii_domain", "ip_address", "network_of"]


def network_of(address: str) -> str | bytes:
    """The network of a caller: the IPv4 address, or the /64 of an IPv6 address.

    An IPv6 customer has at least a /64, and can use every address in it. `address` has no zone, like `Request.peer`.
    """
    return socket.inet_pton(socket.AF_INET6, address)[:8] if ":" in address else address


_REMEMBERED = 1024
_LONGEST = 253  # characters of a domain in DNS


def ascii_domain(name: str) -> str:
    """The name as DNS and browsers write it: in lower case, with non-ASCII labels in punycode.

    If the name cannot be a domain, the result is the name in lower case.
    """
    if name.isascii():
        return name.lower()
    return _encoded(name) if len(name) <= _LONGEST else name.lower()


@lru_cache(_REMEMBERED)
def _encoded(name: str) -> str:
    # Imported here, since few shops have such a domain, and loading the tables costs time and memory.
    from idna import IDNAError, uts46_remap

    try:
        # Browsers follow UTS 46 and accept more than registries do, such as underscores and symbols.
        labels = uts46_remap(name, std3_rules=False).split(".")
    except IDNAError:
        return name.lower()
    return ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is, or None if the host is a name. An IPv6 address must have brackets."""
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None
    return address if bracketed == (address.version == 6) else None
