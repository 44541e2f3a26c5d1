"""The end of requests: their answers. Outcomes are counted, errors logged, and an observer may look at them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ingestd.api.errors import Failed, Refused
from ingestd.api.events import Request, Session
from ingestd.api.intake import Intake
from ingestd.observability.logs import current_request
from ingestd.observability.metrics import Metrics
from ingestd.observability.unusable_id_reports import UnusableIdReports

if TYPE_CHECKING:
    from .processor import Result
    from .request_events import RequestEvents

__all__ = ["Answer", "Observer", "Outcomes", "problem"]

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


class Observer(Protocol):
    """Called in the event loop. Raises nothing."""

    def see_results(
        self,
        events: RequestEvents,
        results: Sequence[Result],
        answers: Sequence[Session | Refused],
        refusals: Sequence[int],
    ) -> None:
        """The events of a request have ended. `refusals` has the indexes of those that are refused."""

    def see_refusal(self, request: Request, refused: Refused) -> None:
        """A whole request is refused. `request.events` is the number of its events as far as known."""


class Outcomes:
    """Counts the outcomes of events, and logs errors: the same for all requests and all generations."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.observer: Observer | None = None
        """None while nobody looks, which costs a request one comparison."""
        self.unusable_id = UnusableIdReports(metrics.unusable_id).report
        self.timestamp_ignored = metrics.timestamp_ignored
        self.texts_as_numbers = metrics.texts_as_numbers.inc
        self._told_at = float("-inf")
        self._untold = 0

    def refusal(self, request: Request, error: Exception) -> Refused:
        """The refusal that the caller gets. Of an unexpected error it says only that there was one.

        The log has the error with its traceback, at most once a second: a broken plugin must not fill the disk.
        """
        if isinstance(error, Refused):
            return error
        Context().run(self._log, request, error)
        return Failed("The event could not be processed. It was not stored.")

    def _log(self, request: Request, error: Exception) -> None:
        """Runs in a separate context: events of many requests end in one callback of their commit."""
        current_request.set(request)
        now = time.monotonic()
        self._untold += 1
        if now - self._told_at >= 1:
            more = f"; {self._untold - 1} more have failed since the last such line" if self._untold > 1 else ""
            log.error("a request to %s failed%s", request.endpoint.operation(batch=request.batch), more, exc_info=error)
            self._told_at, self._untold = now, 0

    def refuse(self, request: Request, error: Exception, seconds: float = 0.0) -> Answer:
        """Count a request that is refused as a whole after so many seconds, and return the answer.

        `request.events` is the number of its events, as far as known.
        """
        refused, metrics = self.refusal(request, error), self.metrics
        metrics.count(request.endpoint, "", refused.outcome, request.events)
        metrics.count_refusal(request.endpoint, "", refused, request.events)
        metrics.took(request.endpoint, seconds, batch=request.batch)
        if self.observer is not None:
            self.observer.see_refusal(request, refused)
        return problem(refused, intake=request.intake)
