"""The members of an event, those of its `data` by its JSON Schema, each with the kind of column that holds it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .schema_references import References

__all__ = ["OF_EVENT", "Kind", "Member", "Schemas"]

Kind = Literal["text", "decimal", "integer", "boolean", "time", "date", "day", "json"]
"""What a column holds. `integer` and `day` are counts and days of models: those of events are decimals and dates."""

_KINDS: Mapping[str, Kind] = {"string": "text", "number": "decimal", "integer": "decimal", "boolean": "boolean"}
_FORMATS: Mapping[str, Kind] = {"date-time": "time", "date": "date"}
_DEEPEST = 3
"""Levels of objects whose members are columns. A schema may contain itself."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""A half of a character, which no UTF-8 has."""


class Member(NamedTuple):
    """A member of data. `path` has the names of the objects around it, too."""

    path: tuple[str, ...]
    kind: Kind
    description: str = ""
    items: Sequence[Member] = ()
    """The members of the objects of an array, which are rows of their own."""


OF_EVENT: Sequence[tuple[str, Kind, tuple[str, ...], str]] = (
    ("session_is_new", "boolean", ("sessionIsNew",), "whether the event began its session"),
    ("endpoint", "text", ("endpoint",), "where it was received"),
    ("signed", "boolean", ("signed",), "whether a backend signed it"),
    ("dispatch_id", "text", ("dispatchId",), "the send that led to it"),
    ("message_id", "text", ("messageId",), "the caller's id of the message"),
    ("context_campaign_source", "text", ("context", "campaign", "source"), "as sent"),
    ("context_campaign_medium", "text", ("context", "campaign", "medium"), "as sent"),
    ("context_campaign_name", "text", ("context", "campaign", "name"), "as sent"),
    ("context_page_url", "text", ("context", "page", "url"), "address of the page"),
    ("context_page_referrer", "text", ("context", "page", "referrer"), "address of the page before"),
)
"""Column, kind, path and description of the members of every event, besides those with a column in each sink."""


_Form = tuple[Mapping[str, Any], str]
"""A schema, and the `$id` of the file that it is in."""


class Schemas:
    """Schemas by `$id`, for references from one to another."""

    def __init__(self, by_uri: Mapping[str, Mapping[str, Any]]) -> None:
        self._by_uri = by_uri
        self._references = References(by_uri)

    def members(self, uri: str) -> Sequence[Member]:
        """The members of the schema with this `$id`."""
        return [*self._members(self._by_uri[uri], uri, (), 1)]

    def _members(self, schema: Mapping[str, Any], home: str, path: tuple[str, ...], depth: int) -> Iterator[Member]:
        for name, forms in self._properties(schema, home).items():
            inner, kinds = (*path, name), {self._kind(form, home) for form, home in forms}
            description = next((str(each["description"]) for each, _ in forms if "description" in each), "")
            form, home = forms[0]
            if kinds == {"object"} and len(forms) == 1 and depth < _DEEPEST and self._properties(form, home):
                yield from self._members(form, home, inner, depth + 1)
            elif kinds == {"array"} and len(forms) == 1 and depth == 1:
                yield Member(inner, "json", description, [*self._items(form, home)])
            else:
                kind = kinds.pop() if len(kinds) == 1 else "json"
                yield Member(inner, "json" if kind in {"object", "array"} else kind, description)  # type: ignore[arg-type]

    def _items(self, schema: Mapping[str, Any], home: str) -> Iterator[Member]:
        for form, at in self._forms(schema, home):
            if isinstance(form.get("items"), dict) and self._kind(form["items"], at) == "object":
                yield from self._members(form["items"], at, (), _DEEPEST - 1)

    def _properties(self, schema: Mapping[str, Any], home: str) -> dict[str, list[_Form]]:
        """The forms of each member. Those of definitions come first."""
        found: dict[str, list[_Form]] = {}
        for form, at in self._forms(schema, home):
            for name, inner in form.get("properties", {}).items():
                if isinstance(inner, dict) and not _SURROGATE.search(name):  # no event has such a name
                    found.setdefault(name, []).append((inner, at))
        return found

    def _forms(self, schema: Mapping[str, Any], home: str, seen: tuple[int, ...] = ()) -> Iterator[_Form]:
        """A schema and what it refers to or is composed of."""
        if id(schema) in seen:
            return
        seen = (*seen, id(schema))
        if "$ref" in schema:
            at, target = self._references.target(home, schema["$ref"])
            if isinstance(target, dict):
                yield from self._forms(target, at, seen)
        for word in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(word, ()):
                if isinstance(part, dict):
                    yield from self._forms(part, home, seen)
        yield schema, home

    def _kind(self, schema: Mapping[str, Any], home: str) -> str:
        """The kind of its values; `json` if they may be of several. Null is of every kind."""
        kinds: set[str] = set()
        for form, _ in self._forms(schema, home):
            given = form.get("type", [])
            types = {*([given] if isinstance(given, str) else given)}
            values = form.get("enum", [form["const"]] if "const" in form else [])
            types |= {_type_of(value) for value in values}
            kinds |= {_KINDS.get(each, each) for each in types - {"null"}}
            if kinds == {"text"}:
                kinds = {_FORMATS.get(str(form.get("format")), "text")}
        return kinds.pop() if len(kinds) == 1 else "json"


def _type_of(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")
