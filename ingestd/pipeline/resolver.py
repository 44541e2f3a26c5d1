"""Resolves an event: message, user, session, identity, enrichment and filters, in this order. Then makes its record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec

from ingestd.api.events import Event, Record, Session
from ingestd.api.ids import random_uuid
from ingestd.api.journal import IdempotencyKey, Journal
from ingestd.api.outcomes import Outcome
from ingestd.api.store import State, Store, passing_key
from ingestd.hooks.caller import Hooks

__all__ = ["Resolved", "Resolver", "Unit", "lone_session", "repeated"]

_T = TypeVar("_T")

_MESSAGE_LIFE = 86_400_000

Unit = tuple[Event, State]


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """The result of an event. Without a record there is nothing to append."""

    outcome: Outcome
    session: Session
    record: Record | None = None
    claim: IdempotencyKey | None = None


def repeated(earlier: str) -> Resolved:
    """The result of an event whose message was stored before. `earlier` is the value of its idempotency key."""
    session_id, _, is_new = earlier.partition(" ")
    return Resolved(Outcome.DUPLICATE, Session(session_id, is_new == "1"))


class Resolver:
    def __init__(self, hooks: Hooks, store: Store, journal: Journal) -> None:
        self._hooks = hooks
        self._store = store
        self._journal = journal

    async def resolve(self, event: Event, state: State) -> Resolved:
        """Resolve an event in a transaction. Raises `Refused`, and any error of a plugin."""
        if event.message_id is not None:
            earlier = await self.earlier(event, state)
            if earlier is not None:
                return repeated(earlier)
        if not event.has_visitor:
            return await self._pass(event, state, lone_session(event.session_id))
        if self._store.distant:
            return await self._pass(event, state, await self._resolve_session(event, state))
        if _needs_user(event):
            event.user_id = await self._hooks.resolve_user(event, state)
        session = await self._hooks.resolve_session(event, state)
        if event.type == "identify" or self._hooks.alters_events:
            return await self._pass(event, state, session)
        return _accepted(event, _in_session(event, session))

    async def recall(self, event: Event, state: State) -> Resolved:
        """Resolve an event in a transaction of `Journal.recall`. The append finds out whether its message is new.

        This is not for identify requests, and only where no plugin enriches or filters events.
        """
        if not event.has_visitor:
            return _accepted(event, _in_session(event, lone_session(event.session_id)))
        if _needs_user(event):
            event.user_id = await self._hooks.resolve_user(event, state)
        return _accepted(event, _in_session(event, await self._hooks.resolve_session(event, state)))

    async def resolve_together(self, units: Sequence[Unit]) -> list[Resolved | Exception]:
        """Resolve events as `resolve` would, one after the other. No event may depend on another's message or link.

        The requests of all events to a distant store leave in the same turns of the event loop, in order.
        """
        if len(units) == 1:
            return [await _caught(self.resolve(*unit)) for unit in units]
        results: list[Resolved | Exception | None] = [None] * len(units)
        told = [place for place, (event, _) in enumerate(units) if event.message_id is not None]
        for place, claim in zip(
            told, await asyncio.gather(*(_caught(self.earlier(*units[place])) for place in told)), strict=True
        ):
            results[place] = repeated(claim) if isinstance(claim, str) else claim
        fresh = [(place, *unit) for place, unit in enumerate(units) if results[place] is None]
        sessions = [asyncio.ensure_future(_caught(self._find_session(event, state))) for _, event, state in fresh]
        users = [asyncio.ensure_future(_caught(self._resolve_user(event, state))) for _, event, state in fresh]
        for (place, event, state), user, pending in zip(fresh, users, sessions, strict=True):
            failure, session = await user, await pending
            if failure is not None:
                results[place] = failure
            elif isinstance(session, Exception):
                results[place] = session
            else:
                results[place] = await _caught(self._pass(event, state, session))
        return [result for result in results if result is not None]

    async def earlier(self, event: Event, state: State) -> str | None:
        """The value of the idempotency key of the event's message, if the message was stored before."""
        if event.message_id is None:
            return None
        return await self._journal.claimed(_message_key(event.tenant, event.message_id), state)

    async def _find_session(self, event: Event, state: State) -> Session | None:
        return await self._hooks.resolve_session(event, state) if event.has_visitor else lone_session(event.session_id)

    async def _resolve_session(self, event: Event, state: State) -> Session | None:
        """Find the session and set the user, on a distant store."""
        if not _needs_user(event):
            return await self._hooks.resolve_session(event, state)
        # Started first, so that both hooks send their requests in the same turn of the event loop.
        session = asyncio.ensure_future(self._hooks.resolve_session(event, state))
        try:
            await self._resolve_user(event, state)
            return await session
        finally:
            session.cancel()

    async def _resolve_user(self, event: Event, state: State) -> None:
        if _needs_user(event):
            event.user_id = await self._hooks.resolve_user(event, state)

    async def _pass(self, event: Event, state: State, session: Session | None) -> Resolved:
        session = _in_session(event, session)
        if event.type == "identify":
            if event.has_visitor:
                await self._hooks.store_identity(event, state)
            else:
                event.linked = False
        if self._hooks.alters_events:
            await self._hooks.enrich(event, state)
            if await self._hooks.filter_event(event) is not None:
                await self._hooks.event_dropped(event, state)
                return Resolved(Outcome.DROPPED, session)
        return _accepted(event, session)


def lone_session(supplied: str | None) -> Session:
    """A session that is not stored and stands for one event only. It has the caller's session id, or a random one."""
    if supplied is None:
        return Session(random_uuid(), is_new=True)
    return Session(supplied.lower(), is_new=False)


def _in_session(event: Event, session: Session | None) -> Session:
    if session is None:
        raise LookupError("no plugin resolved the session")
    event.session_id, event.session_is_new = session.session_id, session.is_new
    return session


def _accepted(event: Event, session: Session) -> Resolved:
    claim = None
    if event.message_id is not None:
        value = f"{session.session_id} {session.is_new:d}"
        claim = IdempotencyKey(_message_key(event.tenant, event.message_id), value, _MESSAGE_LIFE)
    return Resolved(Outcome.ACCEPTED, session, event.to_record(), claim)


def _needs_user(event: Event) -> bool:
    return event.type == "event" and event.user_id is None and event.has_visitor


@lru_cache(maxsize=2048)  # used twice while an event is resolved, and hardly ever again
def _message_key(tenant: str, message_id: str) -> str:
    return passing_key("message", tenant, message_id)


async def _caught(work: Awaitable[_T]) -> _T | Exception:
    """Return the result or the error, so that the other events of a batch continue."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - it is the answer of one event
        return error
