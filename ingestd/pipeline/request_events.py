"""The events of one request: each is read as if it had come alone, ends with a result, and is counted once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from ingestd.api.errors import Refused, SchemaFault, TooLarge
from ingestd.api.events import Endpoint, Event, Principal, Request, Session
from ingestd.api.intake import MOST_MESSAGES, Message, Translation
from ingestd.api.outcomes import Outcome
from ingestd.hooks.caller import HookFailure
from ingestd.scheduling.demand import FEW, Steps
from ingestd.scheduling.room import Backpressure, NoRoom
from ingestd.support.ids import next_uuids
from ingestd.validation.fault_budget import FaultBudget
from ingestd.validation.validator import parse_body

from .event_parser import EventParser
from .outcomes import Answer, Outcomes, problem
from .processor import Processing, Result
from .resolver import Resolved, lone_session

__all__ = ["Parts", "RequestEvents", "Sent"]

_MOST = 1 << 20  # bytes of the events of a part
_USUAL_SIZE = 1024  # bytes of an event in a batch; parsed, it takes up to forty times as many


class Sent(msgspec.Struct, rename="camel", gc=False):
    """Members of a body or a record, of any type.

    A tuple for each event of a batch would keep the garbage collector busy.
    """

    key: Any = None
    anonymous_id: Any = None
    user_id: Any = None


class RequestEvents(Processing):
    """The events of a request, from its arrival to its answer. Its admission sets `principal` and `translation`.

    `give` takes the answer, in the event loop. It must not raise.
    """

    __slots__ = (
        "_added", "_ended", "_faults", "_give", "_outcomes", "_parser", "_several", "endpoints", "further", "keys",
        "principal", "request", "room", "sent", "started", "translation",
    )  # fmt: skip

    principal: Principal
    translation: Translation

    def __init__(
        self, parser: EventParser, outcomes: Outcomes, request: Request, give: Callable[[Answer], None]
    ) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.endpoints: list[Endpoint] = []
        """The endpoint that metrics count each event for."""
        self.keys: list[str] = []
        """The key that metrics count each event for."""
        self.sent: Mapping[int, Sent] = _NOTHING if outcomes.observer is None else {}
        """For an observer, what the body of each event says about it, by its index."""
        self.further: list[Message] = []
        """Messages that are still to be read, of a message that has become several."""
        self.room: Backpressure | None = None
        """The limits with the room of a single event, which is released at the end."""
        self._parser = parser
        self._outcomes = outcomes
        self._give = give
        self._faults: FaultBudget | None = None
        self._ended: dict[int, Result] = {}
        """Results of events that are refused or dropped while they are read, by their index in the request."""
        self._several: list[tuple[int, int]] = []
        """The first event and the number of events of each message that has become several."""
        self._added = 0
        """The events beyond one for each message."""

    def refuse(self, error: Exception) -> None:
        """Refuse the whole request."""
        answer = self._outcomes.refuse(self.request, error, time.perf_counter() - self.started)
        if isinstance(error, NoRoom):
            self._outcomes.metrics.batch_refused(error.by)
            answer = msgspec.structs.replace(answer, late=True)
        self._give(answer)

    def read(self, raw: bytes, record_id: str, *, max_size: int | None = None) -> Event | None:
        """The first event of the next message; None if it is refused or dropped, which `end` notes.

        `further` has the other messages that the message has become, for `read_further`.
        """
        if max_size is not None and self._faults is None:
            self._faults = FaultBudget()
        try:
            if max_size is not None and len(raw) > max_size:
                raise TooLarge(f"The event is larger than {max_size} bytes.")
            message = self._translate(parse_body(raw), raw)
        except (Refused, HookFailure) as error:
            self._note(self.request.endpoint, "", error)
            return None
        if message is None:
            self._note(self.request.endpoint, "", Resolved(Outcome.DROPPED, lone_session(None)))
            return None
        return self._parse(message, record_id)

    def read_further(self, ids: Iterator[str]) -> Iterator[Event | None]:
        """The events of the `further` messages. Each takes the next one of `ids`."""
        while self.further:
            yield self._parse(self.further.pop(0), next(ids))

    def _parse(self, message: Message, record_id: str) -> Event | None:
        endpoint, key = self.request.endpoint, ""
        if message.kind == "event":
            key = self._parser.key_of(message.body)
        else:
            endpoint = endpoint.identify
        if isinstance(self.sent, dict):
            get = message.body.get
            self.sent[len(self.keys)] = Sent(get("key"), get("anonymousId"), get("userId"))
        try:
            read = self._parser.read(self.request, self.principal, message, record_id=record_id, faults=self._faults)
        except (Refused, HookFailure) as error:
            self._note(endpoint, key, error)
            return None
        if isinstance(read, Resolved):
            self._note(endpoint, key, read)
            return None
        self.endpoints.append(endpoint)
        self.keys.append(key)
        return read

    def _note(self, endpoint: Endpoint, key: str, result: Result) -> None:
        """Note the result of an event that is not processed."""
        # Without the traceback: it refers to the frames of the request, and so to the whole request.
        self._ended[len(self.keys)] = result.with_traceback(None) if isinstance(result, Exception) else result
        self.endpoints.append(endpoint)
        self.keys.append(key)

    def _translate(self, body: dict[str, Any], raw: bytes) -> Message | None:
        """The first message that a message becomes; None if it becomes none. The others wait in `further`."""
        try:
            read = self.translation.read(len(self.keys) - self._added, body, raw)
            if isinstance(read, Message):
                return read
            if len(read) > MOST_MESSAGES:
                raise ValueError(f"a message has become {len(read)} messages; {MOST_MESSAGES} are accepted")
        except Refused:
            raise
        except Exception as error:
            raise HookFailure(self.request.endpoint.value, "Translation.read") from error
        if len(read) > 1:
            self._several.append((len(self.keys), len(read)))
            self._added += len(read) - 1
            self._faults = self._faults or FaultBudget()
            self.further = [*read[1:]]
        return read[0] if read else None

    def end(self, results: Sequence[Result]) -> None:
        """Count the events, and answer the request. `results` are those of the events that `read` has returned."""
        if self.room is not None:
            self.room.release()
        request, metrics = self.request, self._outcomes.metrics
        if self._ended:
            rest = iter(results)
            results = [self._ended[index] if index in self._ended else next(rest) for index in range(len(self.keys))]
        answers: list[Session | Refused] = []
        refusals: list[int] = []
        # Refusals that metrics count alike, each with its number: a batch may have thousands of them.
        alike: dict[tuple[Endpoint, str, Outcome, SchemaFault | str], tuple[Refused, int]] = {}
        for endpoint, key, result in zip(self.endpoints, self.keys, results, strict=True):
            if isinstance(result, Exception):
                refused = self._outcomes.refusal(request, result)
                kind = endpoint, key, refused.outcome, refused.fault or refused.code
                alike[kind] = refused, alike[kind][1] + 1 if kind in alike else 1
                refusals.append(len(answers))
                answers.append(refused)
            else:
                if result.session.is_new and result.outcome is Outcome.ACCEPTED:
                    metrics.session_begun()
                metrics.count(endpoint, key, result.outcome)
                answers.append(result.session)
        for (endpoint, key, outcome, _), (refused, count) in alike.items():
            metrics.count_refusal(endpoint, key, refused, count)
            metrics.count(endpoint, key, outcome, count)
        metrics.took(request.endpoint, time.perf_counter() - self.started, batch=request.batch)
        try:
            body = self.translation.answer(self._of_messages(answers) if self._several else answers)
        except Exception as error:  # noqa: BLE001 - a translation of a plugin fails; the events are counted already
            body = self._outcomes.refusal(request, error)
        self._give(problem(body, intake=request.intake) if isinstance(body, Refused) else Answer(200, body))
        if self._outcomes.observer is not None:
            self._outcomes.observer.see_results(self, results, answers, refusals)

    def _of_messages(self, answers: Sequence[Session | Refused]) -> Sequence[Session | Refused]:
        """The result of each message, of which some have become several events."""
        results, at = [], 0
        for first, size in self._several:
            events = answers[first : first + size]
            refused = [each for each in events if isinstance(each, Refused)]
            # What may be stored later decides: a caller that hears of another fault would not send it again.
            worst = max(refused, key=lambda each: each.status, default=events[0])
            results += [*answers[at:first], worst]
            at = first + size
        return [*results, *answers[at:]]


_NOTHING: Mapping[int, Sent] = MappingProxyType({})


class Parts:
    """The events of a batch in parts. The records of a part share a commit, and are in memory together.

    A part has about a megabyte of events at most. Beside single events, it has as many as one step handles.
    """

    def __init__(
        self, events: RequestEvents, bodies: Sequence[msgspec.Raw | bytes], max_size: int, backpressure: Backpressure
    ) -> None:
        """`max_size` bounds each event. `backpressure` is that of the events' partition."""
        self._events = events
        self._bodies = bodies
        self._ids = next_uuids(events.request.id)
        self._max_size = max_size
        self._backpressure = backpressure
        self._checked = False
        self._at = self._end = 0

    @property
    def left(self) -> int:
        """The number of events that are in no part yet."""
        return len(self._bodies) - self._at

    def next_weight(self) -> int:
        """Choose the events of the next part. Returns their number, or more if they are large."""
        most = FEW if self._backpressure.demand.is_beside_singles() else len(self._bodies)
        size, end = 0, self._at
        for body in self._bodies[self._at : self._at + most]:
            length = len(memoryview(body))
            if size and size + length > _MOST:
                break
            size += length
            end += 1
        self._end = end
        return max(end - self._at, size // _USUAL_SIZE)

    def read(self, steps: Steps) -> Iterator[Event | None]:
        """The events of the next part, each read when the caller asks for it. Ends the steps with the last one.

        Raises `Unavailable` before the first event of all if no more are stored.
        """
        while self._at < self._end:
            body, record_id = self._bodies[self._at], next(self._ids)
            self._at += 1
            event = self._events.read(bytes(body), record_id, max_size=self._max_size)
            if event is not None and not self._checked:
                self._backpressure.check()
                self._checked = True
            yield event
            del event  # before the next one is made
            yield from self._events.read_further(self._ids)
            if steps.is_over() and self._backpressure.demand.is_beside_singles():
                break
        steps.end()
