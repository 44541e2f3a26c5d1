"""A request with many events: each is read, stored and answered as if it had come by itself, in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw, Struct

from .answers import Answer, results
from .errors import BadRequest, Refused, SchemaViolation, TooLarge
from .events import Endpoint, Event, Principal, Request, Session
from .failures import Failures
from .ids import next_uuids
from .metrics import Metrics
from .outcomes import Outcome
from .reading import Kind, Reader
from .resolving import Resolved
from .room import Room
from .together import Together
from .validation import parse_body

__all__ = ["Batches"]


class _Item(Struct, gc=False):
    """One event on its way to its answer: `error` is why it was refused when it was read."""

    kind: Kind = "event"
    key: str = ""
    error: Refused | None = None


class Batches:
    """`max_body` is what a single event may be long, also here."""

    def __init__(
        self,
        reader: Reader,
        together: Together,
        room: Room,
        metrics: Metrics,
        failures: Failures,
        *,
        max_body: int,
    ) -> None:
        self._reader = reader
        self._together = together
        self._room = room
        self._metrics = metrics
        self._failures = failures
        self._max_body = max_body

    async def answer(self, request: Request, principal: Principal, bodies: Sequence[Raw]) -> Answer:
        """200 with a result for each event, which are counted. Raises `Unavailable` where none is stored."""
        async with self._room.turn(len(bodies)):
            items: list[_Item] = []
            stored = await self._together.store(self._read_all(request, principal, bodies, items))
            return self._result(request, items, iter(stored))

    def _result(self, request: Request, items: Sequence[_Item], stored: Iterator[Resolved | Exception]) -> Answer:
        """The answer; and its events are counted. `stored` are the results of those that could be read."""
        answers: list[Session | Refused] = []
        outcomes: list[Outcome] = []
        for item in items:
            result = next(stored) if item.error is None else item.error
            if isinstance(result, Exception):
                refused = self._failures.refusal(request, result)
                outcomes.append(refused.outcome)
                answers.append(refused)
            else:
                outcome, session = result.outcome, result.session
                outcomes.append(outcome)
                answers.append(session)
                if session.is_new and outcome is not Outcome.DUPLICATE:
                    self._metrics.session_begun()
        assert next(stored, None) is None
        counts = Counter(zip([item.kind for item in items], [item.key for item in items], outcomes, strict=True))
        for (kind, key, outcome), count in counts.items():
            self._metrics.count(Endpoint.IDENTIFY if kind == "identify" else request.endpoint, key, outcome, count)
        return results(request.endpoint, answers)

    def _read_all(
        self, request: Request, principal: Principal, bodies: Sequence[Raw], items: list[_Item]
    ) -> Iterator[Event | None]:
        """Its events, each read when it is asked for; None for one that is refused."""
        for record_id, body in zip(next_uuids(request.id), bodies, strict=False):
            item = _Item()
            items.append(item)
            yield self._read(request, principal, bytes(body), record_id, item)

    def _read(self, request: Request, principal: Principal, raw: bytes, record_id: str, item: _Item) -> Event | None:
        try:
            if len(raw) > self._max_body:
                raise TooLarge(f"The event is larger than {self._max_body} bytes.")
            body = parse_body(raw)
            item.kind = _take_kind(body)
            if item.kind == "event":
                item.key = self._reader.key_of(body)
            return self._reader.read(request, principal, body, kind=item.kind, record_id=record_id)
        except Refused as refused:
            item.error = refused.with_traceback(None)  # which holds this frame, and that the item
            return None


def _take_kind(body: dict[str, Any]) -> Kind:
    """What the body says it is. That is the batch's word, and none of the event's."""
    kind: Kind = body.pop("type", "event")
    if kind not in ("event", "identify"):
        fault = SchemaViolation("/type", 'expected "event" or "identify"')
        raise BadRequest(f"{fault.pointer}: {fault.message}", code="invalid_envelope", errors=[fault])
    return kind
