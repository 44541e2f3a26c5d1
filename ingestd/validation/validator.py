"""Checks the body of a request: first its JSON, then its envelope, then its data.

`jsonschema` checks a shop's schemas when they are read (`schema_files`). `jsonschema_rs` then checks the events. It
gives the same results and is a hundred times faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jsonschema_rs
import msgspec

from ingestd.api.errors import BadRequest, ConfigError, UnknownKey
from ingestd.support.json_text import decode_json

from .fault_budget import FaultBudget, Suggestions
from .faults import (
    MAX_EXPLAINED_DEPTH,
    MAX_VIOLATIONS,
    Envelope,
    faults_of,
    first_fault_of,
    of_envelope,
    type_name,
    unexplained,
)
from .number_places import NumberPlaces
from .schema_files import DRAFT, SchemaFile, read_schemas, schema_ids, shorten

__all__ = ["MAX_DEPTH", "UNREADABLE", "EventSchema", "Validator", "check_depth", "parse_body", "unreadable"]

MAX_DEPTH = 200
"""The maximum depth of nested objects and arrays, including the body.

jsonschema_rs cannot report a fault in a value nested more than 255 deep, and encoders fail at 1000.
"""

_MAX_QUOTED_KEY = 100
_MAX_SEARCHED = 256 * 1024  # bytes, which take some milliseconds
_PAIR = len(r"\ud83d\ude00")
_CONTAINERS = frozenset((dict, list))

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for a body that is not JSON, or is nested too deep."""

_LONE_SURROGATE = re.compile(
    # All quantifiers are possessive, so it takes one pass over text, other escapes and whole pairs up to a half. The
    # empty alternative is for Python before 3.11.5 (`event_boundaries._nested`).
    rb"[^\\]*+(?:\\(?:u(?![dD][89a-fA-F])|[^u]|u[dD][89abAB]..\\u[dD][c-fC-F])[^\\]*+|)*+(\\u)",
    re.DOTALL,
)


def parse_body(body: bytes) -> dict[str, Any]:
    """Decode the JSON object of a body. Raises `BadRequest`, which names the position of the first error."""
    try:
        value = decode_json(body)
    except UNREADABLE as error:
        raise unreadable(error, body) from None
    if not isinstance(value, dict):
        raise BadRequest(f"expected a JSON object, got {type_name(value)}", code="not_an_object")
    # The number of brackets bounds the depth. Counting them this way is fastest if there are few.
    if len(body) - len(body.replace(b"{", b"").replace(b"[", b"")) > MAX_DEPTH:
        check_depth(value)
    return value


def check_depth(value: object) -> None:
    """Raise `BadRequest` if a JSON value is nested too deep."""
    if isinstance(value, dict | list) and _is_deep(value, MAX_DEPTH):
        raise _too_deep()


def unreadable(error: Exception, body: bytes) -> BadRequest:
    """The answer for a body that is not JSON. `error` is one of `UNREADABLE`."""
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in str(error):  # msgspec before 0.23, and since
        return BadRequest(f"the body is not UTF-8 (byte {_invalid_byte(body)})", code="invalid_json")
    return BadRequest(f"the body is not JSON: {_fault(error, body)}", code="invalid_json")


class EventSchema(NamedTuple):
    """An event key, a description of its event, and the file that defines it."""

    key: str
    description: str
    file: str
    builtin: bool


class Validator:
    """Checks the bodies of events and identify requests. `Validator.load` makes it.

    `keys` has the known event keys. `schemas` describes each of them, in the order of the files. `sources` has all
    schema files, so that a reload can see whether they have changed. `schema_ids` has the hash of each key's schema.
    """

    def __init__(self, files: Iterable[SchemaFile]) -> None:
        """Compile `files`, as `read_schemas` returns them. Raises `ConfigError` for a file that cannot be compiled."""
        files = list(files)
        self.sources = files
        try:
            self._registry = jsonschema_rs.Registry([(file.uri, file.schema) for file in files])
        except ValueError as error:  # a built-in file was changed: a shop's files have been checked before
            raise ConfigError(f"the schemas cannot be compiled: {error}") from error
        for file in files:
            self._check_compiles(file)
        events = {file.key: file for file in files if file.key is not None}
        self.keys = frozenset(events)
        self._own_keys = frozenset(key for key, file in events.items() if not file.builtin)
        """The keys of the shop. Its schemas may contain themselves, and alternatives."""
        self._suggestions = Suggestions(self.keys)
        self.schemas = tuple(
            EventSchema(key, str(file.schema.get("description", "")), file.file, file.builtin)
            for key, file in events.items()
        )
        self.schema_ids = schema_ids(files)
        self._uris = {key: file.uri for key, file in events.items()}
        self._number_places = NumberPlaces({file.uri: file.schema for file in files})
        self._envelope = Envelope(self._compile({"$ref": "urn:ingestd:definition:event"}))
        self._identify = Envelope(self._compile({"$ref": "urn:ingestd:definition:identify"}))
        self._events = {
            key: self._compile({"$ref": "urn:ingestd:definition:event", "properties": {"data": {"$ref": file.uri}}})
            for key, file in events.items()
        }
        # A valid event costs one dictionary lookup and one call.
        self._is_valid: dict[str, Callable[[Any], bool]] = {
            key: compiled.is_valid for key, compiled in self._events.items()
        }

    @classmethod
    def load(cls, directory: Path | None = None) -> Validator:
        """A validator with the built-in schemas and the schemas of a shop's directory. Raises `ConfigError`."""
        return cls(read_schemas(directory))

    def event(self, body: dict[str, Any], budget: FaultBudget | None = None) -> None:
        """Check the body of an event, as `parse_body` returned it. `budget` is that of a request with several events.

        Raises `BadRequest` for faults of the envelope; then `UnknownKey`; then `BadRequest` for faults of `data` only.
        With a known key, the answer to an envelope at fault also has the faults of `data`.
        """
        key = body.get("key")
        is_valid = self._is_valid.get(key) if isinstance(key, str) else None
        if is_valid is None or not is_valid(body):
            self._refuse_event(key, body, budget or FaultBudget())

    def event_with_texts(self, body: dict[str, Any], budget: FaultBudget | None = None) -> int:
        """Check the body of an event that may have plain decimals as text where its schema expects numbers.

        These become numbers if the event is valid then. Returns how many, and raises like `event`, but with such texts
        behind the other faults. Behind many values of refused events, the texts of further ones stay texts.
        """
        key = body.get("key")
        is_valid = self._is_valid.get(key) if isinstance(key, str) else None
        if is_valid is not None and is_valid(body):
            return 0
        budget, data, refused = budget or FaultBudget(), body.get("data"), None
        if is_valid is not None and isinstance(data, dict) and budget.readings > 0:
            before = budget.readings
            read = self._number_places.read_decimals(self._uris[body["key"]], data, budget)
            if read and is_valid(body):
                budget.readings = before
                return len(read)
            try:
                if read:
                    self.event(body, budget)
            except BadRequest as error:
                refused = error
            for each in read:
                each.container[each.key] = each.text
        try:
            self.event(body, budget)
        except BadRequest as error:
            if refused is None:
                raise
            refused.errors = [*dict.fromkeys([*refused.errors, *error.errors])][:MAX_VIOLATIONS]
            raise refused from None
        return 0

    def envelope(self, body: dict[str, Any], budget: FaultBudget | None = None) -> None:
        """Check the body of an event whose `key` and `data` have no schema. Raises `BadRequest`."""
        if not self._envelope.is_valid(body):
            raise of_envelope(self._envelope, None, body, budget or FaultBudget())

    def identify(self, body: dict[str, Any], budget: FaultBudget | None = None) -> None:
        """Check the body of an identify request. Raises `BadRequest`."""
        if not self._identify.is_valid(body):
            raise of_envelope(self._identify, None, body, budget or FaultBudget())

    def _refuse_event(self, key: Any, body: dict[str, Any], budget: FaultBudget) -> NoReturn:
        compiled = self._events.get(key) if isinstance(key, str) else None
        is_deep = compiled is not None and key in self._own_keys and _is_deep(body, MAX_EXPLAINED_DEPTH)
        if not self._envelope.is_valid(body):
            raise of_envelope(self._envelope, None if is_deep else compiled, body, budget)
        if compiled is None:
            raise UnknownKey(self._unknown_key(key, budget))
        if is_deep:
            raise unexplained()
        told = faults_of([compiled], body, budget, code="invalid_data")
        raise told or first_fault_of(compiled, body, code="invalid_data")

    def _unknown_key(self, key: str, budget: FaultBudget) -> str:
        detail = f'"{shorten(key, _MAX_QUOTED_KEY)}" is not a supported event key'
        near = self._suggestions.nearest(key, budget)
        return f'{detail}; did you mean "{near}"?' if near else detail

    def _compile(self, schema: dict[str, Any]) -> jsonschema_rs.Validator:
        return jsonschema_rs.Draft202012Validator({"$schema": DRAFT, **schema}, registry=self._registry, offline=True)

    def _check_compiles(self, file: SchemaFile) -> None:
        try:
            self._compile(file.schema)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            path = error.instance_path if isinstance(error, jsonschema_rs.ValidationError) else []
            file.refuse(path, f"cannot be compiled: {error.message}")


def _is_deep(value: Any, levels: int) -> bool:
    """Whether containers are nested more than so many levels deep."""
    level = [value]
    for _ in range(levels):
        level = [
            child
            for node in level
            if node
            for child in (node.values() if type(node) is dict else node)
            if child.__class__ in _CONTAINERS  # faster than `type(child)`, and an event may have a thousand of them
        ]
        if not level:
            return False
    return True


def _fault(error: Exception, body: bytes) -> str:
    """The message of msgspec, except for half of a surrogate pair.

    msgspec reports some halves as the end of the body, or at a later position.
    """
    text = str(error)
    half = _LONE_SURROGATE.match(body, 0, _MAX_SEARCHED) if "truncated" in text or "surrogate" in text else None
    if half is None or half.start(1) > _MAX_SEARCHED - _PAIR:  # a pair may continue after the searched part
        return text
    return f"an escape is half of a surrogate pair (byte {half.start(1)})"


def _invalid_byte(body: bytes) -> int:
    """The index of the first byte that is not UTF-8, which msgspec does not tell."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)


def _too_deep() -> BadRequest:
    return BadRequest(f"the body is nested more than {MAX_DEPTH} levels deep", code="invalid_json")
