"""The head of a request, parsed strictly by RFC 9112. A head that two servers could read differently is refused.

One regular expression matches a whole head at C speed. Tornado takes some heads that the RFC allows to refuse: lines
that end in LF alone, a transfer coding in HTTP/1.0. A proxy in front may have read these differently. The checks of the
Host header and of long names hold for both servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from tornado.httputil import HTTPInputError, RequestStartLine

from ingestd.api.errors import HeadersTooLarge

__all__ = [
    "FIELD_LINE",
    "HEAD_END",
    "LongName",
    "Malformed",
    "RequestHeaders",
    "body_length",
    "check_host",
    "ends_wrongly",
    "has_long_name",
    "is_persistent",
    "name_too_long",
    "parse_head",
    "wants_to_continue",
]

HEAD_END = b"\r\n\r\n"
LONGEST_NAME = 256  # characters; usual names have less than forty

_LONG_NAME = re.compile(rb"\n[!#$%%&'*+\-.^_`|~0-9A-Za-z]{%d}" % (LONGEST_NAME + 1))

_TCHAR = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_NAME = rf"{_TCHAR}{{1,{LONGEST_NAME}}}+"
_FIELD = rf"{_NAME}:[\t\x20-\x7e\x80-\xff]*+"
_HEAD = re.compile(
    # Some clients send an empty line behind a body (RFC 9112, 2.2).
    rf"(?:\r\n|)({_TCHAR}++) ([\x21-\x7e\x80-\xff]++) (HTTP/1\.[0-9])(\r\n(?:{_FIELD}\r\n|)*+)\r\n"
)
FIELD_LINE = re.compile(_FIELD.encode("latin-1"))
_CLOSE, _KEEP_ALIVE = (
    re.compile(rf"(?:^|,)[ \t]*+{option}[ \t]*+(?:,|$)", re.ASCII | re.IGNORECASE) for option in ("close", "keep-alive")
)
_WRONG_END = re.compile(rb"\n\r?\n")

# The characters of names, addresses and ports in any order, as in Tornado's handlers. Two Host headers arrive here
# joined by a comma, which no host contains.
_HOST = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+;=:\[\]]++|%[0-9A-Fa-f]{2}|)*+")
_LONGEST_REMEMBERED = 300  # characters: a domain name has at most 253

_LINE_NAME = re.compile(r"\r\n([^:]++):")

# Headers that are looked up in every request. One search for all costs hardly more than a search for one.
_USUAL = {
    name.lower(): name
    for name in (
        "Host", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Authorization", "Content-Encoding",
        "Origin", "X-Forwarded-For",
    )
}  # fmt: skip
_USUAL_LINE = re.compile(rf"\r\n({'|'.join(_USUAL)}):[\t ]*+([^\r]*+)", re.ASCII | re.IGNORECASE)
_USUAL_NAMES = frozenset(_USUAL.values())


class Malformed(Exception):
    """The bytes are not HTTP/1.1. Nothing behind them is trusted."""


class LongName(Exception):
    """A header's name is longer than this server takes."""


class RequestHeaders(Mapping[str, str]):
    """The headers of a request, looked up in their text: an object for each would cost more than all other parsing.

    Names are compared without case. Values of repeated headers are joined by commas, as Tornado does it.

    `text` has lines of valid headers, each between CR LF and CR LF.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        usual: dict[str, str] = {}
        self._usual = usual
        for sent, value in _USUAL_LINE.findall(text):
            name = _USUAL[sent.lower()]
            known = usual.get(name)
            usual[name] = value.rstrip("\t ") if known is None else f"{known},{value}".rstrip("\t ")

    @property
    def line_count(self) -> int:
        return self._text.count("\n") - 1

    @property
    def size(self) -> int:
        return len(self._text)

    def get(self, name: str, default: Any = None) -> Any:
        value = self._usual.get(name)
        if value is not None:
            return value
        if name not in _USUAL_NAMES:
            value = self._find(name)
        return default if value is None else value

    def __getitem__(self, name: str) -> str:
        value = self._find(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> dict[str, None]:
        """Each name once, such as `X-Request-Id`, in the order of the lines."""
        return {
            "-".join(part.capitalize() for part in name.split("-")): None for name in _LINE_NAME.findall(self._text)
        }

    def _find(self, name: str) -> str | None:
        needle, lower, text = _needle(name), self._text.lower(), self._text
        at = lower.find(needle)
        if at < 0:
            return None
        start = at + len(needle)
        end = text.index("\r", start)
        value = text[start:end].strip("\t ")
        while (at := lower.find(needle, end)) >= 0:
            start = at + len(needle)
            end = text.index("\r", start)
            value += "," + text[start:end].strip("\t ")
        return value


@lru_cache(256)
def _needle(name: str) -> str:
    """The text before the value of a header with this name. For an impossible name, text that occurs nowhere."""
    return f"\r\n{name.lower()}:" if name.isascii() and ":" not in name else "\r\n\r\n"


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


def has_long_name(head: bytes) -> bool:
    """Whether a line behind the request line begins with a name that is too long."""
    return _LONG_NAME.search(head) is not None


def name_too_long() -> HeadersTooLarge:
    return HeadersTooLarge(f"The name of a header is longer than {LONGEST_NAME} characters.")
