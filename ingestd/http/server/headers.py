"""The headers of a request, looked up in their text. An object for each would cost more than all other parsing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tornado.httputil import HTTPHeaders

__all__ = ["RequestHeaders"]

_LINE = re.compile(r"\r\n([^:]++):[\t ]*+([^\r]*+)")

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


class RequestHeaders(HTTPHeaders):
    """Tornado's `HTTPHeaders`, whose state is built only if lookups of single headers are not enough.

    `text` has lines of valid headers, each between CR LF and CR LF.
    """

    _text: str
    # On the class, because `copy` reads attributes of the new object before it sets any.
    _usual: Mapping[str, str] = MappingProxyType({})
    _whole = True

    def __init__(self, text: str) -> None:  # not super's, which makes the state that __getattr__ makes later
        self._text = text
        self._whole = False
        usual: dict[str, str] = {}
        self._usual = usual
        for sent, value in _USUAL_LINE.findall(text):
            name = _USUAL[sent.lower()]
            known = usual.get(name)
            usual[name] = value.rstrip("\t ") if known is None else f"{known},{value}".rstrip("\t ")

    def __getattr__(self, name: str) -> Any:
        """Build the state of Tornado's class, when one of its attributes is used for the first time."""
        if self._whole:
            raise AttributeError(name)
        self._whole = True
        self._usual = {}
        super().__init__()
        for key, value in self.lines():
            self.add(key, value)
        return getattr(self, name)

    def lines(self) -> Iterable[tuple[str, str]]:
        """Name and value of each line, as the client sent them."""
        return [(name, value.rstrip("\t ")) for name, value in _LINE.findall(self._text)]

    @property
    def line_count(self) -> int:
        return self._text.count("\n") - 1

    def get(self, name: str, default: Any = None) -> Any:
        value = self._usual.get(name)
        if value is not None:
            return value
        if self._whole:
            return super().get(name, default)
        if name not in _USUAL_NAMES:
            value = self._find(name)
        return default if value is None else value

    def __getitem__(self, name: str) -> str:
        if self._whole:
            return super().__getitem__(name)
        value = self._find(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        if self._whole or not isinstance(name, str):
            return super().__contains__(name)
        return self._find(name) is not None

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
