"""How long links and profiles live, and an end for those that an earlier version has stored without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ingestd.api import times
from ingestd.api.errors import Unavailable, WriteConflict
from ingestd.api.store import Store, state_key

__all__ = ["end_former_entries", "link_life", "user_life", "visitor_life"]

_DAY = 86_400_000
_VISITOR = 90 * _DAY
"""After the last trait of a visitor without a link."""
_USER = 400 * _DAY
"""After the last use of a link, and the last trait of a user. Browsers keep no cookie for longer."""
_AGAIN = 30.0  # seconds after a failure
_MARK = state_key("state-ends", "", "")


def visitor_life(profile: str, now: int) -> int:
    """The life of a visitor's profile from now on, in milliseconds."""
    return _life(profile, now, _VISITOR, _DAY)


def user_life(profile: str, now: int) -> int:
    """The life of a user's profile from now on, in milliseconds."""
    return _life(profile, now, _USER, _DAY)


def link_life(link: str, now: int) -> int:
    """The life of a link from now on, in milliseconds."""
    return _life(link, now, _USER, 30 * _DAY)


def _life(key: str, now: int, life: int, step: int) -> int:
    """That life, or up to a step longer. The end moves once in a step, so that most uses write nothing.

    The ends of different keys are spread over the step, because stores remove what has ended.
    """
    offset = int(key[-8:], 16) % step
    return ((now + life - offset) // step + 1) * step + offset - now


async def end_former_entries(store: Store) -> None:
    """Give links and visitors' profiles without an end one, in all partitions. Never returns."""
    await asyncio.gather(*map(_end_in, store.parts))
    await asyncio.Event().wait()


async def _end_in(store: Store) -> None:
    while not await _have_ends(store, times.now()):  # noqa: ASYNC110 - a store says to nobody that it is back
        await asyncio.sleep(_AGAIN)


async def _have_ends(store: Store, now: int) -> bool:
    """Whether all entries of a store have ends now."""

    def end(life: Callable[[str, int], int]) -> Callable[[str], int]:
        return lambda key: now + life(key, now)

    state = store.begin(now)
    try:
        if await state.get(_MARK) is None:
            await store.set_ends("anonymous-profile", end(visitor_life))
            for kind in ("link", "attribution-link"):
                await store.set_ends(kind, end(link_life))
            await state.put(_MARK, "1")
            await store.commit(state)
    except (Unavailable, WriteConflict):  # the back end reports it
        store.discard(state)
        return False
    return True
