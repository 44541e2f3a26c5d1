"""The pipeline: takes a request from admission to its answer, and counts each of its events once.

The contract with callers sets the order: sender (401), permissions (403), JSON and envelope (400), a known key (404),
valid data (400); then preparation, user, session, identity, enrichment, filters; then the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec import Raw

from ingestd.api.errors import Forbidden, Refused, Unauthorized, Unavailable
from ingestd.api.events import Endpoint, Event, Principal, Request
from ingestd.api.intake import Intake
from ingestd.config import HttpOptions
from ingestd.hooks.caller import Hooks
from ingestd.observability.logs import current_request
from ingestd.observability.unusable_id_reports import IdField
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.validator import Validator

from .batch_parser import Batch, BatchParser
from .event_parser import STORED_FORMS, EventParser
from .intake_reader import IntakeReader
from .own_format import OwnBatches, OwnEvents, check_batch
from .pace import Steps
from .processor import Processor, Processors, Result
from .request_events import Outcomes, Parts, RequestEvents
from .responses import Answer
from .room import Place

__all__ = ["SMALL", "Pipeline"]

SMALL = 8 << 10
"""Bytes of a body that takes no longer than a usual event."""

_LOSS_RETRY = 10  # seconds: an operator is needed


class Pipeline:
    """Handles requests. `unusable_id` is called for each field that has one of `unusable_ids`."""

    def __init__(
        self,
        hooks: Hooks,
        validator: Validator,
        processors: Processors,
        outcomes: Outcomes,
        options: HttpOptions,
        *,
        unusable_ids: UnusableIds,
        unusable_id: Callable[[IdField], None],
        intakes: Sequence[Intake] = (),
    ) -> None:
        self.observation = outcomes.observation
        self._hooks = hooks
        self._keys = validator.keys
        self._processors = processors
        self._outcomes = outcomes
        backpressure = processors.backpressure
        self._room = backpressure.room
        self.pace = backpressure.pace
        outcomes.metrics.waiting.set_function(lambda: backpressure.waiting)
        outcomes.metrics.batches.set_function(lambda: backpressure.room.batches)
        self._parser = EventParser(
            validator,
            STORED_FORMS[options.store_address],
            timestamp_ignored=outcomes.metrics.timestamp_ignored,
            unusable_ids=unusable_ids,
            unusable_id=unusable_id,
            texts_as_numbers=outcomes.metrics.texts_as_numbers.inc,
            check_identity=hooks.check_identity,
            prepare=hooks.prepare,
        )
        self._max_body = int(options.max_body)
        most = int(options.max_batch_body)
        self._own_events = {endpoint: OwnEvents(endpoint) for endpoint in Endpoint.BUILT_IN}
        self._batch_parser = BatchParser(envelope=OwnBatches.envelope)
        self._intake_readers = {intake: IntakeReader(intake, max_batch_body=most) for intake in intakes}

    async def handle(self, request: Request, give: Callable[[Answer], None]) -> None:
        """Answer one request, and count each of its events once. Raises nothing.

        `give` is called with the answer in the event loop, before this returns or later, and must not raise.
        """
        current_request.set(request)
        events = RequestEvents(self._parser, self._outcomes, request, give)
        try:
            if request.intake is None and not request.batch and not _is_long(request):
                events.principal = await self._admit(request)
                events.translation = self._own_events[request.endpoint]
            else:
                with Place(self._room, request) as place:
                    bodies = await self._open(events, place)
                    if bodies is not None:
                        await self._handle_long(events, bodies, place)
                        return
            await self._handle_single(events)
        except Exception as error:  # noqa: BLE001 - one request's failure is not the daemon's; it is logged
            events.refuse(error)

    async def _handle_single(self, events: RequestEvents) -> None:
        """Process an event of usual size."""
        request, principal = events.request, events.principal
        self.pace.single_at = events.started
        processor = self._processors.of(principal)
        backpressure = processor.backpressure
        body = request.body
        size, parsing = len(body), backpressure.parsing
        if not parsing.begin_at_once(size):
            await parsing.begin(size)
        try:
            event = events.read(body, request.id)
            del body  # with the request's reference its memory is free, however long the event waits
            request.drop_body()
            if event is None:
                events.end(())
                return
            try:
                backpressure.acquire(signed=principal.signed)
            except Unavailable as refused:
                events.end((refused.with_traceback(None),))
                return
            events.room = backpressure
            await processor.process((event,), events.end)
        finally:
            parsing.end(size)

    # The sender

    async def _admit(
        self,
        request: Request,
        read: Callable[[Principal], Awaitable[None]] | None = None,
        *,
        identify: Callable[[], Awaitable[None]] | None = None,
    ) -> Principal:
        """Return the sender of a request. Raises `Refused`.

        The order of refusals is: by a `screen` hook, `Unavailable`, by an `admit` hook, 401, 403, by `read`. `read` is
        called for a sender with permission before the `admit` hooks, because a rate counts the events of a batch.
        `identify` finds the credential of a request of an intake.
        """
        await self._hooks.screen(request)
        principal, refused = None, None
        try:
            if identify is not None:
                await identify()
            principal = await self._hooks.authenticate(request)
            if principal is None or not request.endpoint.is_public:
                self._check(request, principal)
            if read is not None and principal is not None:
                await read(principal)
        except Unavailable:
            raise  # the sender is not known now, so this counts against none
        except Refused as error:
            refused = error
        await self._hooks.admit(request, principal)  # a sender over its rate gets that refusal first, whoever it is
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # breaks the cycle of error, traceback and frame
        assert principal is not None
        return principal

    def _check(self, request: Request, principal: Principal | None) -> None:
        """Refuse an unknown sender, and one without permission for an endpoint that is not public."""
        if principal is None:
            if request.bearer() is None:
                cure = (
                    "sent. Send it as the header Authorization: Bearer KEY."
                    if request.intake is None
                    else "found. A body can have it in a batch of up to 512 KiB, or in a message of up to 32 KiB."
                )
                raise Unauthorized(f"No key was {cure}", code="missing_key")
            if self._processors.store.loss is not None:  # a 401 would be final, and the store may have lost this key
                raise Unavailable("Keys cannot be looked up now. Send the request again.", retry_after=_LOSS_RETRY)
            raise Unauthorized("This key is not valid here.")
        permissions = principal.grants.get("CRM")
        if permissions is None:
            raise Forbidden("This key has no access to the app CRM.", code="no_app_access")
        if "ADMIN" not in permissions:
            raise Forbidden("This key has no permission ADMIN in the app CRM.", code="no_permission")

    # Batches, intakes and large events

    async def _open(self, events: RequestEvents, place: Place) -> Sequence[Raw | bytes] | None:
        """Admit a request. Returns the bodies of a batch or large event; None for an event of usual size."""
        request = events.request
        bodies: Sequence[Raw] | None = None
        if request.intake is not None:
            bodies = await self._open_intake(events, request.intake, place)
        elif request.batch:
            bodies = await self._open_batch(events, place)
        else:
            events.principal = await self._admit(request)
            events.translation = self._own_events[request.endpoint]
        if bodies is not None or request.small_body(SMALL) is not None:
            return bodies
        async with self._reading(request, place, events.principal):
            body = request.body
        self._take_place(place, request, events.principal)
        return [body]

    async def _open_batch(self, events: RequestEvents, place: Place) -> Sequence[Raw]:
        request, batch = events.request, Batch((), {})

        async def read(principal: Principal) -> None:
            nonlocal batch
            async with self._reading(request, place, principal) as steps:
                batch = await self._batch_parser.parse(request.body, steps)
            check_batch(request.endpoint, batch)
            request.events = len(batch.events)
            self._take_place(place, request, principal)

        events.principal = await self._admit(request, read)
        events.translation = OwnBatches(request.endpoint, request.received_at, batch.envelope)
        return batch.events

    async def _open_intake(self, events: RequestEvents, intake: Intake, place: Place) -> Sequence[Raw] | None:
        request = events.request
        received = self._intake_readers[intake].begin(request, partial(self._reading, request, place))

        async def read(principal: Principal) -> None:
            await received.read(principal)
            if received.messages is not None:
                self._take_place(place, request, principal)

        events.principal = await self._admit(request, read, identify=received.find_credential)
        events.translation = intake.begin(request, events.principal, received.envelope, self._keys)
        return received.messages

    @contextlib.asynccontextmanager
    async def _reading(
        self, request: Request, place: Place, principal: Principal | None = None
    ) -> AsyncIterator[Steps]:
        """Wait until a body may be decoded and split. Raises `NoRoom`."""
        place.take(request.size, principal, partition=self._processors.index_of(principal))
        if not _is_long(request):
            yield Steps()
            return
        steps = await self._processors.backpressure.begin_piece(place.sender)
        try:
            yield steps
        finally:
            steps.end()

    def _take_place(self, place: Place, request: Request, principal: Principal) -> None:
        """Take room for the events of a body that has been read. Raises `NoRoom`."""
        partition = self._processors.index_of(principal)
        place.take(len(request.body), principal, events=request.events, partition=partition)

    async def _handle_long(self, events: RequestEvents, bodies: Sequence[Raw | bytes], place: Place) -> None:
        """Process the events of a batch, or a large event."""
        pace = self.pace
        stored: list[Result] = []
        processor = self._processors.of(events.principal)
        parts = Parts(events, bodies, self._max_body, pace)
        pace.want(len(bodies))
        try:
            is_first = True
            while is_first or parts.left:
                async with processor.backpressure.turn(parts.next_weight(), place.sender):
                    steps = await processor.backpressure.begin_piece(place.sender)
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
        events.end(stored)


def _is_long(request: Request) -> bool:
    """Whether the body takes more than a moment to decode and parse, as far as one can tell before."""
    return request.size > SMALL or request.headers.get("Content-Encoding") is not None


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
