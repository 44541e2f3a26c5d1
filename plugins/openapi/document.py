"""The OpenAPI document: a template into which the schemas that are in force are put.

`template.json` is the document without the schemas of events. It also lists the problems, each with a `detail` as an
example and its `operations`; without these, every operation may answer with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from ingestd import __version__
from ingestd.api import errors
from ingestd.api.options import Address
from ingestd.api.output import write_data
from ingestd.config import Config
from ingestd.hooks.loader import Plugins
from ingestd.validation.schema_files import SchemaFile
from ingestd.validation.validator import Validator

from .schema_components import SchemaComponents, location

__all__ = ["listener_url", "make_document", "print_openapi", "to_json"]

Schema = dict[str, Any]

_EVENT = "urn:ingestd:definition:event"
_TITLES = {each.status: each.title for each in errors.Refused.__subclasses__() if each.__module__ == errors.__name__}


async def print_openapi(arguments: argparse.Namespace, config: Config, plugins: Plugins) -> None:
    """Print what the daemon serves with this configuration."""
    schemas = Validator.load(config.schemas.directory).sources
    document = make_document(schemas, arguments.server or listener_url(config.http.listen))
    write_data([to_json(document).decode()], end="")


def listener_url(listen: Address) -> str:
    """The URL of a listener, for a client on the same machine if it listens on all addresses."""
    anywhere = listen.host in {"0.0.0.0", "::"}  # noqa: S104 - it is replaced, not listened on
    return f"http://{Address('localhost', listen.port) if anywhere else listen}"


def make_document(schemas: Sequence[SchemaFile], server: str, version: str = __version__) -> dict[str, Any]:
    """The document of the API with these schema files. `server` is the URL in front of the paths.

    Equal files give equal documents, in which all members have the same order.
    """
    template = msgspec.json.decode((files(__package__) / "template.json").read_bytes())
    info, parts, answers, problems = (template[name] for name in ("info", "components", "answers", "problems"))
    components = SchemaComponents(schemas, taken=[*parts["schemas"], *answers])
    events = {components.new_name(f"{file.key} Event"): file for file in schemas if file.key is not None}
    examples = {
        name: {"summary": file.key, "value": _example(file)}
        for name, file in events.items()
        if file.schema.get("examples")
    }
    for path in template["paths"].values():
        operation = path["post"]
        for media in operation["requestBody"]["content"].values():
            media.setdefault("examples", {name: _example_location(name) for name in examples})
        operation["responses"] |= _refusals(operation["operationId"], problems)
    any_event = parts["schemas"].pop("AnyEvent")
    of_files = components.schemas()
    definition = of_files[components.name_of(_EVENT)]
    answers["Problem"]["properties"]["code"]["x-extensible-enum"] = [each["code"] for each in problems]
    return {
        "openapi": template["openapi"],
        "info": {**info, "description": "\n".join([*info["description"], ""]), "version": version},
        "servers": [{"url": server}],
        "tags": template["tags"],
        "paths": template["paths"],
        "components": {
            **parts,
            "schemas": {
                "AnyEvent": any_event | _union(events),
                **{name: _event(file, components.name_of(file.uri), definition) for name, file in events.items()},
                **parts["schemas"],
                **of_files,
                **answers,
            },
            "examples": {
                **examples,
                **parts["examples"],
                **{each["code"]: _problem_example(each) for each in problems},
            },
        },
    }


def to_json(document: Mapping[str, Any]) -> bytes:
    """The document as indented JSON with a line break at the end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _example_location(name: str) -> Schema:
    return {"$ref": f"#/components/examples/{name}"}


def _union(events: Mapping[str, SchemaFile]) -> Schema:
    return {
        "oneOf": [{"$ref": location(name)} for name in events],
        "discriminator": {
            "propertyName": "key",
            "mapping": {file.key: location(name) for name, file in events.items()},
        },
    }


def _event(file: SchemaFile, name: str, definition: Schema) -> Schema:
    """The definition of all events with the key of this file, and data as in the component with this name.

    It is no heir of that definition, because generators of clients cannot narrow what a schema inherits.
    """
    *inherited, own = definition["allOf"]
    properties = {"key": {"type": "string", "const": file.key}, "data": {"$ref": location(name)}}
    return {
        "title": f"{file.key} event",
        "description": str(file.schema.get("description", "")),
        "allOf": [*inherited, {**own, "properties": {**own["properties"], **properties}}],
    }


def _example(file: SchemaFile) -> Schema:
    return {"key": file.key, "anonymousId": "visitor-1", "data": file.schema["examples"][0]}


def _refusals(operation: str, problems: Iterable[Schema]) -> Mapping[str, Schema]:
    """The answers of an operation from 400, by their statuses."""
    answers: dict[str, Schema] = {}
    for each in problems:
        if operation not in each.get("operations", [operation]):
            continue
        headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
        if each["status"] in {429, 503}:
            headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
        answer = answers.setdefault(
            str(each["status"]),
            {
                "description": "",
                "headers": headers,
                "content": {"application/problem+json": {"schema": {"$ref": location("Problem")}, "examples": {}}},
            },
        )
        answer["description"] = f"{answer['description']}\n- `{each['code']}`: {each['when']}.".lstrip()
        answer["content"]["application/problem+json"]["examples"][each["code"]] = _example_location(each["code"])
    return answers


def _problem_example(each: Schema) -> Schema:
    status, code, detail = each["status"], each["code"], each["detail"]
    value = {
        "type": f"urn:ingestd:problem:{code}",
        "title": _TITLES[status],
        "status": status,
        "detail": detail,
        "success": False,
        "code": code,
        "message": detail,
    }
    if "errors" in each:
        value["errors"] = each["errors"]
    return {"summary": each["when"], "value": value}
