"""What ECMAScript's `JSON.stringify(JSON.parse(text))` makes of a JSON document, byte for byte (ECMA-262, 25.5)."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

__all__ = ["canonical"]

# An array index: these keys V8 keeps in ascending order, before all others (ECMA-262, 10.1.11.1).
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_INDEX = 2**32 - 2

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

# Its `encode` of a string escapes what JSON.stringify escapes, but for lone surrogates.
_quote = json.JSONEncoder(ensure_ascii=False).encode


class _Number(str):
    """The text of a number, ready to be written."""

    __slots__ = ()


def canonical(body: bytes) -> bytes | None:
    """The document as ECMAScript would write it again, or None where JSON.parse would refuse it.

    None also for one that is nested deeper than Python's recursion allows, which is some hundred levels.
    """
    parts: list[str] = []
    try:
        _write(_decoder.decode(body.decode()), parts)
    except (ValueError, RecursionError):  # ValueError: not UTF-8, not JSON
        return None
    text = _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", "".join(parts))
    return text.encode()


def _number(text: str) -> _Number:
    """ECMA-262, 6.1.6.1.20 Number::toString, of the double that the text stands for."""
    value = float(text)
    if value == 0:
        return _Number("0")
    shortest = repr(value)
    if "e" not in shortest:
        return _Number("null" if shortest.endswith("inf") else shortest.removesuffix(".0"))
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = shortest.removeprefix("-").partition("e")
    digits = mantissa.replace(".", "").rstrip("0")  # as the standard has it: the value is 0.digits times 10^point
    point = int(exponent) + 1
    if len(digits) <= point <= 21:
        return _Number(sign + digits.ljust(point, "0"))
    if 0 < point <= 21:
        return _Number(f"{sign}{digits[:point]}.{digits[point:]}")
    if -6 < point <= 0:
        return _Number(f"{sign}0.{'0' * -point}{digits}")
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return _Number(f"{sign}{digits[0]}{fraction}e{point - 1:+d}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members in V8's order; a key's last value stands in the place of its first."""
    members = dict(pairs)
    indices = sorted(int(key) for key in members if _INDEX.fullmatch(key) and int(key) <= _MAX_INDEX)
    if not indices:
        return members
    return {**{str(index): members[str(index)] for index in indices}, **members}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_refuse)


def _write(value: Any, parts: list[str]) -> None:
    match value:
        case _Number():
            parts.append(value)
        case str():
            parts.append(_quote(value))
        case dict():
            separator = "{"
            for key, member in value.items():
                parts.append(f"{separator}{_quote(key)}:")
                _write(member, parts)
                separator = ","
            parts.append("}" if value else "{}")
        case list():
            separator = "["
            for item in value:
                parts.append(separator)
                _write(item, parts)
                separator = ","
            parts.append("]" if value else "[]")
        case None:
            parts.append("null")
        case _:
            parts.append("true" if value else "false")
