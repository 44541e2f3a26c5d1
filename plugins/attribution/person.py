"""Deletes the state of attribution about a person who is to be forgotten."""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.api.privacy import Person
from ingestd.api.store import State, key_digest, state_key

from .journeys import LINK, TOUCHES, VISITORS, WITHOUT, linked_user
from .packing import read_touches
from .people import CREDITED, USER, VISITOR

__all__ = ["forget"]


async def forget(person: Person, state: State) -> Mapping[str, int]:
    """Delete the touchpoints, links and ids of a user's visitors, or of a single visitor. Returns their numbers."""
    touches = links = ids = 0
    for key in person.visitor_keys(TOUCHES):
        touches += len(await read_touches(state, key))
        await state.delete(key)
    for key in person.visitor_keys(WITHOUT):
        touches += len(await state.window(key))
        await state.delete(key)
    for key in person.visitor_keys(CREDITED):
        await state.delete(key)
    user = person.user_key(USER)
    for key in (*person.visitor_keys(VISITOR), *([] if user is None else [user])):
        ids += await state.get(key) is not None
        await state.delete(key)
    digests = {*person.visitors}
    for key in person.visitor_keys(LINK):
        user = await state.get(key)
        if user is None:
            continue
        links += 1
        await state.delete(key)
        # A single visitor is removed from its user, who stays. The set holds visitors by name, not by digest.
        visitors = state_key(VISITORS, person.tenant, linked_user(user))
        names = [name for name, _ in await state.window(visitors) if key_digest(person.tenant, name) in digests]
        await state.pull(visitors, names)
    own = person.user_key(VISITORS)
    if own is not None:
        await state.delete(own)
    return {"touches": touches, "journey links": links, "ids of orders": ids}
