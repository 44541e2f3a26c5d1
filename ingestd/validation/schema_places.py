"""The location of a fault in a schema: a JSON pointer of names from the schema, never of names from the body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ingestd.support.schema_references import subschemas

from .schema_files import json_pointer, shorten

__all__ = ["ITEM", "UNDECLARED", "declared_names", "schema_pointer"]

ITEM = "*"
"""Stands for every index of an array."""

UNDECLARED = "(undeclared)"
"""Stands for a name that the schema does not declare, and that the caller chose."""

_LONGEST = 200  # characters: a schema may contain itself, so a pointer has no natural limit

_UNDECLARED = frozenset(["patternProperties", "additionalProperties", "unevaluatedProperties"])
_ITEM = frozenset(["prefixItems", "items", "unevaluatedItems"])
_WITH_ARGUMENT = frozenset([
    "properties", "patternProperties", "prefixItems", "allOf", "anyOf", "oneOf", "dependentSchemas",
])  # fmt: skip


@lru_cache(maxsize=2_000)  # a flood of invalid bodies violates the same rules again and again
def schema_pointer(keywords: tuple[str | int, ...], *more: str) -> str:
    """The location at the end of a path of keywords, and `more` steps. The path may pass through references."""
    return shorten(json_pointer([*_steps(keywords), *more]), _LONGEST)


def _steps(keywords: tuple[str | int, ...]) -> Iterator[str]:
    is_argument = False
    for keyword, following in pairwise([*keywords, ""]):
        if is_argument:
            is_argument = False
            continue
        is_argument = keyword in _WITH_ARGUMENT
        if keyword == "properties":
            yield str(following)
        elif keyword in _UNDECLARED:
            yield UNDECLARED
        elif keyword in _ITEM:
            yield ITEM


def declared_names(schemas: Iterable[Any]) -> frozenset[str]:
    """The names of all members that the schemas declare, wherever they may stand."""
    return frozenset(
        [name for schema in schemas for inner, _ in subschemas(schema) for name in inner.get("properties", ())]
    )
