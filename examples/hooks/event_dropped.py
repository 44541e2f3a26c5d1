"""Undoing must do no harm to other events, which may have seen the changes."""

from ingestd.api import hookimpl
from ingestd.api.events import Event
from ingestd.api.store import State, state_key


@hookimpl
async def event_dropped(event: Event, state: State) -> None:
    """The greeting is for the first event that is stored."""
    if event.session_is_new:
        await state.delete(state_key("shop-tools-greeted", event.tenant, event.anonymous_id))
