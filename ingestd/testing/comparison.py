"""A comparison of written and stored values: none missing, none unknown, all in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["assert_same"]

_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


def assert_same(held: Sequence[Any], written: Sequence[Any], *, in_order: bool) -> None:
    """Each written value is held, and no other. First occurrences are in order; repetitions are allowed."""
    there, wanted = [*dict.fromkeys(map(_text, held))], [*dict.fromkeys(map(_text, written))]
    missing, strange = [*_without(wanted, there)], [*_without(there, wanted)]
    near = f"; there is {_short(strange[0])}, which was never written" if strange else ""
    assert not missing, f"{len(missing)} of {len(wanted)} are missing, the first is {_short(missing[0])}{near}"
    assert not strange, f"{len(strange)} were never written, the first is {_short(strange[0])}"
    assert not in_order or there == wanted, "they are not in the order in which they were written"


def _text(value: Any) -> str:
    return _encode(_plain(value))


def _plain(value: Any) -> Any:
    """The same value for equal ones: 1.0 becomes 1, and a tuple becomes a list."""
    if value is None or isinstance(value, str | int):  # most values are, and these checks are quick
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without(values: Sequence[str], others: Sequence[str]) -> list[str]:
    known = {*others}
    return [value for value in values if value not in known]


def _short(value: str) -> str:
    return value if len(value) <= 600 else f"{value[:600]}… ({len(value)} characters)"
