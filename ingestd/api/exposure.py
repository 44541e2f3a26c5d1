"""Connections that somebody can read or take over on their way: `ingestd check` warns of them."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from ingestd.support.addresses import ip_address

__all__ = ["has_credentials", "is_local", "password_in_clear", "remote_host"]


def is_local(host: str) -> bool:
    """Whether a host is this machine: an empty one, the path of a Unix socket, localhost, a loopback address.

    A host may be percent-encoded, as in a URL. An IPv6 address may have brackets. No name is looked up.
    """
    name = unquote(host).lower().removesuffix(".")
    if not name or name.startswith("/") or name == "localhost" or name.endswith(".localhost"):
        return True
    address = ip_address(name) or ip_address(f"[{name}]")
    if address is None:
        return False
    return ((address.version == 6 and address.ipv4_mapped) or address).is_loopback


def remote_host(url: str) -> str | None:
    """The first host of a URL that is another machine, or None. A URL may have several hosts with commas."""
    for place in urlsplit(url).netloc.rpartition("@")[2].split(","):
        host = place[: place.index("]") + 1] if place.startswith("[") and "]" in place else place.partition(":")[0]
        if not is_local(host):
            return host
    return None


def has_credentials(url: str) -> bool:
    return "@" in urlsplit(url).netloc


def password_in_clear(option: str, url: str, cure: str) -> list[str]:
    """The warning for a URL without TLS to another machine, to which a password is sent. Empty if there is none."""
    host = remote_host(url)
    return [] if host is None else [f"{option}: the password is sent to {host} without TLS; {cure}"]
