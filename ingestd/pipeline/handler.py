"""The pipeline: takes a request from admission to its answer, and counts each of its events once.

The contract with callers sets the order: sender (401), permissions (403), JSON and envelope (400), a known key (404),
valid data (400); then preparation, user, session, identity, enrichment, filters; then the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw

from ingestd.api.errors import Forbidden, Refused, Unauthorized, Unavailable
from ingestd.api.events import Endpoint, Event, Principal, Request
from ingestd.api.intake import Intake
from ingestd.config import HttpOptions
from ingestd.hooks.caller import Hooks
from ingestd.observability.logs import current_request
from ingestd.scheduling.room import SMALL, Place, is_long
from ingestd.support.ids import next_uuids
from ingestd.support.unusable_ids import UnusableIds
from ingestd.validation.batch_parser import Batch, BatchParser
from ingestd.validation.validator import Validator

from .body_reader import BatchReader, IntakeReader
from .event_parser import STORED_FORMS, EventParser
from .outcomes import Answer, Outcomes
from .own_format import OwnBatches, OwnEvents
from .processor import Awaited, Processors, Result
from .request_events import Parts, RequestEvents

__all__ = ["Pipeline"]

_LOSS_RETRY = 10  # seconds: an operator is needed


class Pipeline:
    def __init__(
        self,
        hooks: Hooks,
        validator: Validator,
        processors: Processors,
        outcomes: Outcomes,
        options: HttpOptions,
        *,
        unusable_ids: UnusableIds,
        intakes: Sequence[Intake] = (),
    ) -> None:
        self.outcomes = outcomes
        self._hooks = hooks
        self._processors = processors
        backpressure = processors.backpressure
        self.demand = backpressure.demand
        outcomes.metrics.waiting.set_function(lambda: backpressure.waiting)
        outcomes.metrics.batches.set_function(lambda: backpressure.room.batches)
        stored_form = STORED_FORMS[options.store_address]
        self._parser = EventParser(validator, hooks, outcomes, unusable_ids=unusable_ids, stored_address=stored_form)
        self._max_body = int(options.max_body)
        self._own_events = {endpoint: OwnEvents(endpoint) for endpoint in Endpoint.BUILT_IN}
        self._batch_reader = BatchReader(BatchParser(envelope=OwnBatches.envelope))
        self._intake_readers = {
            (intake, batch): IntakeReader(intake, batch, validator.keys, max_batch_body=int(options.max_batch_body))
            for intake in intakes
            for batch in {route.batch for route in intake.routes}
        }

    async def handle(self, request: Request, give: Callable[[Answer], None]) -> None:
        """Answer one request, and count each of its events once. Raises nothing.

        `give` is called with the answer in the event loop, before this returns or later, and must not raise.
        """
        current_request.set(request)
        events = RequestEvents(self._parser, self.outcomes, request, give)
        try:
            if request.intake is None and not request.batch and not is_long(request):
                events.principal, _ = await self._admit(request)
                events.translation = self._own_events[request.endpoint]
            else:
                with Place(self._processors.backpressure, request, self._processors.index_of) as place:
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
        self.demand.single_at = events.started
        processor = self._processors.of(principal)
        backpressure = processor.backpressure
        body = request.body
        size, parsing = len(body), backpressure.parsing
        if not parsing.begin_at_once(size):
            await parsing.begin_turn(size)
        try:
            event = events.read(body, request.id)
            del body  # with the request's reference its memory is free, however long the event waits
            request.drop_body()
            read: Sequence[Event] = () if event is None else (event,)
            if events.further:
                ids = next_uuids(request.id)
                next(ids)  # the first event has it
                read = [*read, *filter(None, events.read_further(ids))]
            if not read:
                events.end(())
                return
            try:
                backpressure.acquire(signed=principal.signed)
            except Unavailable as refused:
                events.end([refused.with_traceback(None)] * len(read))
                return
            events.room = backpressure
            await events.process(processor, read)
        finally:
            parsing.end(size)

    # The sender

    async def _admit(self, request: Request, place: Place | None = None) -> tuple[Principal, Batch | None]:
        """The sender of a request, and its batch if it is one. Raises `Refused`.

        The order of refusals is: by a `screen` hook, `Unavailable`, by an `admit` hook, 401, 403, of the body. A body
        with several messages is read for a sender with permission before the `admit` hooks, because a rate counts its
        events. `place` is needed for such a body.
        """
        await self._hooks.screen(request)
        reader = self._reader(request)
        principal, refused, batch = None, None, None
        try:
            if reader is not None:
                assert place is not None
                await reader.find_credential(request, place)
            principal = await self._hooks.authenticate(request)
            if principal is None or not request.endpoint.is_public:
                self._check(request, principal)
            if reader is not None and place is not None and principal is not None:
                batch = await reader.read(request, place, principal)
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
        return principal, batch

    def _reader(self, request: Request) -> BatchReader | None:
        """Reads a body that may have several messages; None for a single event."""
        if request.intake is None:
            return self._batch_reader if request.batch else None
        assert request.route is not None
        return self._intake_readers[request.intake, request.route.batch]

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
        events.principal, batch = await self._admit(request, place)
        reader = self._reader(request)
        if reader is None:
            events.translation = self._own_events[request.endpoint]
        else:
            events.translation = reader.translation(request, events.principal, batch)
        if batch is not None:
            return batch.events
        if request.small_body(SMALL) is not None:
            return None
        async with place.reading(events.principal):
            body = request.body
        place.take(len(body), events.principal, events=1)
        return [body]

    async def _handle_long(self, events: RequestEvents, bodies: Sequence[Raw | bytes], place: Place) -> None:
        """Process the events of a batch, or a large event."""
        stored: list[Result] = []
        processor = self._processors.of(events.principal)
        backpressure = processor.backpressure
        parts = Parts(events, bodies, self._max_body, backpressure)
        self.demand.want(len(bodies))
        try:
            while parts.left:
                async with backpressure.turn(parts.next_weight(), place.sender):
                    with await backpressure.begin_piece(place.sender) as steps:
                        if processor.store.may_conflict:
                            steps.share = 0.5  # about a half is done when the state has been loaded
                        awaited = Awaited()
                        await awaited.process(processor, parts.read(steps))
                        stored += await awaited.results
        finally:
            self.demand.want(-len(bodies))
        events.end(stored)
