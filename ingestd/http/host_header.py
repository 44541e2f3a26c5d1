"""The check of the Host header. HTTP/1.1 demands exactly one (RFC 9112, 3.2): of two, a proxy may follow the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tornado.httputil import HTTPInputError

__all__ = ["check_host"]

# The characters of names, addresses and ports in any order, as in Tornado's handlers. Two Host headers arrive here
# joined by a comma, which no host contains.
_HOST = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+;=:\[\]]++|%[0-9A-Fa-f]{2})*+")
_LONGEST_REMEMBERED = 300  # characters: a domain name has at most 253


def check_host(version: str, headers: Mapping[str, str]) -> None:
    """Raise `HTTPInputError` if the header is missing or invalid. Both servers answer that with 400."""
    host = headers.get("Host")
    if host is None:
        if version != "HTTP/1.0":
            raise HTTPInputError("no Host header")
    elif not (_is_host(host) if len(host) <= _LONGEST_REMEMBERED else _HOST.fullmatch(host)):
        raise HTTPInputError("the Host header is not one valid host")


@lru_cache(256)
def _is_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None
