"""The answers to callers: 200 with the session, or a problem document."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from ingestd.api.errors import Refused
from ingestd.api.events import Endpoint, Session
from ingestd.api.intake import Intake

__all__ = ["Answer", "batch_body", "problem", "problem_body", "session_body"]

log = logging.getLogger("ingestd.pipeline")


MOST_PROBLEMS = 64 * 1024
"""Characters of problem documents in the answer to a batch. Behind them a refused event has its status and code."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A status and a JSON body. `retry_after` is in seconds, `allow` lists methods, `code` is the problem's code.

    `late`: it is sent a second late.
    """

    status: int
    body: bytes
    retry_after: int | None = None
    allow: str | None = None
    code: str = ""
    late: bool = False

    @property
    def content_type(self) -> str:
        return "application/json" if self.status < 400 else "application/problem+json"


def session_body(endpoint: Endpoint, session: Session) -> bytes:
    """The body of a 200 to a request with one event."""
    return f"{{{_members(endpoint, session)}}}".encode()


def batch_body(endpoint: Endpoint, results: Iterable[Session | Refused]) -> bytes:
    """The body of a 200 to a batch, with the answer and status of each event."""
    told = 0
    texts = []
    for one in results:
        if not isinstance(one, Refused):
            texts.append(f'{{"status":200,{_members(endpoint, one)}}}')
        elif told < MOST_PROBLEMS:
            texts.append(problem(one).body.decode())
            told += len(texts[-1])
        else:
            texts.append(f'{{"status":{one.status},"success":false,"code":"{one.code}"}}')
    head = '"success":true,' if endpoint.is_public else ""
    return f'{{{head}"results":[{",".join(texts)}]}}'.encode()


def _members(endpoint: Endpoint, session: Session) -> str:
    """The members of a success. A session id from a caller is always a UUID, so it needs no escapes."""
    if not endpoint.is_public:
        return f'"session":{{"sessionId":"{session.session_id}"}}'
    is_new = "true" if session.is_new else "false"
    return f'"success":true,"session":{{"sessionId":"{session.session_id}","isNew":{is_new}}}'


def problem(refused: Refused, *, allow: str | None = None, intake: Intake | None = None) -> Answer:
    """The problem document (RFC 9457) of an error. `intake` adds members for its callers."""
    document: dict[str, Any] = {
        "type": f"urn:ingestd:problem:{refused.code}",
        "title": refused.title,
        "status": refused.status,
        "detail": refused.detail,
        "success": False,
        "code": refused.code,
        "message": refused.detail,
    }
    if refused.errors:
        document["errors"] = [{"pointer": error.pointer, "message": error.message} for error in refused.errors]
    if intake is not None:
        try:
            document |= intake.problem(refused)
        except Exception:
            log.exception("the intake %s cannot add to a problem document", intake.endpoint.value)
    return Answer(refused.status, msgspec.json.encode(document), refused.retry_after, allow, refused.code)


def problem_body(refused: Refused, intake: Intake | None) -> bytes:
    return problem(refused, intake=intake).body
