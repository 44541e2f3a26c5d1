"""The faults of a body according to `jsonschema`, the reference, independent of ingestd's code for schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource


class Reference:
    """The built-in schemas, read directly from their files."""

    def __init__(self) -> None:
        folder = files("ingestd.schemas")
        entries = [*folder.iterdir(), *(folder / "definitions").iterdir()]
        schemas = [json.loads(entry.read_text(encoding="utf-8")) for entry in entries if entry.name.endswith(".json")]
        self._uris: Mapping[str, str] = {schema["title"]: schema["$id"] for schema in schemas}
        self._registry: Registry[Any] = Registry().with_resources(
            (schema["$id"], Resource.from_contents(schema)) for schema in schemas
        )

    def identify(self, body: Any) -> set[str]:
        """The pointers of all faults of an identify request."""
        return self._pointers({"$ref": self._uris["Identify"]}, body)

    def envelope(self, body: Any) -> set[str]:
        """The pointers of all faults of an event's envelope."""
        return self._pointers({"$ref": self._uris["Event"]}, body)

    def data(self, key: str, body: Any) -> set[str]:
        """The pointers of all faults of an event's `data`."""
        return self._pointers({"properties": {"data": {"$ref": self._uris[key]}}}, body)

    def _pointers(self, schema: Any, body: Any) -> set[str]:
        pointers = set()
        for error in Draft202012Validator(schema, registry=self._registry).iter_errors(body):
            paths = [list(error.absolute_path)]
            if error.validator == "required":
                paths = [[*paths[0], name] for name in error.validator_value if name not in error.instance]
            for path in paths:
                steps = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
                pointers.add("".join(f"/{step}" for step in steps))
        return pointers
