"""The schema files as components of an OpenAPI document.

A component has a short name instead of an `$id`, so each `$ref` becomes a location in the document. Few tools for
OpenAPI read an `$id`, and many ignore the keywords beside a `$ref`. So a `$ref` with company moves into `allOf`.

Generators of clients follow references to components only, and give a class to each object. For an object inside of a
definition they would make one for every schema that inherits it, all of the same name. So such an object is a component
itself, and so is every schema in `$defs`. They take an `allOf` of one reference for that reference alone, so the
properties beside it move into the `allOf`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import urljoin

from ingestd.support.schema_references import REFERENCES, Path, inner_schemas, subschemas
from ingestd.validation.schema_files import SchemaFile, json_pointer

__all__ = ["SchemaComponents", "location"]


_DEFINED = (("$defs",), ("definitions",))
_OWN = ("type", "required", "properties", "patternProperties", "additionalProperties")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_DROPPED = frozenset(["$id", "$schema", *REFERENCES, *_ANCHORS])


def location(name: str) -> str:
    """The location of a component that is a schema."""
    return f"#/components/schemas/{name}"


class SchemaComponents:
    """The components of schema files. Only names that are not `taken` are given."""

    def __init__(self, files: Iterable[SchemaFile], taken: Collection[str]) -> None:
        self._files = list(files)
        self._taken = set(taken)
        self._names = {file.uri: self.new_name(str(file.schema.get("title") or file.uri)) for file in self._files}
        self._anchors = {
            (file.uri, subschema[keyword]): json_pointer(path)
            for file in self._files
            for subschema, path in subschemas(file.schema)
            for keyword in _ANCHORS
            if keyword in subschema
        }
        self._inside = {
            (file.uri, json_pointer(path)): self.new_name(str(subschema.get("title") or path[-1]))
            for file in self._files
            for subschema, path in subschemas(file.schema)
            if path[-2:-1] in _DEFINED
            or (file.key is None and path[-2:-1] == ("properties",) and subschema.get("type") == "object")
        }
        """The names of components that are inside of a file, by file and location."""
        self._heirs = {
            (file.uri, json_pointer(path)): len(subschema.get("allOf", [])) + len(_references(subschema))
            for file in self._files
            for subschema, path in subschemas(file.schema)
            if "properties" in subschema and _references(subschema)
        }
        """The places in `allOf` of the properties beside a reference, by file and location of the schema."""

    def new_name(self, text: str) -> str:
        """A name for a component, made of the words of a text: `OrderCompleted`. It is not given again."""
        words = re.findall("[A-Za-z0-9]+", text)
        name = base = "".join(word[0].upper() + word[1:] for word in words) or "Schema"
        number = 1
        while name in self._taken:
            number += 1
            name = f"{base}{number}"
        self._taken.add(name)
        return name

    def name_of(self, uri: str) -> str:
        """The name of the component of a file, by the `$id` of the file."""
        return self._names[uri]

    def schemas(self) -> Mapping[str, Any]:
        """The components by their names, in the order of the files."""
        made: dict[str, Any] = {}
        for file in self._files:
            made[self._names[file.uri]] = self._convert(file.schema, file.uri, (), made)
        return made

    def _convert(self, schema: Any, base: str, path: Path, components: dict[str, Any]) -> Any:
        """The schema at a path of the file `base`. Components inside of it are added to `components`."""
        if not isinstance(schema, dict):  # true or false
            return schema
        made = {keyword: _shallow(value) for keyword, value in schema.items() if keyword not in _DROPPED}
        for inner, steps in inner_schemas(schema):
            holder: Any = made
            for step in steps[:-1]:
                holder = holder[step]
            holder[steps[-1]] = self._convert(inner, base, (*path, *steps), components)
        # A dynamic reference shows its initial target. No document outside of JSON Schema can say more.
        references = [{"$ref": self._target(each, base)} for each in _references(schema)]
        if references and (made or len(references) > 1):
            # At the end, because other references may name the present members by their index.
            own = {keyword: made.pop(keyword) for keyword in _OWN if "properties" in schema and keyword in made}
            made["allOf"] = [*made.get("allOf", []), *references, *([own] if own else [])]
        elif references:
            made = references[0]
        name = self._inside.get((base, json_pointer(path)))
        if name is None:
            return made
        components[name] = made
        return {"$ref": location(name)}

    def _target(self, reference: str, base: str) -> str:
        """The location in the document. The reference has a target, since the files have been checked."""
        uri, _, fragment = reference.partition("#")
        if not uri:
            uri = base
        elif uri not in self._names:
            uri = urljoin(base, uri)
        if fragment and not fragment.startswith("/"):
            fragment = self._anchors[uri, fragment]
        above, found = "", location(self._names[uri])
        for step in fragment.split("/")[1:]:
            if step in _OWN and (uri, above) in self._heirs:
                found += f"/allOf/{self._heirs[uri, above]}"
            above += f"/{step}"
            found = location(self._inside[uri, above]) if (uri, above) in self._inside else f"{found}/{step}"
        return found


def _references(schema: Mapping[str, Any]) -> list[str]:
    return [schema[keyword] for keyword in REFERENCES if keyword in schema]


def _shallow(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list) else value
