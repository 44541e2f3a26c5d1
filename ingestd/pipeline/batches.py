"""The answer to a batch. Each event is read, stored and answered as if it had come alone, in the batch's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Raw

from ingestd.api.errors import BadRequest, Refused, SchemaFault, SchemaViolation, TooLarge
from ingestd.api.events import Endpoint, Event, Principal, Request, Session
from ingestd.api.ids import next_uuids
from ingestd.api.outcomes import Outcome
from ingestd.hooks.caller import HookFailure
from ingestd.observability.metrics import Metrics
from ingestd.validation.validator import parse_body

from .backpressure import Backpressure
from .event_parser import EventParser, Kind
from .failures import Failures
from .resolver import Resolved
from .responses import Answer, results
from .together import Together

__all__ = ["Batches"]


_PART = 1 << 20  # bytes


class _Batch:
    """The kinds and keys of a batch's events, in order, and the results of events that are not stored."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self.keys: list[str] = []
        self.ended: dict[int, Resolved | Refused | HookFailure] = {}
        """Results of events that are refused or dropped while they are read, by their index in the batch."""

    def with_results(self, stored: Iterable[Resolved | Exception]) -> Iterator[Resolved | Exception]:
        """The result of each event. `stored` has the results of all events that are not in `ended`."""
        if not self.ended:
            return iter(stored)
        rest = iter(stored)
        return iter([self.ended[at] if at in self.ended else next(rest) for at in range(len(self.kinds))])


class Batches:
    """Answers batches. `max_body` is the limit for each event of a batch."""

    def __init__(
        self,
        event_parser: EventParser,
        together: Together,
        backpressure: Backpressure,
        metrics: Metrics,
        failures: Failures,
        *,
        max_body: int,
    ) -> None:
        self._event_parser = event_parser
        self._together = together
        self._backpressure = backpressure
        self._metrics = metrics
        self._failures = failures
        self._max_body = max_body

    async def answer(self, request: Request, principal: Principal, bodies: Sequence[Raw]) -> Answer:
        """Answer 200 with a result for each event, and count the events. Raises `Unavailable` if none is stored."""
        async with self._backpressure.batch_slot(len(bodies), min(len(request.body), _PART)):
            batch, stored = _Batch(), list[Resolved | Exception]()
            ids = next_uuids(request.id)
            for part in [bodies] if len(request.body) <= _PART else _parts(bodies):
                events = self._read_all(request, principal, zip(part, ids, strict=False), batch)
                stored += await self._together.store(events, going_on=bool(stored))
            return self._result(request, batch, stored)

    def _result(self, request: Request, batch: _Batch, stored: Sequence[Resolved | Exception]) -> Answer:
        """Make the answer, and count the events."""
        answers: list[Session | Refused] = []
        outcomes: list[Outcome] = []
        for kind, key, result in zip(batch.kinds, batch.keys, batch.with_results(stored), strict=True):
            if isinstance(result, Exception):
                refused = self._failures.refusal(request, result)
                self._metrics.count_refusal(_endpoint(request, kind), key, refused)
                outcomes.append(refused.outcome)
                answers.append(refused)
            else:
                outcome, session = result.outcome, result.session
                outcomes.append(outcome)
                answers.append(session)
                if session.is_new and outcome is Outcome.ACCEPTED:
                    self._metrics.session_begun()
        for (kind, key, outcome), count in Counter(zip(batch.kinds, batch.keys, outcomes, strict=True)).items():
            self._metrics.count(_endpoint(request, kind), key, outcome, count)
        return results(request.endpoint, answers)

    def _read_all(
        self, request: Request, principal: Principal, bodies: Iterable[tuple[Raw, str]], batch: _Batch
    ) -> Iterator[Event | None]:
        """The events, each read when the caller asks for it; None for an event that is refused or dropped."""
        for body, record_id in bodies:
            yield self._read(request, principal, bytes(body), record_id, batch)

    def _read(self, request: Request, principal: Principal, raw: bytes, record_id: str, batch: _Batch) -> Event | None:
        kind: Kind = "event"
        key, event = "", None
        try:
            if len(raw) > self._max_body:
                raise TooLarge(f"The event is larger than {self._max_body} bytes.")
            body = parse_body(raw)
            kind = _take_kind(body)
            if kind == "event":
                key = self._event_parser.key_of(body)
            read = self._event_parser.read(request, principal, body, kind=kind, record_id=record_id)
            if isinstance(read, Resolved):
                batch.ended[len(batch.kinds)] = read
            else:
                event = read
        except (Refused, HookFailure) as refused:
            # Without the traceback: it refers to this frame, and so to the whole batch.
            batch.ended[len(batch.kinds)] = refused.with_traceback(None)
        batch.kinds.append(kind)
        batch.keys.append(key)
        return event


def _endpoint(request: Request, kind: Kind) -> Endpoint:
    """The endpoint that an event of a batch counts for."""
    return Endpoint.IDENTIFY if kind == "identify" else request.endpoint


def _parts(bodies: Sequence[Raw]) -> Iterator[Sequence[Raw]]:
    """The bodies in groups of about a megabyte: on a distant store, all events of a group are in memory together."""
    start = size = 0
    for place, body in enumerate(bodies):
        length = len(memoryview(body))
        if size and size + length > _PART:
            yield bodies[start:place]
            start, size = place, 0
        size += length
    yield bodies[start:]


def _take_kind(body: dict[str, Any]) -> Kind:
    """Take the member `type` out of a body: it belongs to the batch format, not to the event."""
    kind: Kind = body.pop("type", "event")
    if kind not in ("event", "identify"):
        fault = SchemaViolation("/type", 'expected "event" or "identify"')
        raise BadRequest(
            f"{fault.pointer}: {fault.message}",
            code="invalid_envelope",
            errors=[fault],
            fault=SchemaFault(fault.pointer, "enum"),
        )
    return kind
