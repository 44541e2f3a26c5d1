"""Sessions: a visitor's activity until they have been idle for a while, by the time of receipt."""

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
"""Behind the id of a session that no record has told yet: the event that began it has been dropped."""


class SessionPlugin:
    """One entry a visitor: the id of the current session, which lives for `idle` after the last activity."""

    class Options(BaseOptions):
        idle: PositiveDuration = Duration.parse("30m")

    def __init__(self, options: Options) -> None:
        self._idle = options.idle.milliseconds
        self._unused: list[str] = []
        """Ids that were proposed to visitors whose session went on: a new one takes as long as to look that up."""

    @hookimpl
    def take_over(self) -> None:
        """All that is remembered is in the store."""

    @hookimpl
    async def resolve_session(self, event: Event, state: State) -> Session:
        key = state_key("session", event.tenant, event.anonymous_id)
        if event.session_id is None:
            proposed = self._propose(event)
            current, _ = await state.renew(key, proposed, self._idle)
            if current.endswith(_UNTOLD):
                session_id = current.removesuffix(_UNTOLD)
                # Of simultaneous events one tells it.
                return Session(session_id, is_new=await state.swap(key, current, session_id, self._idle))
            is_new = current == proposed
            if not is_new and event.message_id is None:
                self._unused.append(proposed)
            return Session(current, is_new)
        supplied = event.session_id.lower()
        if not event.endpoint.is_public:
            # A late payment callback must not replace the live session: it only keeps alive the current one.
            await state.swap(key, supplied, supplied, self._idle)
            return Session(supplied, is_new=False)
        return Session(supplied, is_new=await state.put(key, supplied, self._idle) != supplied)

    def _propose(self, event: Event) -> str:
        """The id of the session this event begins, if it begins one.

        Of copies of one message, the one that is stored need not be the one that came first, nor does the first that
        came need to have been stored at all. They propose the same, so whichever is stored tells that the session is
        new. An ended session is not proposed again: to end takes longer than a span.
        """
        if event.message_id is None:
            return self._unused.pop() if self._unused else random_uuid()
        span = event.received_at // self._idle
        return named_uuid("session", event.tenant, event.anonymous_id, event.message_id, str(span))

    @hookimpl
    async def event_dropped(self, event: Event, state: State) -> None:
        """Leave it to the next event of the session to tell that it is new."""
        if event.session_is_new and event.has_visitor and event.session_id is not None:
            key = state_key("session", event.tenant, event.anonymous_id)
            await state.swap(key, event.session_id, event.session_id + _UNTOLD, self._idle)

    @hookimpl
    async def forget_person(self, person: Person, state: State) -> Mapping[str, int]:
        sessions = 0
        # That of a shared device goes on: it is somebody else's now, and holds nothing but its own id.
        for key in person.visitor_keys("session"):
            sessions += await state.get(key) is not None
            await state.delete(key)  # also one that has ended and is still in the storage
        return {"sessions": sessions}
