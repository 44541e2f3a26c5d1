"""A strict parser for JSON by RFC 8259. It is slow, and short enough to be checked by reading."""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["NotJson", "read_json"]

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CHARACTER = re.compile(r'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u([0-9a-fA-F]{4}))')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}

# RFC 8259 allows limits on numbers (section 9). These are the limits of ingestd and of Python.
_MOST_DIGITS = 4300


class NotJson(Exception):
    """The text is not JSON, or beyond the limits that RFC 8259 allows."""


def read_json(body: bytes) -> Any:
    """The value of a JSON text in UTF-8. The last of two members with one name counts."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise NotJson from error
    value, end = _value(text, _space(text, 0))
    if _space(text, end) != len(text):
        raise NotJson
    return value


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise NotJson
    return _space(text, at + 1)


def _value(text: str, at: int) -> tuple[Any, int]:
    match text[at : at + 1]:
        case "{":
            return _object(text, _space(text, at + 1))
        case "[":
            return _array(text, _space(text, at + 1))
        case '"':
            return _string(text, at + 1)
    for name, literal in _LITERALS.items():
        if text.startswith(name, at):
            return literal, at + len(name)
    return _number(text, at)


def _object(text: str, at: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        name, at = _string(text, _quote(text, at))
        at = _expect(text, _space(text, at), ":")
        members[name], at = _value(text, at)
        at = _space(text, at)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = _expect(text, at, ",")


def _array(text: str, at: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    if text[at : at + 1] == "]":
        return values, at + 1
    while True:
        value, at = _value(text, at)
        values.append(value)
        at = _space(text, at)
        if text[at : at + 1] == "]":
            return values, at + 1
        at = _expect(text, at, ",")


def _quote(text: str, at: int) -> int:
    if text[at : at + 1] != '"':
        raise NotJson
    return at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    """`at` is the index after the opening quotation mark."""
    units: list[str] = []
    while text[at : at + 1] != '"':
        match = _CHARACTER.match(text, at)
        if match is None:
            raise NotJson
        at = match.end()
        if match[0][0] != "\\":
            units.append(match[0])
        elif match[1]:
            units.append(chr(int(match[1], 16)))
        else:
            units.append(_ESCAPES[match[0][1]])
    try:
        # Two escapes may be the surrogates of one character. A single surrogate is not a character.
        return "".join(units).encode("utf-16", "surrogatepass").decode("utf-16"), at + 1
    except UnicodeDecodeError as error:
        raise NotJson from error


def _number(text: str, at: int) -> tuple[int | float, int]:
    match = _NUMBER.match(text, at)
    if match is None:
        raise NotJson
    if match[1] is None and match[2] is None:
        if len(match[0].lstrip("-")) > _MOST_DIGITS:
            raise NotJson
        return int(match[0]), match.end()
    number = float(match[0])
    if math.isinf(number):
        raise NotJson
    return number, match.end()
