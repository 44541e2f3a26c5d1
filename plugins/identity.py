"""Identity: which user a visitor is, and the traits of visitors and users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from prometheus_client import Counter

from ingestd import hookimpl
from ingestd.events import Event
from ingestd.hookspecs import Daemon
from ingestd.options import Options as BaseOptions
from ingestd.store import Field, State, state_key

__all__ = ["IdentityPlugin", "anonymous_profile", "user_profile"]


class IdentityPlugin:
    class Options(BaseOptions):
        no_user: tuple[str, ...] = (
            "null",
            "undefined",
            "guest",
            "anonymous",
            "0",
            "00000000-0000-0000-0000-000000000000",
        )

    def __init__(self, options: Options) -> None:
        # Blank is no user whatever the list says: an empty userId means none.
        self._no_user = {"", *map(_plain, options.no_user)}
        self._no_user_total = Counter(
            "ingestd_identity_no_user", "Identify requests whose userId stands for no user", registry=None
        )

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        daemon.registry.register(self._no_user_total)

    @hookimpl
    async def resolve_user(self, event: Event, state: State) -> str | None:
        return await state.get(_link(event.tenant, event.anonymous_id))

    @hookimpl
    async def store_identity(self, event: Event, state: State) -> None:
        anonymous = anonymous_profile(event.tenant, event.anonymous_id)
        user_id = event.user_id
        if user_id is not None and _plain(user_id) in self._no_user:
            self._no_user_total.inc()
            user_id = None
        if user_id is None:
            await _set_traits(state, anonymous, event.traits)
            return
        profile = user_profile(event.tenant, user_id)
        # The link comes first: of several simultaneous ones, exactly one finds that there was none.
        if await state.put(_link(event.tenant, event.anonymous_id), user_id) is None:
            known = await state.fields(anonymous)
            if known:
                await state.merge(profile, known)
        await _set_traits(state, profile, event.traits)


def anonymous_profile(tenant: str, anonymous_id: str) -> str:
    """The state key of a visitor's own traits: a field each, its value JSON."""
    return state_key("anonymous-profile", tenant, anonymous_id)


def user_profile(tenant: str, user_id: str) -> str:
    """The state key of a user's traits: a field each, its value JSON."""
    return state_key("user-profile", tenant, user_id)


def _link(tenant: str, anonymous_id: str) -> str:
    return state_key("link", tenant, anonymous_id)


def _plain(user_id: str) -> str:
    return user_id.strip().casefold()


async def _set_traits(state: State, profile: str, traits: Mapping[str, Any]) -> None:
    if traits:
        fields = {name: Field(state.now, msgspec.json.encode(value).decode()) for name, value in traits.items()}
        await state.merge(profile, fields)
