"""The answers to bodies with faults: where each fault is, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind as Kind

from ingestd.api.errors import BadRequest, SchemaFault, SchemaViolation

from .fault_budget import MAX_EXPLAINED_VALUES, FaultBudget
from .schema_files import json_pointer, shorten
from .schema_places import schema_pointer

__all__ = [
    "MAX_EXPLAINED_DEPTH",
    "MAX_VIOLATIONS",
    "Envelope",
    "faults_of",
    "first_fault_of",
    "is_value_free",
    "of_envelope",
    "type_name",
    "unexplained",
]

MAX_VIOLATIONS = 50
"""The maximum number of faults in an answer."""

_BEGINNINGS = MAX_VIOLATIONS, 10  # elements: no answer tells the faults of more than the first, and ten mostly fit

MAX_EXPLAINED_DEPTH = 20
"""The depth of data of which faults are told, for schemas of a shop. These may contain themselves, in alternatives, and
jsonschema_rs then copies a value once for each of its levels."""

_MAX_POINTER = 500
_MAX_MESSAGE = 200

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


def is_value_free(message: str) -> bool:
    """Whether the message of a fault is one that says nothing about values. Messages of plugins may quote them."""
    return _VALUE_FREE.fullmatch(message) is not None


class Envelope:
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
        return first_fault_of(self.compiled, outline, code="invalid_envelope")


def _outline(value: Any, levels: int) -> Any:
    """The value with so many levels of objects. Everything below, and each array, is empty."""
    if type(value) is dict:
        return {name: _outline(inner, levels - 1) for name, inner in value.items()} if levels else {}
    return [] if type(value) is list else value


def of_envelope(
    envelope: Envelope, data: jsonschema_rs.Validator | None, body: dict[str, Any], budget: FaultBudget
) -> BadRequest:
    """The answer to a body whose envelope is at fault. `data` may find faults of the data, too."""
    # The faults of the envelope come first, so that the limit cannot cut them off.
    both = [envelope.compiled] if data is None else [envelope.compiled, data]
    return faults_of(both, body, budget, code="invalid_envelope") or envelope.first_fault(body)


def faults_of(
    validators: Sequence[jsonschema_rs.Validator], body: dict[str, Any], budget: FaultBudget, *, code: str
) -> BadRequest | None:
    """The answer with the faults that `validators` find in a body, or in the beginning of its arrays if it is large.

    None if the budget has no room for the beginning, or the faults are behind it.
    """
    if budget.explains(body):
        return _told([error for compiled in validators for error in compiled.iter_errors(body)], code=code)
    for most in _BEGINNINGS if budget.values else ():
        body = _beginning_of(body, most)
        if not budget.explains(body):
            continue
        errors = [error for compiled in validators for error in compiled.iter_errors(body) if _holds(error)]
        if errors:
            told = _told(errors, code=code)
            detail = f"{told.detail} (there may be more: of a large body, the beginning of each array is explained)"
            return BadRequest(detail, code=told.code, errors=told.errors, fault=told.fault)
    return None


def _beginning_of(value: Any, most: int) -> Any:
    """The value with the first elements of each array only, so many at most."""
    if type(value) is dict and len(value) <= MAX_EXPLAINED_VALUES:
        return {name: _beginning_of(inner, most) for name, inner in value.items()}
    return [_beginning_of(inner, most) for inner in value[:most]] if type(value) is list else value


def _holds(error: jsonschema_rs.ValidationError) -> bool:
    """Whether a fault of the beginning is one of the whole, as a rule for an array as a whole may not be."""
    return type(error.instance) is not list or isinstance(error.kind, Kind.Type)


def _told(errors: Sequence[jsonschema_rs.ValidationError], *, code: str) -> BadRequest:
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


def first_fault_of(compiled: jsonschema_rs.Validator, body: dict[str, Any], *, code: str) -> BadRequest:
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


def unexplained() -> BadRequest:
    """The answer to an event of a shop's own key whose fault may be anywhere in deep values."""
    message = f"does not meet the schema, and is nested more than {MAX_EXPLAINED_DEPTH} levels deep"
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
            yield _violation(path, f"expected {' or '.join(types)}, got {type_name(error.instance)}")
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


def type_name(value: Any) -> str:
    return _TYPE_NAMES[type(value)]
