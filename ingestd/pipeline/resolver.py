"""Resolves an event in a transaction: message, user, session, identity, enrichment and filters, in this order."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from ingestd.api.events import Event, Record, Session
from ingestd.api.journal import IDEMPOTENCY_KIND, IdempotencyKey, Journal
from ingestd.api.outcomes import Outcome
from ingestd.api.store import State, kind_of_tenant, passing_key
from ingestd.hooks.caller import Hooks
from ingestd.support.ids import random_uuid

__all__ = ["Resolved", "Resolver", "lone_session", "repeated"]


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """The result of an event. A result without a record adds nothing to the journal."""

    outcome: Outcome
    session: Session
    record: Record | None = None
    idempotency_key: IdempotencyKey | None = None


def repeated(earlier: str) -> Resolved:
    """The result of an event whose message was stored before. `earlier` is the value of its idempotency key."""
    session_id, _, is_new = earlier.partition(" ")
    return Resolved(Outcome.DUPLICATE, Session(session_id, is_new == "1"))


def lone_session(supplied: str | None) -> Session:
    """A session that is not stored and stands for one event only. It has the caller's session id, or a random one."""
    if supplied is None:
        return Session(random_uuid(), is_new=True)
    return Session(supplied.lower(), is_new=False)


class Resolver:
    """Calls the hooks of an event. It changes nothing but the event and the transaction, so it can run again."""

    def __init__(self, hooks: Hooks, journal: Journal) -> None:
        self._hooks = hooks
        self._journal = journal

    async def resolve(self, event: Event, state: State) -> Resolved:
        """Resolve an event in a transaction. Raises `Refused`, and any error of a plugin."""
        if event.message_id is not None:
            earlier = await self._journal.find_duplicate(message_key(event.tenant, event.message_id), state)
            if earlier is not None:
                return repeated(earlier)
        hooks = self._hooks
        session: Session | None
        if event.has_visitor:
            if event.user_id is None and event.type == "event":
                event.user_id = await hooks.resolve_user(event, state)
            session = await hooks.resolve_session(event, state)
            if session is None:
                raise LookupError("no plugin resolved the session")
        else:
            session = lone_session(event.session_id)
        event.session_id, event.session_is_new = session.session_id, session.is_new
        if event.type == "identify" or event.links:
            if event.has_visitor:
                await hooks.store_identity(event, state)
            else:
                event.linked = False
        if hooks.alters_events:
            await hooks.enrich(event, state)
            if await hooks.filter_event(event) is not None:
                await hooks.event_dropped(event, state)
                return Resolved(Outcome.DROPPED, session)
        idempotency_key = None
        if event.message_id is not None:
            value = f"{session.session_id} {session.is_new:d}"
            idempotency_key = IdempotencyKey(message_key(event.tenant, event.message_id), value, event.message_life)
        return Resolved(Outcome.ACCEPTED, session, event.to_record(), idempotency_key)


def message_key(tenant: str, message_id: str) -> str:
    return _message_key(tenant, message_id, kind_of_tenant(IDEMPOTENCY_KIND, tenant))


@lru_cache(maxsize=2048)  # used twice while an event is resolved, and hardly ever again
def _message_key(tenant: str, message_id: str, _kind: str) -> str:
    """The kind has the tenant's namespace, which may change."""
    return passing_key(IDEMPOTENCY_KIND, tenant, message_id)
