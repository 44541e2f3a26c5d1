"""What ECMAScript's `JSON.stringify(JSON.parse(text))` makes of a JSON document, byte for byte (ECMA-262, 25.5)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice, repeat
from json.encoder import encode_basestring as quote
from typing import Any, NoReturn

__all__ = ["canonical", "rewriting"]

# An array index: these keys V8 keeps in ascending order, before all others (ECMA-262, 10.1.11.1).
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_INDEX = 2**32 - 2

_MAX_EXACT = 2**53

_STEP = 200
"""Values written in a step: some tenths of a millisecond."""


def canonical(body: bytes) -> bytes | None:
    """The document as ECMAScript would write it again, or None where JSON.parse would refuse it.

    None also for one that is nested deeper than Python's recursion allows, which is some hundred levels.
    """
    steps = rewriting(body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: bytes | None = end.value
            return result


def rewriting(body: bytes) -> Generator[None, None, bytes | None]:
    """As `canonical`, in steps that take about as long as each other; the generator returns the result.

    Reading the document is one step, in C: 64 KiB of it take two milliseconds at the most.
    """
    try:
        value = _read(body.decode())
    except (ValueError, RecursionError):  # ValueError: not UTF-8, not JSON
        return None
    yield
    parts: list[str] = []
    texts = _texts(value)
    while step := "".join(islice(texts, _STEP)):
        parts.append(step)
        yield
    # A lone surrogate is all that UTF-8 cannot encode, and JSON.stringify writes it as this escape.
    return "".join(parts).encode(errors="backslashreplace")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# A key's last value stands in the place of its first: so does Python's own code have it.
_decode = json.JSONDecoder(parse_constant=_refuse).decode
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
