"""The pipeline: takes a request from admission to its answer, and counts each of its events once.

The contract with callers sets the order: sender (401), permissions (403), JSON and envelope (400), a known key (404),
valid data (400); then preparation, user, session, identity, enrichment, filters; then the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from ingestd.api.backend import Partition
from ingestd.api.errors import Refused, SchemaFault, Unavailable
from ingestd.api.events import Endpoint, Event, Principal, Request, Session
from ingestd.api.intake import Intake, Translation
from ingestd.api.outcomes import Outcome
from ingestd.api.store import Store
from ingestd.hooks.caller import Hooks
from ingestd.observability.logs import current_request
from ingestd.observability.metrics import Metrics
from ingestd.observability.unusable_id_reports import UnusableIdReports
from ingestd.storage.placements import Placements
from ingestd.support.ids import next_uuids
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.validator import Validator

from .admission import Admission
from .backpressure import Backpressure
from .batch_parser import Batch, BatchParser
from .event_parser import EventParser
from .failures import Failures
from .intake_reader import IntakeReader
from .observation import Observation
from .own_format import OwnBatches, OwnEvents, check_batch
from .pace import Steps
from .parts import Parts
from .processor import Processor, Result
from .request_events import ObservedEvents, RequestEvents
from .responses import Answer, problem
from .room import NoRoom, Place

__all__ = ["SMALL", "Pipeline"]

SMALL = 8 << 10
"""Bytes of a body that takes no longer than a usual event."""


class Pipeline:
    """Handles requests. The events of a request go to the partition of its tenant.

    `store` is the store over all partitions. `backpressures` has the limits of each partition. `max_body` bounds each
    event, `max_batch_body` a batch of an intake after its envelope has been copied into its messages. `EventParser`
    explains `stored_address` and `unusable_ids`.
    """

    def __init__(
        self,
        hooks: Hooks,
        validator: Validator,
        store: Store,
        partitions: Sequence[Partition],
        metrics: Metrics,
        *,
        placements: Placements,
        backpressures: Sequence[Backpressure],
        observation: Observation,
        max_body: int,
        max_batch_body: int,
        unusable_ids: UnusableIds,
        unusable_id_reports: UnusableIdReports,
        stored_address: Callable[[str], str] | None = None,
        intakes: Sequence[Intake] = (),
    ) -> None:
        self.observation = observation
        self._metrics = metrics
        self._keys = validator.keys
        self._own_events = {endpoint: OwnEvents(endpoint) for endpoint in Endpoint.BUILT_IN}
        self._intake_readers = {intake: IntakeReader(intake, max_batch_body=max_batch_body) for intake in intakes}
        self._backpressure = backpressures[0]  # all have the same room and pace
        self.pace = self._backpressure.pace
        metrics.waiting.set_function(lambda: backpressures[0].waiting)
        metrics.batches.set_function(lambda: backpressures[0].room.batches)
        self._admission = Admission(hooks, store)
        self._parser = EventParser(
            validator,
            stored_address,
            timestamp_ignored=metrics.timestamp_ignored,
            unusable_ids=unusable_ids,
            unusable_id=unusable_id_reports.report,
            texts_as_numbers=metrics.texts_as_numbers.inc,
            check_identity=hooks.check_identity,
            prepare=hooks.prepare,
        )
        self._batch_parser = BatchParser(envelope=OwnBatches.envelope)
        self._placements = placements
        self._processors = [
            Processor(
                hooks, partition.store, partition.journal, backpressure,
                None if len(partitions) == 1 else partial(placements.check, index),
            )
            for index, (partition, backpressure) in enumerate(zip(partitions, backpressures, strict=True))
        ]  # fmt: skip
        self._only = self._processors[0] if len(partitions) == 1 else None
        self._failures = Failures()
        self._max_body = max_body

    async def handle(self, request: Request, give: Callable[[Answer], None]) -> None:
        """Answer one request, and count each of its events once. Raises nothing.

        `give` is called with the answer in the event loop, before this returns or later, and must not raise.
        """
        current_request.set(request)
        started = time.perf_counter()
        try:
            if request.intake is None and not request.batch and not _is_long(request):
                principal = await self._admission.admit(request)
                events = self._events_of(request, principal, self._own_events[request.endpoint])
                await self._handle_single(events, started, give)
            else:
                with self._backpressure.place(request) as place:
                    events, bodies = await self._open(request, place)
                    if bodies is not None:
                        await self._handle_long(events, bodies, place, started, give)
                        return
                await self._handle_single(events, started, give)
        except Exception as error:  # noqa: BLE001 - one request's failure is not the daemon's; it is logged
            self._refuse(request, error, started, give)

    async def _handle_single(self, events: RequestEvents, started: float, give: Callable[[Answer], None]) -> None:
        """Process an event of usual size."""
        request, principal = events.request, events.principal
        self.pace.single_at = started
        processor = self._only or self._processor_of(principal)
        size, parsing = len(request.body), processor.backpressure.parsing
        if not parsing.begin_at_once(size):
            await parsing.begin(size)
        try:
            event = events.read(request.body, request.id)
            request.drop_body()
            if event is None:
                self._end(events, started, give, None, ())
            elif (refused := _refused_room(processor.backpressure, signed=principal.signed)) is not None:
                self._end(events, started, give, None, (refused,))
            else:
                then = partial(self._end, events, started, give, processor.backpressure)
                await processor.process((event,), then)
        finally:
            parsing.end(size)

    def _events_of(self, request: Request, principal: Principal, translation: Translation) -> RequestEvents:
        if self.observation.observer is None:
            return RequestEvents(self._parser, request, principal, translation)
        events = ObservedEvents(self._parser, request, principal, translation)
        events.sent = {}
        return events

    def _processor_of(self, principal: Principal) -> Processor:
        return self._processors[self._partition_of(principal)]

    def _partition_of(self, principal: Principal | None) -> int:
        return 0 if principal is None else self._placements.index_of(principal.tenant)

    async def _open(self, request: Request, place: Place) -> tuple[RequestEvents, Sequence[Raw | bytes] | None]:
        """Admit a request. Returns also the bodies of a batch or large event; None for an event of usual size."""
        if request.intake is not None:
            return await self._open_intake(request, request.intake, place)
        if not request.batch:
            principal = await self._admission.admit(request)
            events = self._events_of(request, principal, self._own_events[request.endpoint])
            return events, await self._large_event(events, place)
        batch = Batch((), {})

        async def read(principal: Principal) -> None:
            nonlocal batch
            async with self._reading(request, place, principal) as steps:
                batch = await self._batch_parser.parse(request.body, steps)
            check_batch(request.endpoint, batch)
            request.events = len(batch.events)
            self._take_place(place, request, principal)

        principal = await self._admission.admit(request, read)
        translation = OwnBatches(request.endpoint, request.received_at, batch.envelope)
        return self._events_of(request, principal, translation), batch.events

    async def _open_intake(
        self, request: Request, intake: Intake, place: Place
    ) -> tuple[RequestEvents, Sequence[Raw | bytes] | None]:
        received = self._intake_readers[intake].begin(request, partial(self._reading, request, place))

        async def read(principal: Principal) -> None:
            await received.read(principal)
            if received.messages is not None:
                self._take_place(place, request, principal)

        principal = await self._admission.admit(request, read, identify=received.find_credential)
        events = self._events_of(request, principal, intake.begin(request, principal, received.envelope, self._keys))
        bodies = received.messages
        return events, await self._large_event(events, place) if bodies is None else bodies

    async def _large_event(self, events: RequestEvents, place: Place) -> Sequence[bytes] | None:
        """The body of a single event in a list; None if it has the usual size."""
        request = events.request
        if request.small_body(SMALL) is None:
            async with self._reading(request, place, events.principal):
                body = request.body
            self._take_place(place, request, events.principal)
            return [body]
        return None

    @contextlib.asynccontextmanager
    async def _reading(
        self, request: Request, place: Place, principal: Principal | None = None
    ) -> AsyncIterator[Steps]:
        """Wait until a body may be decoded and split. Raises `NoRoom`."""
        place.take(request.size, principal, partition=self._partition_of(principal))
        if not _is_long(request):
            yield Steps()
            return
        steps = await self.pace.begin(place.sender)
        try:
            yield steps
        finally:
            steps.end()

    def _take_place(self, place: Place, request: Request, principal: Principal) -> None:
        """Take room for the events of a body that has been read. Raises `NoRoom`."""
        place.take(len(request.body), principal, events=request.events, partition=self._partition_of(principal))

    async def _handle_long(
        self,
        events: RequestEvents,
        bodies: Sequence[Raw | bytes],
        place: Place,
        started: float,
        give: Callable[[Answer], None],
    ) -> None:
        """Process the events of a batch, or a large event."""
        pace = self.pace
        stored: list[Result] = []
        processor = self._only or self._processor_of(events.principal)
        parts = Parts(events, bodies, next_uuids(events.request.id), self._max_body, pace)
        pace.want(len(bodies))
        try:
            is_first = True
            while is_first or parts.left:
                async with processor.backpressure.turn(parts.next_weight(), place.sender):
                    steps = await pace.begin(place.sender)
                    if processor.store.may_conflict:
                        steps.share = 0.5  # about a half is done when the state has been loaded
                    try:
                        coming = parts.read(steps)
                        stored += await _store(processor, _check_first(processor, coming) if is_first else coming)
                    finally:
                        steps.end()
                is_first = False
        finally:
            pace.want(-len(bodies))
        self._end(events, started, give, None, stored)

    def _end(
        self,
        events: RequestEvents,
        started: float,
        give: Callable[[Answer], None],
        room: Backpressure | None,
        stored: Sequence[Result],
    ) -> None:
        """Count the events of a request, and answer it. `room` has the room of a single event, which is released."""
        if room is not None:
            room.release()
        request = events.request
        results = events.results(stored)
        answers: list[Session | Refused] = []
        refusals: list[int] = []
        # Refusals that metrics count alike, each with its number: a batch may have thousands of them.
        alike: dict[tuple[Endpoint, str, Outcome, SchemaFault | str], tuple[Refused, int]] = {}
        for endpoint, key, result in zip(events.endpoints, events.keys, results, strict=True):
            if isinstance(result, Exception):
                refused = self._failures.refusal(request, result)
                kind = endpoint, key, refused.outcome, refused.fault or refused.code
                alike[kind] = refused, alike[kind][1] + 1 if kind in alike else 1
                refusals.append(len(answers))
                answers.append(refused)
            else:
                if result.session.is_new and result.outcome is Outcome.ACCEPTED:
                    self._metrics.session_begun()
                self._metrics.count(endpoint, key, result.outcome)
                answers.append(result.session)
        for (endpoint, key, outcome, _), (refused, count) in alike.items():
            self._metrics.count_refusal(endpoint, key, refused, count)
            self._metrics.count(endpoint, key, outcome, count)
        self._metrics.took(request.endpoint, time.perf_counter() - started, batch=request.batch)
        try:
            body = events.translation.answer(answers)
        except Exception as error:  # noqa: BLE001 - a translation of a plugin fails; the events are counted already
            body = self._failures.refusal(request, error)
        give(problem(body, intake=request.intake) if isinstance(body, Refused) else Answer(200, body))
        if self.observation.observer is not None:
            self.observation.observer.see_results(request, events, results, answers, refusals)

    def _refuse(self, request: Request, error: Exception, started: float, give: Callable[[Answer], None]) -> None:
        """Refuse a whole request. `request.events` is the number of its events, as far as known."""
        refused = self._failures.refusal(request, error)
        self._metrics.count(request.endpoint, "", refused.outcome, request.events)
        self._metrics.count_refusal(request.endpoint, "", refused, request.events)
        self._metrics.took(request.endpoint, time.perf_counter() - started, batch=request.batch)
        answer = problem(refused, intake=request.intake)
        if isinstance(error, NoRoom):
            self._metrics.batch_refused(error.by)
            answer = msgspec.structs.replace(answer, late=True)
        give(answer)
        if self.observation.observer is not None:
            self.observation.observer.see_refusal(
                request.endpoint, request.id, request.received_at, refused,
                several=request.batch or request.events > 1, intake=request.intake, events=request.events,
            )  # fmt: skip


def _is_long(request: Request) -> bool:
    """Whether the body takes more than a moment to decode and parse, as far as one can tell before."""
    return request.size > SMALL or request.headers.get("Content-Encoding") is not None


def _refused_room(backpressure: Backpressure, *, signed: bool) -> Unavailable | None:
    """Take room for one event. Returns the error if there is none."""
    try:
        backpressure.check()
        backpressure.acquire(signed=signed)
    except Unavailable as refused:
        return refused
    return None


async def _store(processor: Processor, events: Iterable[Event | None]) -> Sequence[Result]:
    """Process events, and wait until they are durable."""
    done: asyncio.Future[Sequence[Result]] = asyncio.get_running_loop().create_future()
    await processor.process(events, lambda stored: None if done.done() else done.set_result(stored))
    return await done


def _check_first(processor: Processor, events: Iterable[Event | None]) -> Iterator[Event | None]:
    """The events. Raises `Unavailable` before the first one if no more are stored."""
    events = iter(events)
    for event in events:
        if event is not None:
            processor.backpressure.check()
            yield event
            del event  # before the next one is made
            yield from events
            return
        yield None
