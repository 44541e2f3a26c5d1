"""The answers of an operation in an OpenAPI document: its 200, and its problems by status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .operations import Body, Operation
from .problems import PROBLEMS, Problem, problems_of
from .schema_components import location

__all__ = ["ANSWER_SCHEMAS", "answers", "headers", "problem_examples"]

Schema = dict[str, Any]


def _object(description: str, **properties: Any) -> Schema:
    """An object with these members and no other."""
    return {
        "description": description,
        "type": "object",
        "required": [*properties],
        "properties": properties,
        "additionalProperties": False,
    }


def _batch_answer(result: str, **head: Any) -> Schema:
    one_of = [{"$ref": location(each)} for each in (result, "Problem", "ShortProblem")]
    results = {"type": "array", "minItems": 1, "items": {"oneOf": one_of}}
    return _object("The result of each event, in the order of the batch.", **head, results=results)


_DONE = "The event is stored, or a plugin has dropped it."
_SESSION_ID = {"type": "string", "format": "uuid", "description": "The session of the event"}
_IS_NEW = {"type": "boolean", "description": "Whether the event began the session"}
_PUBLIC_SESSION = _object("The session of the event.", sessionId=_SESSION_ID, isNew=_IS_NEW)
_SERVER_SESSION = _object("The session of the event.", sessionId=_SESSION_ID)
_SUCCESS = {"type": "boolean", "const": True}
_STORED = {"type": "integer", "const": 200}

ANSWER_SCHEMAS: Mapping[str, Schema] = {
    "PublicAnswer": _object(_DONE, success=_SUCCESS, session=_PUBLIC_SESSION),
    "ServerAnswer": _object(_DONE, session=_SERVER_SESSION),
    "PublicBatchAnswer": _batch_answer("PublicResult", success=_SUCCESS),
    "ServerBatchAnswer": _batch_answer("ServerResult"),
    "PublicResult": _object(_DONE, status=_STORED, success=_SUCCESS, session=_PUBLIC_SESSION),
    "ServerResult": _object(_DONE, status=_STORED, session=_SERVER_SESSION),
    "Problem": {
        "description": "A problem document (RFC 9457). The event or batch is not stored.",
        "type": "object",
        "required": ["type", "title", "status", "detail", "success", "code", "message"],
        "properties": {
            "type": {"type": "string", "format": "uri", "description": "A URN that ends with the code"},
            "title": {"type": "string", "description": "The phrase of the status"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599, "description": "The status of the answer"},
            "detail": {"type": "string", "description": "The reason, for people"},
            "success": {"type": "boolean", "const": False},
            "code": {
                "type": "string",
                "description": "A stable word for programs. Plugins may add others.",
                "x-extensible-enum": [each.code for each in PROBLEMS],
            },
            "message": {"type": "string", "description": "The same as the detail"},
            "errors": {
                "type": "array",
                "minItems": 1,
                "description": "The faults of the body, at most 50",
                "items": {"$ref": location("Fault")},
            },
        },
    },
    "ShortProblem": _object(
        "A refused event behind 64 KiB of problem documents in the answer to a batch.",
        status={"type": "integer", "minimum": 400, "maximum": 599, "description": "The status of the event"},
        success={"type": "boolean", "const": False},
        code={"type": "string", "description": "As in a problem document"},
    ),
    "Fault": _object(
        "One fault of a body.",
        pointer={"type": "string", "description": "The location in the body, a JSON pointer (RFC 6901)"},
        message={"type": "string", "description": "The reason, for people"},
    ),
}

_WITH_RETRY_AFTER = (429, 503)


def headers() -> Mapping[str, Schema]:
    """The components for the headers of answers."""
    return {
        "RequestId": {
            "description": "The id of the request. The record of its event has it too; in a batch, the first record.",
            "required": True,
            "schema": {"type": "string", "format": "uuid"},
        },
        "RetryAfter": {
            "description": "The seconds to wait before the request is sent again.",
            "required": True,
            "schema": {"type": "integer", "minimum": 0},
        },
    }


def problem_examples() -> Mapping[str, Schema]:
    """The components for the examples of problems, by their codes."""
    return {each.code: {"summary": each.when, "value": each.document()} for each in PROBLEMS}


def answers(operation: Operation) -> Mapping[str, Schema]:
    """The answers of an operation by their statuses."""
    sender = "Server" if operation.signed else "Public"
    kind = "BatchAnswer" if operation.body is Body.BATCH else "Answer"
    schema = ANSWER_SCHEMAS[f"{sender}{kind}"]
    made = {
        "200": {
            "description": schema["description"],
            "headers": _headers(200),
            "content": {"application/json": {"schema": {"$ref": location(f"{sender}{kind}")}}},
        }
    }
    return made | {str(status): _refusal(status, problems) for status, problems in problems_of(operation)}


def _refusal(status: int, problems: Sequence[Problem]) -> Schema:
    examples = {each.code: {"$ref": f"#/components/examples/{each.code}"} for each in problems}
    return {
        "description": "\n".join(f"- `{each.code}`: {each.when}." for each in problems),
        "headers": _headers(status),
        "content": {"application/problem+json": {"schema": {"$ref": location("Problem")}, "examples": examples}},
    }


def _headers(status: int) -> Schema:
    found = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status in _WITH_RETRY_AFTER:
        found["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    return found
