"""Checks the body of a request: first its JSON, then its envelope, then its data.

`jsonschema` checks a shop's schemas when they are read (`schema_files`). `jsonschema_rs` then checks the events. It
gives the same results and is a hundred times faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationErrorKind as Kind

from ingestd.api.errors import BadRequest, ConfigError, SchemaFault, SchemaViolation, UnknownKey
from ingestd.api.json_text import decode_json

from .fault_budget import MAX_EXPLAINED_VALUES, FaultBudget, Suggestions
from .number_places import NumberPlaces
from .schema_files import DRAFT, SchemaFile, json_pointer, read_schemas, shorten
from .schema_places import schema_pointer

__all__ = [
    "MAX_DEPTH", "MAX_VIOLATIONS", "UNREADABLE", "EventSchema", "Validator", "is_value_free", "parse_body",
    "unreadable",
]  # fmt: skip

MAX_DEPTH = 200
"""The maximum depth of nested objects and arrays, including the body.

jsonschema_rs cannot report a fault in a value nested more than 255 deep, and encoders fail at 1000.
"""

MAX_VIOLATIONS = 50
"""The maximum number of faults in an answer."""

_MAX_EXPLAINED_DEPTH = 20
"""The depth of data of which faults are told, for schemas of a shop. These may contain themselves, in alternatives, and
jsonschema_rs then copies a value once for each of its levels."""

_MAX_POINTER = 500
_MAX_MESSAGE = 200
_MAX_QUOTED_KEY = 100
_MAX_SEARCHED = 256 * 1024  # bytes, which take some milliseconds
_PAIR = len(r"\ud83d\ude00")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for a body that is not JSON, or is nested too deep."""

_TYPE_NAMES: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}

_TYPE = f"(?:{'|'.join(sorted({*_TYPE_NAMES.values(), 'integer'}))})"
_VALUE_FREE = re.compile(
    rf"""required,\ but\ missing
    | not\ a\ field\ of\ the\ schema
    | expected\ {_TYPE}(?:\ or\ {_TYPE})*,\ got\ {_TYPE}
    | expected\ a\ string\ of\ at\ (?:least|most)\ [0-9]+\ characters
    | does\ not\ meet\ `[A-Za-z]+`\ of\ the\ schema""",
    re.VERBOSE,
)
"""The messages of `_violations` but one: a pattern comes from a schema, and looks like any text of a plugin."""

_LONE_SURROGATE = re.compile(
    # All quantifiers are possessive, so it takes one pass over text, other escapes and whole pairs up to a half.
    rb"[^\\]*+(?:\\(?:u(?![dD][89a-fA-F])|[^u]|u[dD][89abAB]..\\u[dD][c-fC-F])[^\\]*+)*+(\\u)",
    re.DOTALL,
)


def parse_body(body: bytes) -> dict[str, Any]:
    """Decode the JSON object of a body. Raises `BadRequest`, which names the position of the first error."""
    try:
        value = decode_json(body)
    except UNREADABLE as error:
        raise unreadable(error, body) from None
    if not isinstance(value, dict):
        raise BadRequest(f"expected a JSON object, got {_type_name(value)}", code="not_an_object")
    # The number of brackets bounds the depth. Counting them this way is fastest if there are few.
    if len(body) - len(body.replace(b"{", b"").replace(b"[", b"")) > MAX_DEPTH:
        check_depth(value)
    return value


def is_value_free(message: str) -> bool:
    """Whether the message of a fault is one that says nothing about values. Messages of plugins may quote them."""
    return _VALUE_FREE.fullmatch(message) is not None


def check_depth(value: object) -> None:
    """Raise `BadRequest` if a JSON value is nested too deep."""
    if isinstance(value, dict | list) and _is_deep(value, MAX_DEPTH):
        raise _too_deep()


def unreadable(error: Exception, body: bytes) -> BadRequest:
    """The answer for a body that is not JSON. `error` is one of `UNREADABLE`."""
    if isinstance(error, RecursionError):
        return _too_deep()
    if isinstance(error, UnicodeDecodeError):
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
    schema files, so that a reload can see whether they have changed.
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
        self._uris = {key: file.uri for key, file in events.items()}
        self._number_places = NumberPlaces({file.uri: file.schema for file in files})
        self._envelope = _Envelope(self._compile({"$ref": "urn:ingestd:definition:event"}))
        self._identify = _Envelope(self._compile({"$ref": "urn:ingestd:definition:identify"}))
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

        These become numbers if the event is valid then. Returns how many, and raises like `event`. Behind many values
        of refused events, the texts of further events in the request stay texts.
        """
        key = body.get("key")
        is_valid = self._is_valid.get(key) if isinstance(key, str) else None
        if is_valid is not None and is_valid(body):
            return 0
        budget, data = budget or FaultBudget(), body.get("data")
        if is_valid is not None and isinstance(data, dict) and budget.readings > 0:
            before = budget.readings
            read = self._number_places.read_decimals(self._uris[body["key"]], data, budget)
            if read and is_valid(body):
                budget.readings = before
                return len(read)
            for each in read:
                each.container[each.key] = each.text
        self.event(body, budget)
        return 0

    def envelope(self, body: dict[str, Any], budget: FaultBudget | None = None) -> None:
        """Check the body of an event whose `key` and `data` have no schema. Raises `BadRequest`."""
        if not self._envelope.is_valid(body):
            raise _of_envelope(self._envelope, None, body, budget or FaultBudget())

    def identify(self, body: dict[str, Any], budget: FaultBudget | None = None) -> None:
        """Check the body of an identify request. Raises `BadRequest`."""
        if not self._identify.is_valid(body):
            raise _of_envelope(self._identify, None, body, budget or FaultBudget())

    def _refuse_event(self, key: Any, body: dict[str, Any], budget: FaultBudget) -> NoReturn:
        compiled = self._events.get(key) if isinstance(key, str) else None
        is_deep = compiled is not None and key in self._own_keys and _is_deep(body, _MAX_EXPLAINED_DEPTH)
        if not self._envelope.is_valid(body):
            raise _of_envelope(self._envelope, None if is_deep else compiled, body, budget)
        if compiled is None:
            raise UnknownKey(self._unknown_key(key, budget))
        if is_deep:
            raise _unexplained()
        if budget.explains(body):
            raise _all_faults([compiled], body, code="invalid_data")
        told = None
        if budget.values:
            beginning = _beginning(body)
            told = _faults_of_beginning(compiled, beginning) if budget.explains(beginning) else None
        raise told or _first_fault(compiled, body, code="invalid_data")

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


class _Envelope:
    """The members of a body outside of `data`. Their faults are found cheaply: an event may have few bytes, or many."""

    def __init__(self, compiled: jsonschema_rs.Validator) -> None:
        self.compiled = compiled
        self.is_valid: Callable[[Any], bool] = compiled.is_valid
        self._absences = {
            error.kind.property: _one_fault(error, code="invalid_envelope")
            for error in compiled.iter_errors({})
            if isinstance(error.kind, Kind.Required)
        }

    def first_fault(self, body: dict[str, Any]) -> BadRequest:
        for name, absence in self._absences.items():
            if name not in body:
                return BadRequest(absence.detail, code=absence.code, errors=absence.errors, fault=absence.fault)
        # An error has a copy of the value at fault. Of these values the envelope knows the type alone.
        outline = {name: _outline(value, 2 if name == "context" else 0) for name, value in body.items()}
        return _first_fault(self.compiled, outline, code="invalid_envelope")


def _outline(value: Any, levels: int) -> Any:
    """The value with so many levels of objects. Everything below, and each array, is empty."""
    if type(value) is dict:
        return {name: _outline(inner, levels - 1) for name, inner in value.items()} if levels else {}
    return [] if type(value) is list else value


def _of_envelope(
    envelope: _Envelope, data: jsonschema_rs.Validator | None, body: dict[str, Any], budget: FaultBudget
) -> BadRequest:
    """The answer to a body whose envelope is at fault. `data` may find faults of the data, too."""
    if not budget.explains(body):
        return envelope.first_fault(body)
    # The faults of the envelope come first, so that the limit cannot cut them off.
    both = [envelope.compiled] if data is None else [envelope.compiled, data]
    return _all_faults(both, body, code="invalid_envelope")


def _beginning(value: Any) -> Any:
    """The value with the first elements of each array only. No answer tells the faults of more."""
    if type(value) is dict and len(value) <= MAX_EXPLAINED_VALUES:
        return {name: _beginning(inner) for name, inner in value.items()}
    return [_beginning(inner) for inner in value[:MAX_VIOLATIONS]] if type(value) is list else value


def _faults_of_beginning(compiled: jsonschema_rs.Validator, body: dict[str, Any]) -> BadRequest | None:
    """The answer with the faults of a body that `_beginning` has made; None if the faults are behind it."""
    # A rule for an array as a whole does not hold for its beginning.
    errors = [error for error in compiled.iter_errors(body) if type(error.instance) is not list]
    if not errors:
        return None
    told = _told(errors)
    detail = f"{told.detail} (there may be more: of a large body, the beginning of each array is explained)"
    return BadRequest(detail, code=told.code, errors=told.errors, fault=told.fault)


def _all_faults(validators: Sequence[jsonschema_rs.Validator], body: dict[str, Any], *, code: str) -> BadRequest:
    """The answer with the faults of a body that `validators` find."""
    return _told([error for compiled in validators for error in compiled.iter_errors(body)], code=code)


def _told(errors: Sequence[jsonschema_rs.ValidationError], *, code: str = "invalid_data") -> BadRequest:
    # Two schemas may report the same fault. A dictionary keeps the order.
    told: dict[SchemaViolation, None] = {}
    for violation in (violation for error in errors for violation in _violations(error)):
        told[violation] = None
        if len(told) > MAX_VIOLATIONS:
            break
    first, *_ = told
    detail = f"{first.pointer or 'the body'}: {first.message}"
    if len(told) > MAX_VIOLATIONS:
        detail = f"more than {MAX_VIOLATIONS} faults, the first: {detail}"
    elif len(told) > 1:
        detail = f"{len(told)} faults, the first: {detail}"
    violations = list(told)[:MAX_VIOLATIONS]
    return BadRequest(detail, code=code, errors=violations, fault=_schema_fault(errors[0]))


def _first_fault(compiled: jsonschema_rs.Validator, body: dict[str, Any], *, code: str) -> BadRequest:
    """The answer with one fault, for a request whose budget is used up."""
    try:
        compiled.validate(body)
    except jsonschema_rs.ValidationError as error:
        return _one_fault(error, code=code)
    raise AssertionError("the body is valid")


def _one_fault(error: jsonschema_rs.ValidationError, *, code: str) -> BadRequest:
    violation = next(_violations(error))
    detail = (
        f"{violation.pointer or 'the body'}: {violation.message} (there may be more: a large body, or an event behind"
        " many faults, gets its first fault only)"
    )
    return BadRequest(detail, code=code, errors=[violation], fault=_schema_fault(error))


def _unexplained() -> BadRequest:
    """The answer to an event of a shop's own key whose fault may be anywhere in deep values."""
    message = f"does not meet the schema, and is nested more than {_MAX_EXPLAINED_DEPTH} levels deep"
    fault = SchemaViolation("/data", message)
    return BadRequest(f"/data: {message}", code="invalid_data", errors=[fault], fault=SchemaFault("/data", "depth"))


def _schema_fault(error: jsonschema_rs.ValidationError) -> SchemaFault:
    missing = [error.kind.property] if isinstance(error.kind, Kind.Required) else []
    return SchemaFault(schema_pointer(tuple(error.evaluation_path), *missing), error.kind.name)


def _violations(error: jsonschema_rs.ValidationError) -> Iterator[SchemaViolation]:
    path = error.instance_path
    match error.kind:
        case Kind.Required(property=name):
            yield _violation([*path, name], "required, but missing")
        case Kind.AdditionalProperties(unexpected=names) | Kind.UnevaluatedProperties(unexpected=names):
            for name in names[:MAX_VIOLATIONS]:
                yield _violation([*path, name], "not a field of the schema")
        case Kind.Type(types=types):
            yield _violation(path, f"expected {' or '.join(types)}, got {_type_name(error.instance)}")
        case Kind.MinLength(limit=limit):
            yield _violation(path, f"expected a string of at least {limit} characters")
        case Kind.MaxLength(limit=limit):
            yield _violation(path, f"expected a string of at most {limit} characters")
        case Kind.Pattern(pattern=pattern):
            yield _violation(path, f"expected a string of the form {pattern}")
        case kind:
            yield _violation(path, f"does not meet `{kind.name}` of the schema")


def _violation(path: list[str | int], message: str) -> SchemaViolation:
    # A shop's schema may constrain fields whose names the caller chooses. Such names may have any length.
    pointer = ""
    for step in path:
        if (
            len(pointer) + len(str(step)) >= _MAX_POINTER
            or len(longer := pointer + json_pointer([step])) > _MAX_POINTER
        ):
            break
        pointer = longer
    return SchemaViolation(pointer, shorten(message, _MAX_MESSAGE))


def _type_name(value: Any) -> str:
    return _TYPE_NAMES[type(value)]


def _is_deep(value: Any, levels: int) -> bool:
    """Whether containers are nested more than so many levels deep."""
    level = [value]
    for _ in range(levels):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
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
    """The index of the first byte that is not UTF-8. msgspec counts it from the start of the JSON string instead."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)


def _too_deep() -> BadRequest:
    return BadRequest(f"the body is nested more than {MAX_DEPTH} levels deep", code="invalid_json")
