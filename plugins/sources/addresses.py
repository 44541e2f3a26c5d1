"""The host of an address as callers send it, and the site that a host belongs to."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ingestd.support.addresses import ascii_domain, ip_address

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

__all__ = ["Place", "place_of", "site_of"]

_LONGEST = 2048
"""Characters of an address that are read. A host is near its start."""
_LONGEST_HOST = 3 * 253
"""Characters of a host with each one as %xx. DNS allows 253."""
_REMEMBERED = 1024

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


_NOWHERE = Place("")


def place_of(address: Any) -> Place:
    """The host of a web address, with or without a scheme, or the app of an `android-app:` or `ios-app:` address."""
    if not isinstance(address, str):
        return _NOWHERE
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
        return _NOWHERE
    if scheme:
        authority = authority.rpartition("@")[2]
    host, _, port = authority.partition(":")
    if len(host) > _LONGEST_HOST or (port and not port.isdecimal()):
        return _NOWHERE
    return _place(host, rest[len(authority) :][:256] if host.lower().endswith(_COPIES) else "")


@lru_cache(_REMEMBERED)
def _place(host: str, path: str) -> Place:
    host = ascii_domain(unquote(host) if "%" in host else host).removesuffix(".")
    if len(host) > 253 or _HOST.fullmatch(host) is None:
        return _NOWHERE
    if host[-1].isdigit() and ip_address(host) is None:
        return _NOWHERE
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

    The first call takes some 20 ms, to read the Public Suffix List.
    """
    if host[-1:].isdigit():  # an IP address
        return host
    return _suffixes().privatesuffix(host) or host


@cache
def _suffixes() -> PublicSuffixList:
    from publicsuffixlist import PSLFILE, PublicSuffixList  # here, because most commands need none

    rules = [line for line in Path(PSLFILE).read_text(encoding="utf-8").splitlines() if line[:1] not in {"", "/"}]
    # The package would try each rule with Python's slow codec, in twice the time.
    return PublicSuffixList(map(_encoded, rules), accept_encoded_idn=False)


def _encoded(rule: str) -> str:
    """A rule with its Unicode labels in punycode. The list has them in their normal form."""
    if rule.isascii():
        return rule
    return ".".join(each if each.isascii() else f"xn--{each.encode('punycode').decode()}" for each in rule.split("."))
