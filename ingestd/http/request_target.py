"""The target of a request: `/path`, or the whole address as a proxy is sent it; anything else is malformed.

RFC 9112, 3.2 calls these origin-form and absolute-form. Its other forms are for proxies (`CONNECT host:port`) and for
a server as a whole (`OPTIONS *`). A target such as `//host/path` is a path to some readers and a host to others.
"""

from __future__ import annotations

import re

from tornado.httputil import HTTPInputError

__all__ = ["path_of"]

# Browsers leave characters such as | and { in a query as they are, so all that is visible ASCII passes but a fragment.
# To some readers a backslash in a path is a slash.
_PATH = r"[\x21\x22\x24-\x3e\x40-\x5b\x5d-\x7e]*+"
_QUERY = r"(?:\?[\x21\x22\x24-\x7e]*+)?"
_HOST = r"(?:\[[0-9A-Fa-f:.]++\]|(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})++)(?::[0-9]{0,5})?"
_ORIGIN = re.compile(rf"(/(?!/){_PATH}){_QUERY}")
_ABSOLUTE = re.compile(rf"https?://{_HOST}((?:/{_PATH})?){_QUERY}", re.IGNORECASE | re.ASCII)


def path_of(target: str) -> str:
    """Raises `HTTPInputError`, which servers answer with their 400."""
    match = _ORIGIN.fullmatch(target) or _ABSOLUTE.fullmatch(target)
    if match is None:
        raise HTTPInputError("no target")
    return match[1] or "/"
