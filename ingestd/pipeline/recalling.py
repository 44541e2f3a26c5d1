"""Resolves an event from the daemon's memory of its visitor: one trip to a distant store instead of two."""

from __future__ import annotations

import msgspec

from ingestd.api.errors import WriteConflict
from ingestd.api.events import Event
from ingestd.api.journal import Journal
from ingestd.api.store import State
from ingestd.hooks.caller import Hooks

from .resolver import Resolved, Resolver

__all__ = ["Recalled", "Recaller"]


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """The result of an event if memory is right. `Journal.append` finds out whether it is.

    Until then the event's data and context are in its record alone. They are larger than everything else of the event,
    and memory that is freed at once leaves its place in the processor's cache to the next event.
    """

    resolved: Resolved
    state: State
    user_id: str | None
    session_id: str | None

    def undo(self, event: Event) -> None:
        """Restore the event as it was parsed."""
        _restore(event, self.user_id, self.session_id)
        assert self.resolved.record is not None
        said = self.resolved.record.decode()
        event.data, event.context, event.extra = said["data"], said["context"], said["extra"]


class Recaller:
    """Resolves events from memory. `works` says whether this is possible for any event.

    It is not where plugins enrich or filter events. If memory was wrong, an event is resolved again, and these hooks
    must not be called twice for one event. Identify requests are excluded, because they change what is remembered.
    """

    def __init__(self, hooks: Hooks, resolver: Resolver, journal: Journal) -> None:
        self.works = not hooks.alters_events and journal.recall(0) is not None
        self._resolver = resolver
        self._journal = journal

    async def recall(self, event: Event) -> Recalled | None:
        """Resolve an event; None if memory lacks something. Raises `Refused`, and any error of a plugin."""
        if event.type != "event":
            return None
        state = self._journal.recall(event.received_at)
        if state is None:
            return None
        user_id, session_id = event.user_id, event.session_id
        try:
            resolved = await self._resolver.recall(event, state)
        except WriteConflict:
            _restore(event, user_id, session_id)
            return None
        except Exception:
            _restore(event, user_id, session_id)
            raise
        event.data = event.context = event.extra = {}
        return Recalled(resolved, state, user_id, session_id)


def _restore(event: Event, user_id: str | None, session_id: str | None) -> None:
    event.user_id, event.session_id, event.session_is_new = user_id, session_id, False
