"""Hosts in options: origins of pages, host names of a listener, and whether somebody can read a connection."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any
from urllib.parse import unquote, urlsplit

from .addresses import ascii_domain, ip_address

__all__ = ["HostName", "Origin", "has_credentials", "is_local", "password_in_clear", "remote_host"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_WEB = {"", "http", "https", "ws", "wss"}
"""Schemes whose hosts are domains and IP addresses. Hosts of other schemes (capacitor, chrome-extension) differ."""
_OPAQUE = {"file", "data", "about"}
"""Schemes of pages without an origin."""
# No port follows the colon of a scheme: `shop.example:8080` has a port, and no scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!\d+(?:[/?#]|$))/*")
_REST = re.compile(r"(?:(?P<credentials>[^/?#\\]*)@)?(?P<authority>[^/?#\\@]*)(?P<path>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:]+)(?::(?P<port>[0-9]*))?")
_NO_DOMAIN = re.compile(r"[\x00-\x20#%*,/:<>?@\[\\\]^|\x7f]")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class Origin(str):
    """The origin of a page, in the form that browsers send: `https://shop.example`.

    `*` means every origin. `null` is the origin of pages without an origin, such as a file or a sandboxed frame.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> Origin:
        """Raises `ValueError` with the form that was probably meant."""
        text = text.strip() if isinstance(text, str) else ""
        if text == "*" or text.lower() == "null":
            return cls(text.lower())
        if "*" in text:
            raise ValueError(f'an origin has no wildcards: list each one{_without_wildcards(text)}, or "*" for all')
        match = _SCHEME.match(text)
        scheme = match[1].lower() if match is not None else ""
        if scheme in _OPAQUE:
            raise ValueError(f'a page of {scheme}: has no origin; did you mean "null"?')
        parts = _REST.fullmatch(text[match.end() :] if match is not None else text.lstrip("/"))
        assert parts is not None  # the pattern matches any text
        host, port, bracketed = _authority(parts["authority"], web=scheme in _WEB)
        supposed = {"": _likely_scheme(host), "ws": "http", "wss": "https"}.get(scheme, scheme)
        origin = f"{supposed}://{host}"
        if port is not None and port != _DEFAULT_PORTS.get(supposed):
            origin += f":{port}"
        reason = None
        if supposed != scheme:
            reason = f"no page has the scheme {scheme}" if scheme else "the scheme is missing"
        elif match is not None and not re.fullmatch("[^/]*://", match[0]):
            reason = "two slashes must follow the scheme"
        elif parts["credentials"] is not None:
            reason = "an origin has no user and no password"
        elif parts["path"] not in {"", "/"}:
            reason = "an origin has no path, query or fragment"
        elif not bracketed:
            reason = "an IPv6 address must be in brackets"
        if reason is not None:
            raise ValueError(f'{reason}; did you mean "{origin}"?')
        return cls(origin)


class HostName(str):
    """A host that a listener answers to: `ingestd.example`, `*.example` for every name below it, or `*` for any."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: Any) -> HostName:
        """Raises `ValueError` with the form that was probably meant."""
        expected = 'expected the name of a host, such as "ingestd.example", "*.example" or "*"'
        text = text.strip() if isinstance(text, str) else ""
        if text == "*":
            return cls(text)
        wildcard, name = ("*.", text[2:]) if text.startswith("*.") else ("", text)
        try:
            return cls(wildcard + _host(f"[{name}]" if _is_bare_ipv6(name) else name).removesuffix("."))
        except ValueError:
            raise ValueError(f"{expected}{_suggestion(name, wildcard)}") from None


def _without_wildcards(text: str) -> str:
    text = text.replace("*.", "")
    if "*" in text:
        return ""
    try:
        return f', such as "{Origin.parse(text)}"'
    except ValueError:
        return ""


def _suggestion(text: str, wildcard: str) -> str:
    """The hint with the host name of a text that may also have a scheme, a port or a path; empty if there is none."""
    match = _SCHEME.match(text)
    parts = _REST.fullmatch(text[match.end() :] if match is not None else text.lstrip("/"))
    assert parts is not None
    name = parts["authority"]
    if name.startswith("."):
        wildcard, name = "*.", name[1:]
    try:
        host, _, _ = _authority(name, web=True)
    except ValueError:
        return ""
    return f'; did you mean "{wildcard}{host}"?'


def _authority(text: str, *, web: bool) -> tuple[str, int | None, bool]:
    """Host, port, and False for an IPv6 address without brackets. Raises `ValueError`."""
    if _is_bare_ipv6(text):
        return _host(f"[{text}]"), None, False
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError('expected a scheme, a host and maybe a port, such as "https://shop.example:8443"')
    port = int(match["port"][:10]) if match["port"] else None
    if port is not None and port > 65535:
        raise ValueError("expected a port of at most 65535")
    return _host(match["host"]) if web else match["host"], port, True


def _host(text: str) -> str:
    """The host as browsers write it: a domain, or an IP address in its shortest form. Raises `ValueError`."""
    address = ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        return f"[{_shortest(address)}]"
    name = ascii_domain(unquote(text))
    if name.startswith(".") or not name or ".." in name or not name.isascii() or _NO_DOMAIN.search(name):
        raise ValueError(f"{text!r} is not a host")
    if _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):
        try:  # browsers accept 127.1 and 0x7f.1, like C
            return socket.inet_ntoa(socket.inet_aton(name.rstrip(".")))
        except OSError:
            raise ValueError(f"{text!r} is not an IPv4 address") from None
    return name


def _shortest(address: ipaddress.IPv6Address) -> str:
    if address.scope_id is not None:
        raise ValueError("an address in an origin has no zone")
    if address.ipv4_mapped is not None:  # newer versions of Python write the IPv4 part with dots, browsers do not
        high, low = divmod(int(address.ipv4_mapped), 1 << 16)
        return f"::ffff:{high:x}:{low:x}"
    return str(address)


def _is_bare_ipv6(text: str) -> bool:
    return ip_address(f"[{text}]") is not None


def _likely_scheme(host: str) -> str:
    """The scheme to suggest for an origin without one. Pages on a local machine seldom have TLS."""
    return "http" if host == "localhost" or ip_address(host) is not None else "https"


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
