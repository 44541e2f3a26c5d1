"""An answer to a caller, and the problem document of a refusal."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ingestd.api.errors import Refused
from ingestd.api.intake import Intake

__all__ = ["Answer", "problem"]

log = logging.getLogger("ingestd.pipeline")


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
