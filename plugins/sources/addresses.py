"""The host of an address as callers send it, and the site that a host belongs to."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ingestd.support.addresses import ascii_domain, ip_address

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

__all__ = ["NOWHERE", "Place", "load_suffixes", "place_of", "site_of"]

_LONGEST = 2048
"""Characters of an address that are read. A host is near its start."""
_REMEMBERED = 4096

_SEPARATOR = re.compile(r"[/?#]")
_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})+")
_PORT = re.compile(r":[0-9]{0,5}")
_APPS = {"android-app", "ios-app"}

_COPIES = (".cdn.ampproject.org", ".bing-amp.com", ".translate.goog")
"""Hosts that show pages of others. Their first label is the other host, with `-` for a dot and `--` for `-`."""
_ORIGINAL = re.compile(r"/(?:[a-z]{1,2}/)?(?:s/)?([^/?#]+\.[^/?#]+)")
"""The other host in a path of an AMP cache, such as `/c/s/www.example.com/page`."""


class Place(NamedTuple):
    """A host in lower case, in punycode and without a dot at its end, or the name of an app. Empty if there is none."""

    host: str
    is_app: bool = False


NOWHERE = Place("")


def place_of(address: Any) -> Place:
    """The host of a web address, with or without a scheme, or the app of an `android-app:` or `ios-app:` address."""
    if not isinstance(address, str):
        return NOWHERE
    # Browsers read a backslash as a slash.
    text = address[:_LONGEST].strip().replace("\\", "/")
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme or "/" in scheme or "." in scheme or "?" in scheme:
        scheme, rest = "", text.removeprefix("//")
    scheme = scheme.lower()
    authority = _SEPARATOR.split(rest, maxsplit=1)[0]
    if scheme in _APPS:
        return Place(authority.lower(), True)
    if scheme not in {"", "http", "https"}:
        return NOWHERE
    if scheme:
        authority = authority.rpartition("@")[2]
    host, _, port = authority.partition(":")
    if port and not port.isdecimal():
        return NOWHERE
    return _place(host, rest[len(authority) :][:256] if host.lower().endswith(_COPIES) else "")


@lru_cache(_REMEMBERED)
def _place(host: str, path: str) -> Place:
    host = ascii_domain(unquote(host) if "%" in host else host).removesuffix(".")
    if len(host) > 253 or _HOST.fullmatch(host) is None:
        return NOWHERE
    if host[-1].isdigit() and ip_address(host) is None:
        return NOWHERE
    if host.endswith(_COPIES):
        original = _ORIGINAL.match(path)
        label = host.partition(".")[0]
        if label.startswith("0-") and label.endswith("-0"):
            label = label[2:-2]
        decoded = original[1] if original else label.replace("--", "\0").replace("-", ".").replace("\0", "-")
        if "." in decoded and not decoded.lower().endswith(_COPIES):
            return _place(decoded, "")
    return Place(host)


@lru_cache(_REMEMBERED)
def site_of(host: str) -> str:
    """The registrable domain of a host: `example.co.uk` of `www.example.co.uk`. Shops of a hosting service differ.

    Takes 35 ms at the first call, unless `load_suffixes` came before.
    """
    if host[-1:].isdigit():  # an IP address
        return host
    return _suffixes().privatesuffix(host) or host


def load_suffixes() -> None:
    """Read the Public Suffix List, so that no event waits for it."""
    _suffixes()


@cache
def _suffixes() -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList  # here, because most commands need none

    return PublicSuffixList()
