"""The Host header: one, or the request is malformed (RFC 9112, 3.2), since others on its way may go by another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tornado.httputil import HTTPInputError

__all__ = ["check_host"]

# As Tornado's handlers have it: what a name, an address and a port are made of, in any order. Two headers of this
# name have become one with a comma, which is in no host's name.
_HOST = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+;=:\[\]]|%[0-9A-Fa-f]{2})*")
_LONGEST_REMEMBERED = 300  # characters: a domain name has at most 253


def check_host(version: str, headers: Mapping[str, str]) -> None:
    """Raises `HTTPInputError`, which servers answer with their 400."""
    host = headers.get("Host")
    if host is None:
        if version != "HTTP/1.0":
            raise HTTPInputError("no Host header")
    elif not (_is_host(host) if len(host) <= _LONGEST_REMEMBERED else _HOST.fullmatch(host)):
        raise HTTPInputError("no host, or several, in the Host header")


@lru_cache(256)
def _is_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None
