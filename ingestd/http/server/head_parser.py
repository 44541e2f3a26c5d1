"""The head of a request, parsed strictly by RFC 9112. A head that two servers could read differently is refused.

One regular expression matches a whole head at C speed. Tornado takes some heads that the RFC allows to refuse: lines
that end in LF alone, a transfer coding in HTTP/1.0. A proxy in front may have read these differently.
"""

from __future__ import annotations

import re

from tornado.httputil import RequestStartLine

from ingestd.http.header_names import LONGEST_NAME, has_long_name

from .headers import RequestHeaders

__all__ = [
    "FIELD_LINE",
    "HEAD_END",
    "LongName",
    "Malformed",
    "body_length",
    "ends_wrongly",
    "is_persistent",
    "parse_head",
    "wants_to_continue",
]

HEAD_END = b"\r\n\r\n"

_TCHAR = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_NAME = rf"{_TCHAR}{{1,{LONGEST_NAME}}}+"
_FIELD = rf"{_NAME}:[\t\x20-\x7e\x80-\xff]*+"
_HEAD = re.compile(
    # Some clients send an empty line behind a body (RFC 9112, 2.2).
    rf"(?:\r\n)?+({_TCHAR}++) ([\x21-\x7e\x80-\xff]++) (HTTP/1\.[0-9])(\r\n(?:{_FIELD}\r\n)*+)\r\n"
)
FIELD_LINE = re.compile(_FIELD.encode("latin-1"))
_CLOSE, _KEEP_ALIVE = (
    re.compile(rf"(?:^|,)[ \t]*+{option}[ \t]*+(?:,|$)", re.ASCII | re.IGNORECASE) for option in ("close", "keep-alive")
)
_WRONG_END = re.compile(rb"\n\r?\n")


class Malformed(Exception):
    """The bytes are not HTTP/1.1. Nothing behind them is trusted."""


class LongName(Exception):
    """A header's name is longer than this server takes."""


def parse_head(head: bytes) -> tuple[RequestStartLine, RequestHeaders]:
    """The request line and the headers; `head` ends with the empty line. Raises `Malformed`, `LongName`."""
    match = _HEAD.fullmatch(str(head, "latin-1"))
    if match is None:
        raise LongName if has_long_name(head) else Malformed
    method, target, version, fields = match.groups()
    return RequestStartLine(method, target, version), RequestHeaders(fields)


def ends_wrongly(data: bytes, limit: int) -> bool:
    """Whether a head ends within `limit` bytes, but with LF instead of CRLF. Its sender waits for an answer."""
    return _WRONG_END.search(data, 0, limit) is not None


def body_length(start_line: RequestStartLine, headers: RequestHeaders) -> int | None:
    """The length of the body in bytes; None for a body in chunks. Raises `Malformed`."""
    length = headers.get("Content-Length")
    coding = headers.get("Transfer-Encoding")
    if coding is not None:
        if length is not None or start_line.version == "HTTP/1.0" or coding.lower() != "chunked":
            raise Malformed
        return None
    if length is None:
        return 0
    if "," in length:
        length, *others = re.split(",[ \t]*", length)
        if any(other != length for other in others):
            raise Malformed
    if not (length.isascii() and length.isdigit()):
        raise Malformed
    try:
        return int(length)
    except ValueError:  # thousands of digits
        raise Malformed from None


def is_persistent(start_line: RequestStartLine, headers: RequestHeaders) -> bool:
    """Whether the client wants to send further requests on the connection."""
    connection = headers.get("Connection")
    if connection is None:
        return start_line.version == "HTTP/1.1"
    if connection == "keep-alive" and start_line.version == "HTTP/1.1":  # the usual value of browsers
        return True
    if _CLOSE.search(connection):
        return False
    if start_line.version == "HTTP/1.1":
        return True
    # As in Tornado: other methods of HTTP/1.0 without a Content-Length may have a body.
    return _KEEP_ALIVE.search(connection) is not None and (
        start_line.method in {"GET", "HEAD"} or "Content-Length" in headers
    )


def wants_to_continue(start_line: RequestStartLine, headers: RequestHeaders) -> bool:
    """Whether the client waits for `100 Continue` before it sends the body (RFC 9110, 10.1.1)."""
    return headers.get("Expect", "").lower() == "100-continue" and start_line.version == "HTTP/1.1"
