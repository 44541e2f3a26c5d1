"""Plain decimals that came as text, such as "19.90", in the places where a schema expects a number.

Shops send prices as text, and an SDK reads no refusal, so the order would be lost. Such a text is read as the JSON
number of the same characters. With other separators, an exponent or a currency it would be a guess, so that stays.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ingestd.support.schema_references import REFERENCES, References

if TYPE_CHECKING:
    from .fault_budget import FaultBudget

__all__ = ["NumberPlaces", "ReadText"]

_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?", re.ASCII)

_MOST_VALUES = 20_000  # in objects and arrays of an event: more than any order has, and some milliseconds
_LONGEST = 100  # characters of a number: long ones take long to read, and no price has them
_OTHER_TEXT = 1_000  # values that a text counts for if it is no plain decimal, since the event is mostly refused for it

_NUMBERS = {"number", "integer"}
_WITH_LIST = ("allOf", "anyOf", "oneOf")
_WITH_SCHEMA = ("then", "else")
_OTHER_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_ELEMENTS = ("items", "unevaluatedItems")

_Schema = tuple[str, Any]
"""A schema, after the URI of its file."""


class _Place:
    """A place in the data of an event, as all schemas that may apply to it describe it."""

    __slots__ = ("elements", "has_numbers", "is_number", "members", "others")

    is_number: bool
    has_numbers: bool
    """Whether there may be numbers here or inside."""
    members: Mapping[str, _Place]
    others: _Place | None
    """The place of members with any other name."""
    elements: _Place | None

    def __init__(self) -> None:
        self.has_numbers = True  # as long as it is not known: the place may contain itself


class ReadText(NamedTuple):
    """A text, the object or array that has it under this key, and its number."""

    container: Any
    key: Any
    text: str
    number: float


class NumberPlaces:
    def __init__(self, schemas: Mapping[str, Any]) -> None:
        """`schemas` has the schema of each file by its URI."""
        self._schemas = schemas
        self._references = References(schemas)
        self._places: dict[frozenset[int], _Place] = {}

    def read_decimals(self, uri: str, data: dict[str, Any], budget: FaultBudget) -> Sequence[ReadText]:
        """Replace texts in the data of the event whose schema has this URI. Returns them.

        None is replaced if the data has too many values, or too many texts that are no plain decimals. The values are
        taken from the budget: the caller gives them back if the event is valid then.
        """
        reading = _Reading()
        try:
            reading.read(self._place([(uri, self._schemas[uri])]), data)
        except _TooMany:
            return ()
        finally:
            budget.readings -= reading.values
        for read in reading.found:
            read.container[read.key] = read.number
        return reading.found

    def _place(self, schemas: Iterable[_Schema]) -> _Place:
        applied = list(self._applied(schemas))
        key = frozenset(id(schema) for _, schema in applied)
        if key in self._places:  # a schema may contain itself
            return self._places[key]
        place = self._places[key] = _Place()
        types: set[str] = set()
        members: dict[str, list[_Schema]] = defaultdict(list)
        others: list[_Schema] = []
        elements: list[_Schema] = []
        for uri, schema in applied:
            type_ = schema.get("type", ())
            types.update([type_] if isinstance(type_, str) else type_)
            for name, inner in schema.get("properties", {}).items():
                members[name].append((uri, inner))
            others += [(uri, inner) for inner in schema.get("patternProperties", {}).values()]
            others += [(uri, schema[keyword]) for keyword in _OTHER_MEMBERS if keyword in schema]
            elements += [(uri, inner) for inner in schema.get("prefixItems", ())]
            elements += [(uri, schema[keyword]) for keyword in _ELEMENTS if keyword in schema]
        place.is_number = not types.isdisjoint(_NUMBERS) and "string" not in types
        inside = {name: self._place(each) for name, each in members.items()}
        place.others, place.elements = self._with_numbers(others), self._with_numbers(elements)
        place.members = {name: inner for name, inner in inside.items() if inner.has_numbers or place.others}
        place.has_numbers = place.is_number or bool(place.members or place.others or place.elements)
        return place

    def _with_numbers(self, schemas: Iterable[_Schema]) -> _Place | None:
        place = self._place(schemas)
        return place if place.has_numbers else None

    def _applied(self, schemas: Iterable[_Schema]) -> Iterator[_Schema]:
        """The schemas, and those that they apply to the same value, always or as alternatives."""
        waiting, seen = list(schemas), set()
        while waiting:
            uri, schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield uri, schema
            # Each reference has a target, since the files have been checked.
            waiting += [self._references.target(uri, schema[keyword]) for keyword in REFERENCES if keyword in schema]
            waiting += [(uri, inner) for keyword in _WITH_LIST for inner in schema.get(keyword, ())]
            waiting += [(uri, schema[keyword]) for keyword in _WITH_SCHEMA if keyword in schema]
            waiting += [(uri, inner) for inner in schema.get("dependentSchemas", {}).values()]


class _TooMany(Exception):
    """The event would take too long."""


class _Reading:
    """Reads the texts of one event."""

    __slots__ = ("_left", "found", "values")

    def __init__(self) -> None:
        self.found: list[ReadText] = []
        self.values = 0
        self._left = _MOST_VALUES

    def read(self, place: _Place, container: dict[Any, Any] | list[Any]) -> None:
        """Read the texts inside of a container."""
        self._spend(len(container))
        self.values += len(container)
        if isinstance(container, list):
            if place.elements is not None:
                for index, value in enumerate(container):
                    self._read_value(place.elements, container, index, value)
        elif place.others is None:
            for name, inner in place.members.items():
                if name in container:
                    self._read_value(inner, container, name, container[name])
        else:
            for name, value in container.items():
                self._read_value(place.members.get(name, place.others), container, name, value)

    def _read_value(self, place: _Place, container: Any, key: Any, value: Any) -> None:
        kind = type(value)
        if kind is str:
            if place.is_number:
                number = _number(value)
                if number is None:
                    self._spend(_OTHER_TEXT)
                else:
                    self.found.append(ReadText(container, key, value, number))
        elif kind is dict or kind is list:
            self.read(place, value)

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _TooMany


def _number(text: str) -> float | None:
    if len(text) > _LONGEST or _PLAIN.fullmatch(text) is None:
        return None
    number: float = msgspec.json.decode(text)
    return number
