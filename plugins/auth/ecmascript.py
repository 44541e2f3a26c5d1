"""The canonical form of a JSON document: ECMAScript's `JSON.stringify(JSON.parse(text))`, byte for byte.

ECMA-262, 25.5 defines it. `canonical_process` runs this file as a program that reads documents from a socket. So it
imports Python's standard library only.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from json.encoder import encode_basestring as quote
from typing import Any, BinaryIO, NoReturn

__all__ = ["LENGTH_BYTES", "canonical", "serve"]

LENGTH_BYTES = 4
"""Bytes of the length before each document and each answer in a socket, the most significant one first."""

# An array index. V8 keeps such keys in ascending order, before all others (ECMA-262, 10.1.11.1).
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_INDEX = 2**32 - 2

_MAX_EXACT = 2**53

# Python's encoder, in C, writes most documents as ECMAScript does. The pattern finds two exceptions: an integer beyond
# 2^53, and an array index as a key, also with escaped digits. `_usual_number` refuses other numbers.
_UNUSUAL = re.compile(r'(?<![.0-9])[0-9]{16}|"(?:[0-9]|\\u003[0-9]){1,10}"[ \t\r\n]*+:')


class _Unusual(Exception):
    """The document holds a number that Python writes differently."""


def canonical(body: bytes) -> bytes | None:
    """The document as ECMAScript writes it, or None if JSON.parse refuses it.

    Also None if the nesting is deeper than Python's recursion allows, which is some hundred levels.
    """
    try:
        text = body.decode()
        rewritten = _rewrite_usual(text)
        if rewritten is None:
            rewritten = "".join(_texts(_read(text)))
    except (ValueError, RecursionError):  # ValueError: not UTF-8, not JSON
        return None
    # UTF-8 cannot encode lone surrogates. JSON.stringify writes them as the same escapes as `backslashreplace`.
    return rewritten.encode(errors="backslashreplace")


def _rewrite_usual(text: str) -> str | None:
    """The document as Python's encoder writes it, or None if ECMAScript may write it differently."""
    if _UNUSUAL.search(text) is not None:
        return None
    try:
        return _encode(_decode_usual(text))
    except _Unusual:
        return None


def _usual_number(text: str) -> int | float:
    """The value of a number with a fraction or an exponent. Raises `_Unusual`."""
    value = float(text)
    if value.is_integer() and -_MAX_EXACT <= value <= _MAX_EXACT:
        return int(value)
    if 1e-4 <= abs(value) <= _MAX_EXACT:
        return value
    raise _Unusual


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# If a key repeats, its last value stands where the first one stood. Python's decoder does the same.
_decode = json.JSONDecoder(parse_constant=_refuse).decode
_decode_usual = json.JSONDecoder(parse_float=_usual_number, parse_constant=_refuse).decode
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_decode_long = json.JSONDecoder(parse_int=float, parse_constant=_refuse).decode


def _read(text: str) -> Any:
    try:
        return _decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # a whole number has more digits than Python converts to an int
        return _decode_long(text)


def _texts(value: Any) -> Iterator[str]:
    """The document in pieces, none of them empty.

    Without recursion, because each level would pass on every piece from the levels below it.
    """
    members, end = iter([("", value)]), ""
    open_ones: list[tuple[Iterator[tuple[str, Any]], str]] = []
    while True:
        for before, member in members:
            kind = type(member)
            if kind is dict:
                yield before + "{"
                open_ones.append((members, end))
                members, end = _fields(member), "}"
                break
            if kind is list:
                yield before + "["
                open_ones.append((members, end))
                members, end = zip(chain([""], repeat(",")), member, strict=False), "]"
                break
            yield before + _SCALARS[kind](member)
        else:
            if not open_ones:
                return
            yield end
            members, end = open_ones.pop()


def _fields(members: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The members in V8's order, each with the text before its value."""
    separator = ""
    indices = [key for key in filter(_INDEX.fullmatch, members) if len(key) < 10 or int(key) <= _MAX_INDEX]
    if indices:
        members = {**dict.fromkeys(sorted(indices, key=int)), **members}
    for key, value in members.items():
        yield f"{separator}{quote(key)}:", value
        separator = ","


def _integer(value: int) -> str:
    """The text of a whole number. Beyond 2^53 it is the text of the nearest double."""
    if -_MAX_EXACT <= value <= _MAX_EXACT:
        return str(value)
    try:
        return _number(float(value))
    except OverflowError:
        return "null"


def _number(value: float) -> str:
    """The text of a number by ECMA-262, 6.1.6.1.20 Number::toString. JSON.stringify writes infinity as null."""
    shortest = repr(value)
    if "e" not in shortest:
        if shortest.endswith(".0"):
            return shortest[:-2] if value else "0"
        return "null" if shortest.endswith("inf") else shortest
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = shortest.removeprefix("-").partition("e")
    digits = mantissa.replace(".", "").rstrip("0")  # as in the standard: the value is 0.digits times 10^point
    point = int(exponent) + 1
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


_SCALARS: dict[type, Callable[[Any], str]] = {
    str: quote,
    int: _integer,
    float: _number,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
}


def serve(documents: BinaryIO, answers: BinaryIO) -> None:
    """Answer each document with its canonical form, until the input ends. Without a form the answer is empty."""
    while length := documents.read(LENGTH_BYTES):
        answer = canonical(documents.read(int.from_bytes(length, "big"))) or b""
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end at once when nobody reads the answers
    serve(sys.stdin.buffer, sys.stdout.buffer)
