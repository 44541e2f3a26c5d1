"""The pipeline: takes a request from admission to its answer, and counts it once.

The contract with callers sets the order: sender (401), permissions (403), JSON and envelope (400), a known key (404),
valid data (400); then preparation, user, session, identity, enrichment, filters; then the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from msgspec import Raw

from ingestd.api.events import Request
from ingestd.api.journal import Journal
from ingestd.api.outcomes import Outcome
from ingestd.api.store import Store
from ingestd.api.unusable_ids import UnusableIds
from ingestd.hooks.caller import Hooks
from ingestd.observability.logs import current_request
from ingestd.observability.metrics import Metrics
from ingestd.observability.unusable_id_reports import UnusableIdReports
from ingestd.validation.validator import Validator, parse_body

from .admission import Admission
from .backpressure import Backpressure
from .batch_parser import BatchParser
from .batches import Batches
from .event_parser import EventParser, Kind
from .failures import Failures
from .resolver import Resolved
from .responses import Answer, problem, success
from .storing import Storing
from .together import Together

__all__ = ["Pipeline"]


class Pipeline:
    """Handles requests. `Batches` and `EventParser` explain `max_body`, `stored_address` and `unusable_ids`."""

    def __init__(
        self,
        hooks: Hooks,
        validator: Validator,
        store: Store,
        journal: Journal,
        metrics: Metrics,
        *,
        backpressure: Backpressure,
        max_body: int,
        unusable_ids: UnusableIds,
        unusable_id_reports: UnusableIdReports,
        stored_address: Callable[[str], str] | None = None,
    ) -> None:
        self._metrics = metrics
        metrics.waiting.set_function(lambda: backpressure.waiting)
        self._admission = Admission(hooks, store)
        self._event_parser = EventParser(
            validator,
            stored_address,
            timestamp_ignored=metrics.timestamp_ignored,
            unusable_ids=unusable_ids,
            unusable_id=unusable_id_reports.report,
            check_identity=hooks.check_identity,
            prepare=hooks.prepare,
        )
        self._storing = Storing(hooks, store, journal, backpressure)
        self._failures = Failures()
        self._parsing = backpressure.parsing
        self._batch_parser = BatchParser()
        together = Together(hooks, store, journal, backpressure)
        self._batches = Batches(self._event_parser, together, backpressure, metrics, self._failures, max_body=max_body)

    async def handle(self, request: Request, give: Callable[[Answer], None]) -> None:
        """Answer one request, and count it once, or each event of a batch once. Raises nothing.

        `give` is called with the answer in the event loop, before this returns or later, and must not raise. Log lines
        in between have the id of this request.
        """
        current_request.set(request)
        started = time.perf_counter()
        if request.batch:
            answer = await self._handle_batch(request)
            self._metrics.took(request.endpoint, time.perf_counter() - started, batch=True)
            give(answer)
            return
        key = ""
        try:
            principal = await self._admission.admit(request)
            size = len(request.body)
            if not self._parsing.begin_at_once(size):
                await self._parsing.begin(size)
            try:
                body = parse_body(request.body)
                kind: Kind = "identify" if request.endpoint.identifies else "event"
                if kind == "event":
                    key = self._event_parser.key_of(body)
                event = self._event_parser.read(request, principal, body, kind=kind, record_id=request.id)
                del body
                request.drop_body()
                if isinstance(event, Resolved):  # a plugin drops it
                    self._end(request, key, started, give, event)
                else:
                    await self._storing.begin(event, partial(self._end, request, key, started, give))
            finally:
                self._parsing.end(size)
        except Exception as error:  # noqa: BLE001 - one event's failure is not the daemon's; it is logged
            self._end(request, key, started, give, error)

    def _end(
        self, request: Request, key: str, started: float, give: Callable[[Answer], None], result: Resolved | Exception
    ) -> None:
        if isinstance(result, Exception):
            refused = self._failures.refusal(request, result)
            outcome, answer = refused.outcome, problem(refused)
            self._metrics.count_refusal(request.endpoint, key, refused)
        else:
            outcome, session = result.outcome, result.session
            if session.is_new and outcome is Outcome.ACCEPTED:
                self._metrics.session_begun()
            answer = success(request.endpoint, session)
        self._metrics.answered(request.endpoint, key, outcome, time.perf_counter() - started)
        give(answer)

    async def _handle_batch(self, request: Request) -> Answer:
        bodies: list[Raw] = []

        async def read() -> None:
            bodies.extend(await self._batch_parser.parse(request.body))
            request.events = len(bodies)

        try:
            principal = await self._admission.admit(request, read)
            return await self._batches.answer(request, principal, bodies)
        except Exception as error:  # noqa: BLE001 - as above
            return self._refuse_batch(request, error)

    def _refuse_batch(self, request: Request, error: Exception) -> Answer:
        """All events have this one outcome; `request.events` is their number, as far as known.

        A separate method, because a variable for the refusal would be a cycle through its traceback.
        """
        refused = self._failures.refusal(request, error)
        self._metrics.count(request.endpoint, "", refused.outcome, request.events)
        self._metrics.count_refusal(request.endpoint, "", refused, request.events)
        return problem(refused)
