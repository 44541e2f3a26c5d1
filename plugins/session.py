"""Sessions: events of one visitor without a long pause between them. The times of receipt decide."""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.api import hookimpl
from ingestd.api.events import Event, Session
from ingestd.api.ids import named_uuid, random_uuid
from ingestd.api.options import Duration, PositiveDuration
from ingestd.api.options import Options as BaseOptions
from ingestd.api.privacy import Person
from ingestd.api.store import State, state_key

__all__ = ["SessionPlugin"]


_UNTOLD = " untold"
"""A mark after the id of a session that no record has announced yet, because its first event was dropped."""


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
        return {"sessions": sessions}
