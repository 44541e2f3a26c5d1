"""Store the link (`event.user_id`) and `event.traits` of an identify request, or the link alone (`event.links`).
`event.user_id in daemon.unusable_ids` (from `startup`) tells whether the user id is unusable. If no plugin sets
`event.linked`, every identify request with a usable user id counts as a link.
"""

from ingestd.api import hookimpl
from ingestd.api.events import Event
from ingestd.api.store import State, state_key


@hookimpl
async def store_identity(event: Event, state: State) -> None:
    """Remember which e-mail address belongs to whom, for a year."""
    email = event.traits.get("email")
    if isinstance(email, str) and event.user_id is not None:
        key = state_key("user-of-email", event.tenant, email.casefold())
        await state.put(key, event.user_id, ttl=365 * 86_400_000)
