"""The schema files of events, which are read and checked before anything starts.

A schema directory has one `*.json` file per event key, and shared definitions in `definitions/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jsonschema_rs

from ingestd.api.errors import ConfigError
from ingestd.support.schema_references import References, subschemas

__all__ = ["DRAFT", "SchemaFile", "complete_schemas", "json_pointer", "read_schemas", "schema_ids", "shorten"]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_MAX_KEY = 100
_MAX_REASON = 200
_NO_TYPE = "expected array, boolean, integer, null, number, object or string, or an array of these"

Schema = dict[str, Any]


class SchemaFile(NamedTuple):
    """One schema: the name of the file in messages, its content, and its event key.

    `key` is None for a definition. `builtin` distinguishes the files of ingestd from the files of a shop.
    """

    file: str
    schema: Schema
    key: str | None
    builtin: bool

    @property
    def uri(self) -> str:
        return str(self.schema["$id"])

    def refuse(self, path: Iterable[str | int], reason: str) -> NoReturn:
        """Raise the `ConfigError` for a fault at a path of the file."""
        raise _fault(self.file, path, reason)


def json_pointer(path: Iterable[str | int]) -> str:
    """The JSON pointer of a path (RFC 6901): `["data", "a/b", 0]` is `/data/a~1b/0`; an empty path is an empty text."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def shorten(text: str, limit: int) -> str:
    """The text, cut to at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def read_schemas(directory: Path | None) -> list[SchemaFile]:
    """The built-in schemas, then the schemas of a shop's directory, in the order of their names.

    Raises `ConfigError`, which names every faulty file, the location in the file and the reason.
    """
    schemas = list(_read_directory(files("ingestd.schemas"), builtin=True))
    if directory is not None:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: the directory of schemas does not exist")
        schemas += _read_directory(directory, builtin=False)
    _check_unique(schemas)
    if directory is not None:
        _check_references(schemas)
    return schemas


def schema_ids(files: Iterable[SchemaFile]) -> dict[str, str]:
    """By event key, 12 hexadecimal digits of a hash of its schema and of all schemas that this one refers to."""
    files = list(files)
    references = References({file.uri: file.schema for file in files})
    texts = {file.uri: json.dumps(file.schema, sort_keys=True) for file in files}

    def schema_id(uri: str) -> str:
        content = "\n".join(texts[each] for each in sorted(references.files(uri)))
        return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()

    return {file.key: schema_id(file.uri) for file in files if file.key is not None}


def complete_schemas(directory: Path | None) -> dict[str, Schema]:
    """The schema of each event key, with the files that it uses in `$defs`. Raises `ConfigError`."""
    schemas = {file.uri: file for file in read_schemas(directory)}
    references = References({uri: file.schema for uri, file in schemas.items()})

    def complete(file: SchemaFile) -> Schema:
        used = {uri: schemas[uri].schema for uri in references.files(file.uri)[1:]}
        return {**file.schema, "$defs": {**file.schema.get("$defs", {}), **used}} if used else file.schema

    return {file.key: complete(file) for file in schemas.values() if file.key is not None}


def _read_directory(directory: Traversable, *, builtin: bool) -> Iterator[SchemaFile]:
    faults = []
    for subfolder in ("definitions/", ""):
        folder = directory / subfolder
        if not folder.is_dir():
            continue
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".json"):
                name = f"{subfolder}{entry.name}" if builtin else str(entry)
                try:
                    schema = _parse(name, entry)
                    yield _check(name, schema, is_event=not subfolder, builtin=builtin)
                except RecursionError:
                    faults.append(_fault(name, (), "nested too deeply"))
                except ConfigError as error:
                    faults.append(error)
    if faults:
        raise ConfigError("; ".join(map(str, faults)))


def _parse(name: str, entry: Traversable) -> Schema:
    def refuse_constant(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(entry.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from error
    except ValueError as error:  # not UTF-8, NaN, or a number with thousands of digits
        raise ConfigError(f"{name}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _fault(name, (), "expected a JSON object")
    return value


def _check(name: str, schema: Schema, *, is_event: bool, builtin: bool) -> SchemaFile:
    if schema.get("$schema") != DRAFT:
        raise _fault(name, ["$schema"], f'expected "{DRAFT}"')
    _check_form(name, schema, builtin=builtin)
    uri = schema.get("$id", "")
    if not re.match("[A-Za-z][A-Za-z0-9+.-]*:", uri) or "#" in uri:
        raise _fault(name, ["$id"], 'expected an absolute URI without #, such as "urn:shop:schema:gift_wrapped"')
    for inner, path in subschemas(schema):
        for keyword in ("$id", "$schema"):
            if path and keyword in inner:  # it could replace another schema
                raise _fault(name, [*path, keyword], "allowed at the top of a file only")
    key = schema.get("title", "")
    if is_event:
        if not (0 < len(key) <= _MAX_KEY and key.isprintable() and key == key.strip()):
            raise _fault(name, ["title"], f"expected the event key, 1 to {_MAX_KEY} printable characters")
        if schema.get("type") != "object":
            raise _fault(name, ["type"], 'expected "object": the data of an event is an object')
    return SchemaFile(name, schema, key if is_event else None, builtin)


def _check_form(name: str, schema: Schema, *, builtin: bool) -> None:
    if builtin:  # the tests check these files with `jsonschema`, whose import takes a seventh of a start
        try:
            jsonschema_rs.meta.validate(schema)
        except jsonschema_rs.ValidationError as error:
            raise _fault(name, error.instance_path, error.message) from error
    else:
        from jsonschema import Draft202012Validator, SchemaError

        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            is_type = [*error.schema_path][-2:] == ["type", "anyOf"]  # jsonschema's message would name no type
            raise _fault(name, error.absolute_path, _NO_TYPE if is_type else error.message) from error


def _check_unique(schemas: Iterable[SchemaFile]) -> None:
    uris: dict[str, SchemaFile] = {}
    keys: dict[str, SchemaFile] = {}
    for file in schemas:
        other = uris.setdefault(file.uri, file)
        if other is not file:
            file.refuse(["$id"], f"{file.uri} is already the $id of {other.file}")
        if file.key is None:
            continue
        other = keys.setdefault(file.key, file)
        if other is not file and other.builtin:
            file.refuse(["title"], f'"{file.key}" is a built-in event key; a shop may add keys, never replace one')
        if other is not file:
            file.refuse(["title"], f'"{file.key}" is already the event key of {other.file}')


def _check_references(schemas: Iterable[SchemaFile]) -> None:
    references = References({file.uri: file.schema for file in schemas})
    for file in schemas:
        for path, reason in references.faults(file.uri):
            file.refuse(path, reason)


def _fault(name: str, path: Iterable[str | int], reason: str) -> ConfigError:
    return ConfigError(f"{name}#{json_pointer(path)}: {shorten(reason, _MAX_REASON)}")
