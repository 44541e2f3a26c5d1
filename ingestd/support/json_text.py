"""Decodes JSON that a stranger may have written, in a time that depends on its length.

msgspec takes ten microseconds for a number such as `1e308`, two hundred times as long as for `19.9`: a megabyte of such
numbers would take two seconds. Python's `float` reads all numbers in less than a microsecond.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["decode_json", "read_float"]

_SMALL = 8 * 1024  # bytes; the search takes longer than `read_float` for the numbers of most small bodies
_has_extremes = re.compile(rb"[0-9][eE][+-]?0*+[23][0-9][0-9]").search


def read_float(text: str) -> float:
    """The number of a JSON text with a point or an exponent, for `float_hook`. Raises `ValueError` if out of range."""
    number = float(text)
    if number - number:  # infinite: the difference is NaN, which is true
        raise ValueError("Number out of range")
    return number


_decode = msgspec.json.Decoder().decode
_decode_extremes = msgspec.json.Decoder(float_hook=read_float).decode


def decode_json(text: bytes) -> Any:
    """The value of a JSON text. Raises `msgspec.DecodeError`, `UnicodeDecodeError` or `RecursionError`."""
    if len(text) <= _SMALL or _has_extremes(text):
        return _decode_extremes(text)
    return _decode(text)
