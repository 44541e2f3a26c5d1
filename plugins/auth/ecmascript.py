"""What ECMAScript's `JSON.stringify(JSON.parse(text))` makes of a JSON document, byte for byte (ECMA-262, 25.5).

Run as a program, this file does the same for documents from a socket (`canonical_process`). So it imports nothing but
Python's library.
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

# An array index: these keys V8 keeps in ascending order, before all others (ECMA-262, 10.1.11.1).
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_INDEX = 2**32 - 2

_MAX_EXACT = 2**53

# Most documents hold nothing that Python's own encoder, in C, writes otherwise. The others may have an integer beyond
# 2^53 or an array index as a key, here also with escaped digits, or a number that `_usual_number` refuses.
_UNUSUAL = re.compile(r'(?<![.0-9])[0-9]{16}|"(?:[0-9]|\\u003[0-9]){1,10}+"[ \t\r\n]*+:')


class _Unusual(Exception):
    """The document holds a number that Python writes otherwise."""


def canonical(body: bytes) -> bytes | None:
    """The document as ECMAScript would write it again, or None where JSON.parse would refuse it.

    None also for one that is nested deeper than Python's recursion allows, which is some hundred levels.
    """
    try:
        text = body.decode()
        rewritten = _rewrite_usual(text)
        if rewritten is None:
            rewritten = "".join(_texts(_read(text)))
    except (ValueError, RecursionError):  # ValueError: not UTF-8, not JSON
        return None
    # A lone surrogate is all that UTF-8 cannot encode, and JSON.stringify writes it as this escape.
    return rewritten.encode(errors="backslashreplace")


def _rewrite_usual(text: str) -> str | None:
    """The document as Python's encoder writes it, or None where ECMAScript would write it otherwise."""
    if _UNUSUAL.search(text) is not None:
        return None
    try:
        return _encode(_decode_usual(text))
    except _Unusual:
        return None


def _usual_number(text: str) -> int | float:
    """A number with a fraction or an exponent."""
    value = float(text)
    if value.is_integer() and -_MAX_EXACT <= value <= _MAX_EXACT:
        return int(value)
    if 1e-4 <= abs(value) <= _MAX_EXACT:
        return value
    raise _Unusual


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# A key's last value stands in the place of its first: so does Python's own code have it.
_decode = json.JSONDecoder(parse_constant=_refuse).decode
_decode_usual = json.JSONDecoder(parse_float=_usual_number, parse_constant=_refuse).decode
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_decode_long = json.JSONDecoder(parse_int=float, parse_constant=_refuse).decode


def _read(text: str) -> Any:
    try:
        return _decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # a whole number of more digits than Python reads as one
        return _decode_long(text)


def _texts(value: Any) -> Iterator[str]:
    """The document in pieces, none of them empty. Without recursion: each level would pass on what is below it."""
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
    """The members in V8's order, each with what stands before its value."""
    separator = ""
    indices = [key for key in filter(_INDEX.fullmatch, members) if len(key) < 10 or int(key) <= _MAX_INDEX]
    if indices:
        members = {**dict.fromkeys(sorted(indices, key=int)), **members}
    for key, value in members.items():
        yield f"{separator}{quote(key)}:", value
        separator = ","


def _integer(value: int) -> str:
    """A whole number beyond 2^53 is the double nearest to it."""
    if -_MAX_EXACT <= value <= _MAX_EXACT:
        return str(value)
    try:
        return _number(float(value))
    except OverflowError:
        return "null"


def _number(value: float) -> str:
    """ECMA-262, 6.1.6.1.20 Number::toString; what is no finite number JSON.stringify writes as null."""
    shortest = repr(value)
    if "e" not in shortest:
        if shortest.endswith(".0"):
            return shortest[:-2] if value else "0"
        return "null" if shortest.endswith("inf") else shortest
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = shortest.removeprefix("-").partition("e")
    digits = mantissa.replace(".", "").rstrip("0")  # as the standard has it: the value is 0.digits times 10^point
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
    """Answer each document with its canonical form, and with nothing where there is none, until there are no more."""
    while length := documents.read(LENGTH_BYTES):
        answer = canonical(documents.read(int.from_bytes(length, "big"))) or b""
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end at once where nobody reads the answers any more
    serve(sys.stdin.buffer, sys.stdout.buffer)
