"""Writes events.d.ts of the clients, the types of the built-in events; `make browser-types` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ingestd.validation.schema_files import SchemaFile, read_schemas

FILES = [Path(__file__).parents[1] / "clients" / name / "events.d.ts" for name in ("browser", "node")]

_HEAD = "// Made from schemas/ by scripts/browser_types.py.\n"
_TYPES = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
_ANY = "Record<string, unknown>"

Schema = Mapping[str, Any]


def text() -> str:
    """The content of the file."""
    files = list(read_schemas(None))
    schemas = {file.uri: file.schema for file in files}
    events = sorted((file for file in files if file.key is not None), key=lambda file: str(file.key))
    names = dict(_definitions(schemas, events))
    interfaces = [_interface(name, schemas[uri], names) for uri, name in names.items()]
    members = "".join(f"  {_comment(each.schema, 1)}'{each.key}': {_type(each.schema, names, 1)}\n" for each in events)
    data = f"/** The data of each event, by its key. */\nexport interface EventData {{\n{members}}}\n"
    return "\n".join([_HEAD, *interfaces, data])


def _definitions(schemas: Mapping[str, Schema], events: list[SchemaFile]) -> Iterator[tuple[str, str]]:
    """URI and name of every schema that events refer to, each after the schemas that it refers to."""
    seen: set[str] = set()

    def visit(uri: str) -> Iterator[tuple[str, str]]:
        if uri not in seen:
            seen.add(uri)
            for reference in _references(schemas[uri]):
                yield from visit(reference)
            yield uri, "".join(word.capitalize() for word in uri.rpartition(":")[2].split("_"))

    for file in events:
        for reference in _references(file.schema):
            yield from visit(reference)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _interface(name: str, schema: Schema, names: Mapping[str, str]) -> str:
    base = f" extends {names[schema['$ref']]}" if "$ref" in schema else ""
    return f"{_comment(schema, 0)}export interface {name}{base} {_object(schema, names, 0)}\n"


def _type(schema: Schema, names: Mapping[str, str], depth: int) -> str:
    parts = [names[schema["$ref"]]] if "$ref" in schema else []
    kind = schema.get("type")
    if kind == "array":
        item = _type(schema.get("items", {}), names, depth)
        parts.append(f"{item}[]" if item.isidentifier() else f"Array<{item}>")
    elif isinstance(kind, list):
        parts.append(" | ".join(_TYPES[each] for each in kind))
    elif kind == "object" and schema.get("properties"):
        parts.append(_object(schema, names, depth))
    elif kind == "object" and not parts:
        parts.append(_ANY)
    elif kind in _TYPES:
        parts.append(_TYPES[kind])
    return " & ".join(parts) or "unknown"


def _object(schema: Schema, names: Mapping[str, str], depth: int) -> str:
    """The known members, and any further ones."""
    indent = "  " * (depth + 1)
    members = [
        f"{indent}{_comment(each, depth + 1)}{name}?: {_type(each, names, depth + 1)}\n"
        for name, each in schema.get("properties", {}).items()
    ]
    return f"{{\n{''.join(members)}{indent}[name: string]: unknown\n{'  ' * depth}}}"


def _comment(schema: Schema, depth: int) -> str:
    description = schema.get("description")
    return f"/** {description} */\n{'  ' * depth}" if description else ""


if __name__ == "__main__":
    for file in FILES:
        file.write_text(text(), encoding="utf-8")
        sys.stdout.write(f"{file}\n")
