"""The schemas inside a schema, and the targets of its references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

__all__ = ["REFERENCES", "Path", "References", "inner_schemas", "subschemas"]

REFERENCES = ("$ref", "$dynamicRef")
# The keywords of draft 2020-12 that contain schemas.
_WITH_SCHEMA = frozenset([
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
])  # fmt: skip
_WITH_LIST = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_WITH_NAMES = frozenset(["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"])

Path = tuple[str | int, ...]


def inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Path]]:
    """The schemas directly inside of a schema, each with its path. Values of `const` or `examples` are not schemas."""
    for keyword, value in schema.items():
        if keyword in _WITH_SCHEMA:
            yield value, (keyword,)
        elif keyword in _WITH_LIST:
            yield from ((inner, (keyword, index)) for index, inner in enumerate(value))
        elif keyword in _WITH_NAMES:
            yield from ((inner, (keyword, name)) for name, inner in value.items())


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """A schema and all schemas inside of it, each with its path."""
    if isinstance(schema, dict):
        yield schema, path
        for inner, steps in inner_schemas(schema):
            yield from subschemas(inner, (*path, *steps))


class References:
    """Finds the targets to which the schemas of all files can refer."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        """`schemas` has the schema of each file by its URI."""
        self._schemas = schemas

    def target(self, uri: str, reference: str) -> tuple[str, Any]:
        """The target of a reference in the file with this URI, after the URI of its file.

        Raises `LookupError`, `TypeError` or `ValueError` if there is none.
        """
        file, _, fragment = reference.partition("#")
        if file:
            uri = file if file in self._schemas else urljoin(uri, file)
        target: Any = self._schemas[uri]
        if fragment and not fragment.startswith("/"):
            return uri, _anchored(target, fragment)
        for token in fragment.split("/")[1:]:
            step = unquote(token).replace("~1", "/").replace("~0", "~")
            target = target[int(step)] if isinstance(target, list) else target[step]
        return uri, target

    def files(self, uri: str) -> list[str]:
        """The URIs of a file and of all files that it refers to, or that these refer to."""
        found = [uri]
        for each in found:
            for schema, _ in subschemas(self._schemas[each]):
                targets = [self.target(each, schema[keyword])[0] for keyword in REFERENCES if keyword in schema]
                found += [target for target in dict.fromkeys(targets) if target not in found]
        return found

    def faults(self, uri: str) -> Iterator[tuple[Path, str]]:
        """The references of a file that have no target, or a target that is not a schema: each path, and the reason."""
        for schema, path in subschemas(self._schemas[uri]):
            for keyword in REFERENCES:
                if keyword not in schema:
                    continue
                reference = schema[keyword]
                try:
                    _, target = self.target(uri, reference)
                except (LookupError, TypeError, ValueError):
                    yield (*path, keyword), f'"{reference}" is neither in this file nor the $id of another one'
                    continue
                if not isinstance(target, dict | bool):
                    yield (*path, keyword), f'"{reference}" is not a schema'


def _anchored(schema: Any, name: str) -> Any:
    """The schema with this anchor. Raises `LookupError`."""
    for inner, _ in subschemas(schema):
        if name in {inner.get("$anchor"), inner.get("$dynamicAnchor")}:
            return inner
    raise LookupError(name)
