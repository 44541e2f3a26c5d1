"""The client's address: that of the connection, or the one that trusted proxies report."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from ingestd.support.addresses import network_of

__all__ = ["UNIX_PEER", "Peers"]

UNIX_PEER = "0.0.0.0"  # noqa: S104 - nothing is bound to it
"""Stands for the address of a Unix socket's peer, which has none."""
_REMEMBERED = 4096
_LONGEST = 64  # characters; a longer entry is no address
_MOST_HOPS = 32

_WITH_PORT = re.compile(r"\[([^\[\]]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


class _Hop(NamedTuple):
    address: str
    trusted: bool


class Peers:
    """Finds the client's address. `trusted` are the addresses and networks of trusted proxies.

    `X-Forwarded-For` is read from the right, where the nearest proxy writes, up to the first address that is no
    trusted proxy's. Any client can forge the entries left of it.
    """

    def __init__(self, trusted: Collection[str]) -> None:
        self.trust_any = bool(trusted)
        self._trusted = [ipaddress.ip_network(network) for network in trusted]
        # Cached, since parsing an address takes microseconds, and those of proxies and busy clients recur.
        self._hop = lru_cache(_REMEMBERED)(self._read)

    def client(self, peer: str, headers: Mapping[str, str]) -> str:
        """The client's address without its zone, an IPv4-mapped one as IPv4; empty if there is none.

        `peer` is the connection's address, or `UNIX_PEER`.
        """
        hop = self._hop(peer) if peer != UNIX_PEER else None
        if hop is None:
            return ""
        if hop.trusted:
            forwarded = headers.get("X-Forwarded-For", "")  # several such headers are one, joined by commas
            for entry in reversed(forwarded.rsplit(",", _MOST_HOPS)):
                further = self._hop(entry.strip()) if len(entry) <= _LONGEST else None
                if further is None:
                    break
                hop = further
                if not hop.trusted:
                    break
        return hop.address

    def origin(self, peer: str) -> str | bytes | None:
        """The key by which connections from this address are counted.

        None for a trusted proxy and a Unix socket, since these stand for many callers.
        """
        hop = self._hop(peer) if peer != UNIX_PEER else None
        return None if hop is None or hop.trusted else network_of(hop.address)

    def _read(self, entry: str) -> _Hop | None:
        """Parse an entry with or without a port; None if it is no address."""
        match = _WITH_PORT.fullmatch(entry)
        try:
            address = ipaddress.ip_address(entry if match is None else match[1] or match[2])
        except ValueError:
            return None
        if isinstance(address, ipaddress.IPv6Address):
            # An address made from bytes has no zone. A zone means nothing to another machine.
            address = address.ipv4_mapped or ipaddress.IPv6Address(address.packed)
        return _Hop(str(address), any(address in network for network in self._trusted))
