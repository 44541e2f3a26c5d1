"""What attribution remembers of a person goes with them."""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.person import Person
from ingestd.store import State

from .journeys import LINK, TOUCHES, VISITORS, WITHOUT

__all__ = ["forget"]


async def forget(person: Person, state: State) -> Mapping[str, int]:
    """Delete the touchpoints and links of a user's own visitors, or of a visitor alone; returns how many."""
    touches = links = 0
    for kind in (TOUCHES, WITHOUT):
        for key in person.visitor_keys(kind):
            touches += len(await state.window(key))
            await state.delete(key)
    for key in person.visitor_keys(LINK):
        links += await state.get(key) is not None
        await state.delete(key)
    visitors = person.user_key(VISITORS)
    if visitors is not None:
        await state.delete(visitors)
    return {"touches": touches, "journey links": links}
