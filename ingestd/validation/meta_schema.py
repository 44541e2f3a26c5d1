"""Checks schema files against JSON Schema, draft 2020-12, with `jsonschema` and `referencing`.

Importing these two takes a fifth of a start. So the daemon imports this module only for a shop's own files. The tests
check the built-in files here; at a start, only `jsonschema_rs` checks them.
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
    """A fault at a path of a schema."""

    path: Iterable[str | int]
    reason: str


def faults_of_form(schema: Schema) -> Iterator[Fault]:
    """The gravest fault by which a value is not a schema; nothing if it is a schema."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        yield Fault(error.absolute_path, error.message)


def faults_of_names(schema: Schema) -> Iterator[Fault]:
    """`$id` and `$schema` below the top of a file. Such an `$id` could replace another schema."""
    for subschema, path in _subschemas(schema):
        for keyword in ("$id", "$schema"):
            if path and keyword in subschema:
                yield Fault([*path, keyword], "allowed at the top of a file only")


class References:
    """The targets to which the schemas of all files can refer."""

    def __init__(self, schemas: Iterable[Schema]) -> None:
        """Every schema has an `$id`."""
        resources = [(str(schema["$id"]), DRAFT202012.create_resource(schema)) for schema in schemas]
        self._registry: referencing.Registry[Any] = referencing.Registry().with_resources(resources).crawl()

    def faults(self, schema: Schema) -> Iterator[Fault]:
        """The references of a schema that have no target, or a target that is not a schema."""
        resolver = self._registry.resolver(base_uri=str(schema["$id"]))
        for subschema, path in _subschemas(schema):
            for keyword in ("$ref", "$dynamicRef"):
                if keyword not in subschema:
                    continue
                reference = subschema[keyword]
                try:
                    target = resolver.lookup(reference).contents
                except (Unresolvable, ValueError):  # no such target, or not a valid reference
                    reason = f'"{reference}" is neither in this file nor the $id of another one'
                    yield Fault([*path, keyword], reason)
                    continue
                if not isinstance(target, dict | bool):
                    yield Fault([*path, keyword], f'"{reference}" is not a schema')


def _subschemas(schema: Schema) -> Iterator[tuple[Schema, list[str | int]]]:
    """A schema and all its subschemas, each with its path. Values of `const` or `examples` are not subschemas."""
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
