"""Parts that the payloads of platforms have in common: ids, money as decimal text, and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from ingestd.api.times import parse_time

__all__ = ["AMOUNT", "ID", "amount", "first_text", "instant", "member", "objects", "sum_of", "text_of", "without_none"]

ID = {"type": ["integer", "string"]}
AMOUNT = {"type": ["string", "number", "null"], "pattern": r"^-?\d+(\.\d+)?$"}
"""JSON Schemas of an id and of an amount."""

_DIGITS = 15
"""The most digits of an amount before its point."""

_DECIMALS = 12
"""More are rounded: a few characters such as 1e-999999999 would become a text of a gigabyte."""


def amount(value: Any) -> Decimal:
    """An amount of money, which platforms send as text or as a number. 0 for anything else."""
    try:
        made = (
            Decimal(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else Decimal()
        )
    except InvalidOperation:
        return Decimal()
    exponent = made.as_tuple().exponent
    if not isinstance(exponent, int) or made.adjusted() >= _DIGITS:  # NaN or an infinity has a letter
        return Decimal()
    return made if exponent >= -_DECIMALS else round(made, _DECIMALS)


def sum_of(values: Iterable[Any]) -> Decimal:
    return sum(map(amount, values), Decimal())


def text_of(value: Any) -> str | None:
    """An id as text: platforms send whole numbers. None for an id that is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def instant(value: Any) -> int | None:
    """The milliseconds of a time; None for a text that is no time."""
    return parse_time(value) if isinstance(value, str) else None


def without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """The members that have a value. An amount becomes text, so that no digit of it is lost."""
    return {
        name: format(value, "f") if isinstance(value, Decimal) else value
        for name, value in members.items()
        if value is not None
    }


def member(payload: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The member if it is an object, else an empty one."""
    value = payload.get(name)
    return value if isinstance(value, dict) else {}


def first_text(values: Any, name: str) -> str | None:
    """The first id of this name in an array of objects."""
    return next(filter(None, (text_of(each.get(name)) for each in objects(values))), None)


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of an array; none for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
