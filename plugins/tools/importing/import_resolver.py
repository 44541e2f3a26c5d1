"""Resolves events that `ingestd events import` has read from files."""

from __future__ import annotations

from ingestd.api.events import Event, Session
from ingestd.api.imported import Imported
from ingestd.api.journal import IdempotencyKey
from ingestd.api.outcomes import Outcome
from ingestd.api.store import State
from ingestd.pipeline.resolver import Resolved, Resolver, message_key, repeated
from ingestd.support.ids import named_uuid

__all__ = ["ImportResolver"]


class ImportResolver(Resolver):
    """Keeps the user and the session of an event as the file has them, unless the import is to change state.

    A record has been enriched and filtered by its first daemon. A message has not, so these hooks are called for it.
    """

    async def resolve(self, event: Event, state: State) -> Resolved:
        imported = event.imported
        assert imported is not None
        life = 0 if event.message_id is None else _claim_life(event, imported)
        if event.message_id is not None and life:
            earlier = await self._journal.find_duplicate(message_key(event.tenant, event.message_id), state)
            if earlier is not None:
                return repeated(earlier)
        if imported.changes_state and event.has_visitor:
            await self._change_state(event, imported, state)
        # A repeated message is answered with a session, even if the file has none.
        session_id = event.session_id or named_uuid("imported session", event.tenant, event.id)
        session = Session(session_id, event.session_is_new)
        if self._hooks.alters_events and not imported.is_record:
            await self._hooks.enrich(event, state)
            if await self._hooks.filter_event(event) is not None:
                if imported.changes_state:
                    await self._hooks.event_dropped(event, state)
                return Resolved(Outcome.DROPPED, session)
        idempotency_key = None
        if event.message_id is not None and life:
            value = f"{session.session_id} {session.is_new:d}"
            idempotency_key = IdempotencyKey(message_key(event.tenant, event.message_id), value, life)
        return Resolved(Outcome.ACCEPTED, session, event.to_record(), idempotency_key)

    async def _change_state(self, event: Event, imported: Imported, state: State) -> None:
        hooks = self._hooks
        if event.user_id is None and event.type == "event" and not imported.is_record:
            event.user_id = await hooks.resolve_user(event, state)
        session = await hooks.resolve_session(event, state)
        if session is not None and event.session_id is None:
            event.session_id, event.session_is_new = session.session_id, session.is_new
        # The record of an event says by `linked` that it made a link.
        if event.type == "identify" or event.links or event.linked is not None:
            await hooks.store_identity(event, state)


def _claim_life(event: Event, imported: Imported) -> int:
    """Milliseconds for which a request with the event's message is a repetition.

    Clients no longer repeat the message of an old record. They may use its id again, and so may another record. The
    message of an event that is stored once more is known since the first time.
    """
    if imported.is_repeated:
        return 0
    age = event.received_at - imported.received_at if imported.is_record else 0
    return max(0, event.message_life - max(0, age))
