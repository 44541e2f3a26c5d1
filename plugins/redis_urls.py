"""Checks of Redis URLs that redis-py does not make. The Redis back end and the redis_stream sink use them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["check_redis_url", "unknown_option"]

_FORMS = "expected redis://host:port/db or rediss://host:port/db or unix:///path/of/socket"


def check_redis_url(url: str) -> None:
    """Raises `ValueError` for a malformed URL. From some of these redis-py would make a URL of the local host."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # the port is checked when it is read
    except ValueError:
        # The error of urllib may show a password that has an unescaped character.
        raise ValueError(
            "expected redis://host:port/db with a number as the port; in a password / ? # @ : % are written as %2F …"
        ) from None
    if not url.startswith(f"{parts.scheme}://"):
        raise ValueError(_FORMS)
    if parts.scheme == "unix" and not parts.path:
        raise ValueError(f"{_FORMS}; this one lacks the path of a socket")
    if parts.scheme != "unix" and not re.fullmatch(r"(/[0-9]*)?", parts.path):
        raise ValueError("expected the number of a database behind the host, as in redis://host:6379/0")


def unknown_option(error: TypeError) -> str:
    """The unknown option that a URL has. redis-py passes options as arguments, so its error is a `TypeError`."""
    unknown = re.search(r"unexpected keyword argument '(.*)'", str(error))
    return unknown[1] if unknown else str(error)
