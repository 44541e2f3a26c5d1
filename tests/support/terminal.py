"""What a caller may send for a name to upset whoever looks at it."""

from __future__ import annotations

__all__ = ["HOSTILE"]

HOSTILE = [
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x1b[2J",
    "line\nbreak",
    "line\r\nbreak",
    "tab\there",
    "\u202eright to left",
    "\u2066isolated\u2069",
    "\u200bzero\ufeff",
    "line\u2028separator\u0085",
    "\x00\x7f\x80",
    "\U000e0041tag",
]
