"""The problems that callers get: when each occurs, at which operations, and an example of its document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from ingestd.api.errors import (
    BadRequest,
    Failed,
    Forbidden,
    HeadersTooLarge,
    Limited,
    MethodNotAllowed,
    NotFound,
    Refused,
    SchemaViolation,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnknownKey,
    UnsupportedEncoding,
)
from ingestd.pipeline.responses import problem

from .operations import Body, Operation

__all__ = ["PROBLEMS", "Problem", "problems_of"]


class Problem(NamedTuple):
    """A kind of problem. `occurs` tells whether it is an answer of an operation as a whole."""

    example: Refused
    when: str
    occurs: Callable[[Operation], bool]

    @property
    def code(self) -> str:
        return self.example.code

    @property
    def status(self) -> int:
        return self.example.status

    def document(self) -> dict[str, Any]:
        """The example as the body of an answer."""
        made: dict[str, Any] = msgspec.json.decode(problem(self.example).body)
        return made


def _always(_: Operation) -> bool:
    return True


def _never(_: Operation) -> bool:
    return False


def _if_signed(operation: Operation) -> bool:
    return operation.signed


def _if_single_event(operation: Operation) -> bool:
    return operation.body is Body.EVENT


def _if_single_and_signed(operation: Operation) -> bool:
    return operation.signed and operation.body is not Body.BATCH


def _bad(code: str, detail: str, *errors: SchemaViolation) -> BadRequest:
    return BadRequest(detail, code=code, errors=errors)


PROBLEMS = (
    Problem(
        _bad("invalid_http", "The request is not well-formed HTTP/1.1."), "the request is not well-formed HTTP", _always
    ),
    Problem(
        _bad("invalid_encoding", "The body is not valid gzip."), "the body does not match its Content-Encoding", _always
    ),
    Problem(
        _bad("invalid_json", "the body is not JSON: JSON is malformed: expected ',' or '}' (byte 17)"),
        "the body is not JSON in UTF-8, or is nested more than 200 levels deep",
        _always,
    ),
    Problem(_bad("not_an_object", "expected a JSON object, got array"), "the body is JSON, but not an object", _always),
    Problem(
        _bad(
            "invalid_envelope",
            "/anonymousId: required, but missing",
            SchemaViolation("/anonymousId", "required, but missing"),
        ),
        "a field outside `data` is missing or has a wrong type",
        _always,
    ),
    Problem(
        _bad(
            "invalid_data",
            "/data/products/0/price: expected number, got string",
            SchemaViolation("/data/products/0/price", "expected number, got string"),
        ),
        "a field inside `data` has a wrong type",
        _if_single_event,
    ),
    Problem(
        _bad("stale_timestamp", "/timestamp: more than 5m ago", SchemaViolation("/timestamp", "more than 5m ago")),
        "the `timestamp` is older than the configured age, or in the future",
        _if_single_and_signed,
    ),
    Problem(
        Unauthorized("No key was sent. Send it as the header Authorization: Bearer KEY.", code="missing_key"),
        "the request has no key",
        _always,
    ),
    Problem(Unauthorized("This key is not valid here."), "the key is not valid here", _always),
    Problem(
        Unauthorized("x-signature does not match", code="invalid_signature"),
        "the signature is missing or wrong",
        _if_signed,
    ),
    Problem(
        Forbidden("This key has no access to the app CRM.", code="no_app_access"),
        "the key has no access to the app CRM",
        _if_signed,
    ),
    Problem(
        Forbidden("This key has no permission ADMIN in the app CRM.", code="no_permission"),
        "the key has no permission ADMIN in the app CRM",
        _if_signed,
    ),
    Problem(
        Forbidden("Pages of this origin may not send events.", code="foreign_origin"),
        "the header `Origin` names an origin that may not send",
        _always,
    ),
    Problem(
        UnknownKey('"Order Complete" is not a supported event key; did you mean "Order Completed"?'),
        "`key` is not an event key",
        _if_single_event,
    ),
    Problem(NotFound("There is nothing at this path."), "the path does not exist", _never),
    Problem(MethodNotAllowed("This path takes POST, OPTIONS."), "the method is not POST or OPTIONS", _never),
    Problem(TimedOut("The request did not arrive in time."), "the request arrives too slowly", _always),
    Problem(TooLarge("The body is larger than 1048576 bytes."), "the body is larger than its limit", _always),
    Problem(
        UnsupportedEncoding("The Content-Encoding must be gzip or identity."),
        "the Content-Encoding is neither gzip nor identity",
        _always,
    ),
    Problem(
        Limited("Too many events. Send the request again in 2 seconds.", retry_after=2),
        "the key or the client's address exceeds its rate, or too many signatures were wrong",
        _always,
    ),
    Problem(HeadersTooLarge("There are more than 100 header lines."), "the headers are too many or too large", _always),
    Problem(
        Failed("The event could not be processed. It was not stored."),
        "the daemon or a plugin failed; nothing is stored",
        _always,
    ),
    Problem(
        Unavailable("Too many events are waiting. Send the request again."),
        "nothing can be stored at the moment, or too much is waiting; send the request again",
        _always,
    ),
)
"""The problems in the order of their statuses, with the codes that ingestd and its built-in plugins use."""


def problems_of(operation: Operation) -> Iterator[tuple[int, Sequence[Problem]]]:
    """The statuses of an operation from 400, each with its problems."""
    occurring = [each for each in PROBLEMS if each.occurs(operation)]
    for status, group in groupby(occurring, key=lambda each: each.status):
        yield status, list(group)
