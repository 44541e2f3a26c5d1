"""Domain names: one form for each, whether it was written in letters, in punycode or in capitals."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

__all__ = ["ascii_domain", "ip_address"]

_REMEMBERED = 1024
_LONGEST = 253  # characters of a domain in DNS


def ascii_domain(name: str) -> str:
    """The name as DNS and browsers write it: in lower case, with labels beyond ASCII in punycode.

    A name that cannot be a domain comes back in lower case.
    """
    if name.isascii():
        return name.lower()
    return _encoded(name) if len(name) <= _LONGEST else name.lower()


@lru_cache(_REMEMBERED)
def _encoded(name: str) -> str:
    # Imported here: few shops have such a domain, and the tables take a start's time and memory.
    from idna import IDNAError, uts46_remap

    try:
        # As browsers do it (UTS 46), which accept more than registries: underscores and symbols too.
        labels = uts46_remap(name, std3_rules=False).split(".")
    except IDNAError:
        return name.lower()
    return ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels)


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, brackets included where it is one of IPv6; None if it is a name."""
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None
    return address if bracketed == (address.version == 6) else None
