"""Sessions: events of one visitor without a long pause between them. The times of receipt decide."""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.api import hookimpl
from ingestd.api.events import Event, Session
from ingestd.api.options import Duration, PositiveDuration
from ingestd.api.options import Options as BaseOptions
from ingestd.api.privacy import Person
from ingestd.api.store import State, state_key
from ingestd.support.ids import named_uuid, random_uuid

__all__ = ["SessionPlugin"]


_UNTOLD = " untold"
"""A mark after the id of a session that no record has announced yet, because its first event was dropped."""


_IMPORTED = "imported-session"
"""The kind of the entries for events from files."""
_IMPORT_LIFE = 7 * 86_400_000  # milliseconds after which a file does not go on with the session of an earlier one


class SessionPlugin:
    """Keeps one entry for each visitor: the id of the current session. It lives for `idle` after the last event."""

    class Options(BaseOptions):
        idle: PositiveDuration = Duration.parse("30m")

    def __init__(self, options: Options) -> None:
        self._idle = options.idle.milliseconds
        self._unused: list[str] = []
        """Ids that were proposed but not used. A new id would take as long as the lookup of the session."""

    @hookimpl
    def take_over(self) -> None:
        """Nothing to take over: the store keeps all sessions."""

    @hookimpl
    async def resolve_session(self, event: Event, state: State) -> Session:
        key = state_key("session", event.tenant, event.anonymous_id)
        if event.imported is not None:
            return await self._resolve_imported(event, key, state)
        if event.session_id is None:
            proposed = self._propose(event)
            current, _ = await state.renew(key, proposed, self._idle)
            if current.endswith(_UNTOLD):
                session_id = current.removesuffix(_UNTOLD)
                # Of simultaneous events, only one says that the session is new.
                return Session(session_id, is_new=await state.swap(key, current, session_id, self._idle))
            is_new = current == proposed
            if not is_new and event.message_id is None:
                self._unused.append(proposed)
            return Session(current, is_new)
        supplied = event.session_id.lower()
        if not event.endpoint.is_public:
            # A late payment callback must not replace the current session. It only extends that session's life.
            await state.swap(key, supplied, supplied, self._idle)
            return Session(supplied, is_new=False)
        return Session(supplied, is_new=await state.put(key, supplied, self._idle) != supplied)

    async def _resolve_imported(self, event: Event, key: str, state: State) -> Session:
        """The session of an event from a file, by the time of the event.

        These events have a separate entry with the id and the last activity. So old events change no present session.
        """
        own_key, at = state_key(_IMPORTED, event.tenant, event.anonymous_id), event.timestamp
        session_id, _, last = (await state.get(own_key) or " 0").partition(" ")
        is_new = event.session_id is None and abs(at - int(last)) > self._idle
        if event.session_id is not None:
            session_id = event.session_id
        elif is_new:
            session_id = named_uuid("session", event.tenant, event.anonymous_id, event.id)
        if at < int(last) and is_new:
            return Session(session_id, is_new)  # an event out of order, which does not end the later session
        await state.put(own_key, f"{session_id} {max(at, int(last))}", _IMPORT_LIFE)
        left = at + self._idle - state.now
        if left >= 0:  # the visitor may be active now
            await state.swap(key, None, session_id, left)
        return Session(session_id, is_new)

    def _propose(self, event: Event) -> str:
        """The id for a session that this event may begin.

        Any copy of a message may be the stored one, whatever copy came first. All copies propose the same id, so the
        stored one says that the session is new. The id of an ended session is not proposed again, because a session
        ends after more than one span.
        """
        if event.message_id is None:
            return self._unused.pop() if self._unused else random_uuid()
        span = event.received_at // self._idle
        return named_uuid("session", event.tenant, event.anonymous_id, event.message_id, str(span))

    @hookimpl
    async def event_dropped(self, event: Event, state: State) -> None:
        """Let the next event of the session say that the session is new."""
        if event.session_is_new and event.has_visitor and event.session_id is not None:
            key = state_key("session", event.tenant, event.anonymous_id)
            await state.swap(key, event.session_id, event.session_id + _UNTOLD, self._idle)

    @hookimpl
    async def forget_person(self, person: Person, state: State) -> Mapping[str, int]:
        sessions = 0
        # The session of a shared device continues. It belongs to another person now, and holds only its id.
        for key in person.visitor_keys("session"):
            sessions += await state.get(key) is not None
            await state.delete(key)  # an ended session too, which may still be in the storage
        for key in person.visitor_keys(_IMPORTED):
            await state.delete(key)
        return {"sessions": sessions}
