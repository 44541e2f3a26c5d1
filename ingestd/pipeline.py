"""The life of one event: from a request to a durable record and the answer.

The order is the contract's: who sends (401), may they (403), is it JSON in shape (400), a known key
(404), good data (400); then user, session, identity, enrichment, filters; then the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import times
from .answers import Answer, problem, success
from .errors import Claimed, Failed, Forbidden, Refused, Unauthorized, Unavailable
from .events import Endpoint, Event, Principal, Request, Session
from .hooks import Hooks
from .journal import Claim, Journal
from .metrics import Metrics
from .outcomes import Outcome
from .store import State, Store, state_key
from .validation import Validator, parse_body

__all__ = ["Pipeline"]

log = logging.getLogger("ingestd.pipeline")

_DAY = 86_400_000
_MESSAGE_LIFE = _DAY
_FULL_RETRY = 10  # seconds: what is full does not empty in one
_EVENT_FIELDS = frozenset(["key", "data", "anonymousId", "userId", "sessionId", "dispatchId", "messageId", "context"])
_IDENTIFY_FIELDS = frozenset(["anonymousId", "userId", "sessionId", "traits", "messageId", "context"])


class Pipeline:
    """`stored_address` makes of a client's address what is stored of it; None: nothing is."""

    def __init__(
        self,
        hooks: Hooks,
        validator: Validator,
        store: Store,
        journal: Journal,
        metrics: Metrics,
        *,
        max_waiting: int,
        stored_address: Callable[[str], str] | None = None,
    ) -> None:
        self._hooks = hooks
        self._validator = validator
        self._store = store
        self._journal = journal
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._stored_address = stored_address
        self._waiting = 0
        self._refusing: str | None = None
        self._told_at = float("-inf")
        self._untold = 0
        metrics.waiting.set_function(lambda: self._waiting)

    def refuse(self, reason: str | None) -> None:
        """Store no more events, and tell callers this reason; None: store them again."""
        self._refusing = reason

    async def handle(self, request: Request) -> Answer:
        """Answer one request, and count it once. Never raises."""
        started = time.perf_counter()
        key = ""
        try:
            principal = await self._authenticate(request)
            body = parse_body(request.body)
            if request.endpoint is not Endpoint.IDENTIFY:
                named = body.get("key")
                if isinstance(named, str) and named in self._validator.keys:
                    key = named
                self._validator.event(body)
            else:
                self._validator.identify(body)
            event = _read_event(request, principal, body)
            if self._stored_address is not None:
                self._add_address(event, request)
            outcome, session = await self._store_event(event)
            answer = success(request.endpoint, session)
        except Refused as refused:
            outcome, answer = refused.outcome, problem(refused)
        except Exception:  # noqa: BLE001 - one event's failure is not the daemon's; it is logged here
            self._tell_failure(request)
            failed = Failed("The event could not be processed. It was not stored.")
            outcome, answer = failed.outcome, problem(failed)
        self._metrics.answered(request.endpoint, key, outcome, time.perf_counter() - started)
        return answer

    def _tell_failure(self, request: Request) -> None:
        """With its traceback, one a second: a broken plugin under load must not fill the disk with them."""
        now = time.monotonic()
        self._untold += 1
        if now - self._told_at >= 1:
            more = f"; {self._untold - 1} more have since the last one told" if self._untold > 1 else ""
            log.exception("a request to %s failed%s", request.endpoint.value, more)
            self._told_at, self._untold = now, 0

    def _add_address(self, event: Event, request: Request) -> None:
        """Unless the caller tells one; and not where the client is a shop's backend, which is nobody's address."""
        if self._stored_address is not None and request.peer and request.endpoint is not Endpoint.CUSTOMER_EVENTS:
            event.context.setdefault("ip", self._stored_address(request.peer))

    async def _authenticate(self, request: Request) -> Principal:
        try:
            principal = await self._hooks.authenticate(request)
        except Refused:
            await self._hooks.admit(request, None)  # it counts too, and over its rate is told that first
            raise
        await self._hooks.admit(request, principal)
        if principal is None:
            if request.bearer() is None:
                raise Unauthorized(
                    "No key was sent. Send it as the header Authorization: Bearer KEY.", code="missing_key"
                )
            raise Unauthorized("This key is not valid here.")
        if request.endpoint is Endpoint.CUSTOMER_EVENTS:
            permissions = principal.grants.get("CRM")
            if permissions is None:
                raise Forbidden("This key has no access to the app CRM.", code="no_app_access")
            if "ADMIN" not in permissions:
                raise Forbidden("This key has no permission ADMIN in the app CRM.", code="no_permission")
        return principal

    async def _store_event(self, event: Event) -> tuple[Outcome, Session]:
        if self._refusing is not None:
            raise Unavailable(self._refusing, retry_after=_FULL_RETRY)
        if self._waiting >= self._max_waiting:
            raise Unavailable("Too many events are waiting to be stored. Send it again.")
        self._waiting += 1
        state = self._store.begin(event.received_at)
        try:
            return await self._resolve_and_append(event, state)
        except Exception:
            # Others may have seen what this event wrote already (its session, say), so it is kept,
            # not undone; where that fails too, the back end tells of it itself.
            with contextlib.suppress(Unavailable):
                await self._store.commit(state)
            raise
        finally:
            self._waiting -= 1

    async def _resolve_and_append(self, event: Event, state: State) -> tuple[Outcome, Session]:
        hooks = self._hooks
        seen = None
        if event.message_id is not None:
            seen = state_key("message", event.tenant, event.message_id)
            earlier = await self._journal.claimed(seen, state)
            if earlier is not None:
                return await self._duplicate(earlier, state)
        session = await self._resolve(event, state)
        if session is None:
            raise LookupError("no plugin resolved the session")
        event.session_id, event.session_is_new = session
        if event.type == "identify":
            await hooks.store_identity(event, state)
        await hooks.enrich(event, state)
        if await hooks.filter_event(event) is not None:
            await self._store.commit(state)
            return Outcome.DROPPED, session
        claim = None if seen is None else Claim(seen, f"{session.session_id} {session.is_new:d}", _MESSAGE_LIFE)
        try:
            await self._journal.append([event.to_record()], state, claim=claim)
        except Claimed as claimed:
            return await self._duplicate(claimed.value, state)
        return Outcome.ACCEPTED, session

    async def _resolve(self, event: Event, state: State) -> Session | None:
        """The user, which it sets, and the session."""
        hooks = self._hooks
        if event.user_id is not None or event.type != "event":
            return await hooks.resolve_session(event, state)
        if not self._store.distant:
            event.user_id = await hooks.resolve_user(event, state)
            return await hooks.resolve_session(event, state)
        # Begun first, so that what it asks for leaves in the same turn as what the other asks for.
        session = asyncio.ensure_future(hooks.resolve_session(event, state))
        try:
            event.user_id = await hooks.resolve_user(event, state)
            return await session
        finally:
            session.cancel()

    async def _duplicate(self, earlier: str, state: State) -> tuple[Outcome, Session]:
        """Answer as the first was answered, once the first is durable."""
        await self._store.commit(state)
        session_id, _, is_new = earlier.partition(" ")
        return Outcome.DUPLICATE, Session(session_id, is_new == "1")


def _read_event(request: Request, principal: Principal, body: Mapping[str, Any]) -> Event:
    """A validated body as an event. What it does not name is kept apart, under `extra`."""
    endpoint, received_at = request.endpoint, request.received_at
    is_event = endpoint is not Endpoint.IDENTIFY
    known = _EVENT_FIELDS if is_event else _IDENTIFY_FIELDS
    extra = {name: value for name, value in body.items() if name not in known}
    timestamp = received_at
    sent = extra.get("timestamp")
    if isinstance(sent, str):
        at = times.parse_time(sent)
        if at is not None:
            del extra["timestamp"]
            public = endpoint is not Endpoint.CUSTOMER_EVENTS
            if at <= received_at and not (public and at < received_at - _DAY):
                timestamp = at
    dispatch_id = body.get("dispatchId")
    if not is_event and isinstance(dispatch_id, str):
        # An identify request may tell it, but nothing else under that name is refused there.
        del extra["dispatchId"]
    return Event(
        id=request.id,
        type="event" if is_event else "identify",
        tenant=principal.tenant,
        endpoint=endpoint,
        received_at=received_at,
        timestamp=timestamp,
        key=body["key"] if is_event else None,
        data=body["data"] if is_event else {},
        traits={} if is_event else body.get("traits", {}),
        anonymous_id=body["anonymousId"],
        user_id=body.get("userId") or None,
        session_id=body.get("sessionId"),
        session_is_new=False,
        dispatch_id=dispatch_id if isinstance(dispatch_id, str) else None,
        message_id=body.get("messageId"),
        context=body.get("context", {}),
        extra=extra,
    )
