"""Sessions: a visitor's activity until they have been idle for a while, by the time of receipt."""

from __future__ import annotations

from collections.abc import Mapping

from ingestd import hookimpl
from ingestd.events import Endpoint, Event, Session
from ingestd.ids import random_uuid
from ingestd.options import Duration, PositiveDuration
from ingestd.options import Options as BaseOptions
from ingestd.person import Person
from ingestd.store import State, state_key

__all__ = ["SessionPlugin"]


class SessionPlugin:
    """One entry a visitor: the id of the current session, which lives for `idle` after the last activity."""

    class Options(BaseOptions):
        idle: PositiveDuration = Duration.parse("30m")

    def __init__(self, options: Options) -> None:
        self._idle = options.idle.milliseconds

    @hookimpl
    async def resolve_session(self, event: Event, state: State) -> Session:
        key = state_key("session", event.tenant, event.anonymous_id)
        if event.session_id is None:
            return Session(*await state.renew(key, random_uuid(), self._idle))
        supplied = event.session_id.lower()
        if event.endpoint is Endpoint.CUSTOMER_EVENTS:
            # A late payment callback must not replace the live session: it only keeps alive the current one.
            await state.swap(key, supplied, supplied, self._idle)
            return Session(supplied, is_new=False)
        return Session(supplied, is_new=await state.put(key, supplied, self._idle) != supplied)

    @hookimpl
    async def forget_person(self, person: Person, state: State) -> Mapping[str, int]:
        sessions = 0
        # That of a shared device goes on: it is somebody else's now, and holds nothing but its own id.
        for key in person.visitor_keys("session"):
            sessions += await state.get(key) is not None
            await state.delete(key)  # also one that has ended and is still in the storage
        return {"sessions": sessions}
