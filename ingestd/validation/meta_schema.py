"""What JSON Schema, draft 2020-12, asks of a schema, as `jsonschema` and `referencing` have it.

These two take a fifth of a start to import, so that only a shop's own files are looked at here. The built-in ones are
by the tests; at a start `jsonschema_rs` has to do for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import referencing
from jsonschema import Draft202012Validator, SchemaError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

__all__ = ["Fault", "References", "faults_of_form", "faults_of_names"]

Schema = dict[str, Any]


class Fault(NamedTuple):
    """What is wrong at this path of a schema."""

    path: Iterable[str | int]
    reason: str


def faults_of_form(schema: Schema) -> Iterator[Fault]:
    """Where it is no schema, the gravest only."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        yield Fault(error.absolute_path, error.message)


def faults_of_names(schema: Schema) -> Iterator[Fault]:
    """A schema that renames itself half-way could take the place of another one."""
    for subschema, path in _subschemas(schema):
        for keyword in ("$id", "$schema"):
            if path and keyword in subschema:
                yield Fault([*path, keyword], "allowed at the top of a file only")


class References:
    """What the schemas of all files may refer to."""

    def __init__(self, schemas: Iterable[Schema]) -> None:
        """Each has an `$id`."""
        resources = [(str(schema["$id"]), DRAFT202012.create_resource(schema)) for schema in schemas]
        self._registry: referencing.Registry[Any] = referencing.Registry().with_resources(resources).crawl()

    def faults(self, schema: Schema) -> Iterator[Fault]:
        """References of one of them that lead nowhere, or to what is no schema."""
        resolver = self._registry.resolver(base_uri=str(schema["$id"]))
        for subschema, path in _subschemas(schema):
            for keyword in ("$ref", "$dynamicRef"):
                if keyword not in subschema:
                    continue
                reference = subschema[keyword]
                try:
                    target = resolver.lookup(reference).contents
                except (Unresolvable, ValueError):  # no such place, or not even the form of one
                    reason = f'"{reference}" is neither in this file nor the $id of another one'
                    yield Fault([*path, keyword], reason)
                    continue
                if not isinstance(target, dict | bool):
                    yield Fault([*path, keyword], f'"{reference}" is not a schema')


def _subschemas(schema: Schema) -> Iterator[tuple[Schema, list[str | int]]]:
    """Every schema in a schema with its path, itself first; what `const` or `examples` hold is none."""
    paths = {id(node): path for node, path in _nodes(schema, [])}
    waiting = [schema]
    while waiting:
        subschema = waiting.pop()
        yield subschema, paths[id(subschema)]
        inner = (resource.contents for resource in DRAFT202012.create_resource(subschema).subresources())
        waiting += [node for node in inner if isinstance(node, dict)]


def _nodes(value: Any, path: list[str | int]) -> Iterator[tuple[Schema, list[str | int]]]:
    if isinstance(value, dict):
        yield value, path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _nodes(inner, [*path, step])
