"""The headers of a request, looked up in their text. An object for each would cost more than all other parsing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

__all__ = ["RequestHeaders"]

_NAME = re.compile(r"\r\n([^:]++):")

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


class RequestHeaders(Mapping[str, str]):
    """Names are compared without case. Values of repeated headers are joined by commas, as Tornado does it.

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
        return {"-".join(part.capitalize() for part in name.split("-")): None for name in _NAME.findall(self._text)}

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
