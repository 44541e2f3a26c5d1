"""The target of a request: `/path`, or a whole URL as clients send it to a proxy. Any other target is malformed.

RFC 9112, 3.2 calls these origin-form and absolute-form. Its other forms are for proxies (`CONNECT host:port`) and for
a server as a whole (`OPTIONS *`). Some servers read a target such as `//host/path` as a path, others read a
host and a path in it.
"""

from __future__ import annotations

import re

from tornado.httputil import HTTPInputError

__all__ = ["path_of"]

# A path must not have a backslash, because some servers read it as a slash.
_PATH = r"[\x21\x22\x24-\x3e\x40-\x5b\x5d-\x7e]*+"
_HOST = r"(?:\[[0-9A-Fa-f:.]++\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]++|%[0-9A-Fa-f]{2})++)(?::[0-9]{0,5})?"
_ORIGIN = re.compile(rf"(/(?!/){_PATH})")
_ABSOLUTE = re.compile(rf"https?://{_HOST}((?:/{_PATH})?)", re.IGNORECASE | re.ASCII)


def path_of(target: str) -> str:
    """The path of a request target. Raises `HTTPInputError`, which both servers answer with 400."""
    path, _, query = target.partition("?")
    match = _ORIGIN.fullmatch(path) or _ABSOLUTE.fullmatch(path)
    # Browsers do not escape characters such as | and { in a query, so all visible ASCII except # passes.
    if match is None or not (query.isascii() and query.isprintable()) or " " in query or "#" in query:
        raise HTTPInputError("the request target is malformed")
    return match[1] or "/"
