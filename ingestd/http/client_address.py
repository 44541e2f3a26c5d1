"""Whose address a request comes from: that of the connection, or what trusted proxies say of it."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from ingestd.api.addresses import network_of

__all__ = ["STORED_FORMS", "Peers", "truncated"]

_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - nothing is bound to it: Tornado's word for the peer of a Unix socket
_REMEMBERED = 4096
_LONGEST = 64  # characters of an entry that can be an address
_MOST_HOPS = 32

_WITH_PORT = re.compile(r"\[([^\[\]]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


class _Hop(NamedTuple):
    address: str
    trusted: bool


class Peers:
    """Finds the client's address, given the addresses and networks of proxies to believe.

    `X-Forwarded-For` is read from the right, where the nearest proxy has written. What stands left of
    the first address that is no trusted proxy's may be anybody's words.
    """

    def __init__(self, trusted: Iterable[str]) -> None:
        self._trusted = [ipaddress.ip_network(network) for network in trusted]
        # Proxies and busy clients are asked for again and again, and to read an address takes microseconds.
        self._hop = lru_cache(_REMEMBERED)(self._read)

    def client(self, peer: str, headers: Mapping[str, str]) -> str:
        """The client's address, without zone, IPv4 where it is an IPv4-mapped one; empty if there is none.

        `peer` is the connection's, as Tornado has it.
        """
        if not self._trusted and ":" not in peer:
            return peer if peer != _NO_ADDRESS else ""
        hop = self._hop(peer) if peer != _NO_ADDRESS else None
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
        """What connections from this address are counted by; None for a trusted proxy and a Unix socket.

        These stand for many callers.
        """
        hop = self._hop(peer) if peer != _NO_ADDRESS else None
        return None if hop is None or hop.trusted else network_of(hop.address)

    def _read(self, entry: str) -> _Hop | None:
        """What an entry says, with a port or without; None if it is no address."""
        match = _WITH_PORT.fullmatch(entry)
        try:
            address = ipaddress.ip_address(entry if match is None else match[1] or match[2])
        except ValueError:
            return None
        if isinstance(address, ipaddress.IPv6Address):
            # Made anew from its bytes, it is without its zone, which means nothing to another machine.
            address = address.ipv4_mapped or ipaddress.IPv6Address(address.packed)
        return _Hop(str(address), any(address in network for network in self._trusted))


def truncated(address: str) -> str:
    """The address of its network: of an IPv4 address the /24, of an IPv6 address the /48."""
    if ":" not in address:
        return address.rpartition(".")[0] + ".0"
    return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address)[:6] + bytes(10))


STORED_FORMS: Mapping[str, Callable[[str], str] | None] = {"no": None, "truncated": truncated, "whole": str}
"""What is made of an address that is stored, by the value of `[http] store_address`; None: it is not."""
