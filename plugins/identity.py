"""Identity: which user a visitor is, and the traits of visitors and users."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta

from ingestd import hookimpl
from ingestd.events import Event
from ingestd.hookspecs import Daemon
from ingestd.options import Options as BaseOptions
from ingestd.options import PositiveSize, Size
from ingestd.person import Person, Visitors
from ingestd.store import State, Store, state_key
from ingestd.unusable_ids import UnusableIds

from .traits import TraitBounds, trait_fields

__all__ = ["IdentityPlugin", "anonymous_profile", "user_profile"]

_TAG = 32  # hexadecimal digits


class IdentityPlugin:
    class Options(BaseOptions):
        max_traits: Annotated[int, Meta(ge=1)] = 500
        max_traits_size: PositiveSize = Size.parse("64KiB")

    def __init__(self, options: Options | None = None) -> None:
        options = options or self.Options()
        self._unusable_ids = UnusableIds()
        self._traits = TraitBounds(options.max_traits, int(options.max_traits_size))

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        from prometheus_client import Counter  # here: commands, which count nothing, start sooner without it

        self._unusable_ids = daemon.unusable_ids
        self._traits.count_dropped = Counter(
            "ingestd_identity_traits_dropped", "Traits dropped from profiles that were full.", registry=daemon.registry
        ).inc

    @hookimpl
    def take_over(self, predecessor: IdentityPlugin) -> None:
        self._unusable_ids = predecessor._unusable_ids
        self._traits.count_dropped = predecessor._traits.count_dropped

    @hookimpl
    def check_identity(self, event: Event) -> None:
        self._traits.check(event.traits)

    @hookimpl
    async def resolve_user(self, event: Event, state: State) -> str | None:
        linked = await state.get(_link(event.tenant, event.anonymous_id))
        return None if linked is None else linked[_TAG:]

    @hookimpl
    async def store_identity(self, event: Event, state: State) -> None:
        anonymous = anonymous_profile(event.tenant, event.anonymous_id)
        user_id = event.user_id
        if user_id is None or user_id in self._unusable_ids:
            await self._traits.merge(state, anonymous, trait_fields(event.traits, state.now))
            return
        profile = user_profile(event.tenant, user_id)
        # The link comes first: of several simultaneous ones, exactly one finds that there was none.
        if await state.put(_link(event.tenant, event.anonymous_id), _linked(event.tenant, user_id)) is None:
            await self._traits.merge(state, profile, await state.fields(anonymous))
        await self._traits.merge(state, profile, trait_fields(event.traits, state.now))

    @hookimpl
    async def find_visitors(self, tenant: str, user_id: str, store: Store) -> Visitors:
        wanted = _linked(tenant, user_id)
        digests = [key.partition(":")[2] async for key, value in store.scan("link") if value == wanted]
        return Visitors(digests)

    @hookimpl
    async def forget_person(self, person: Person, state: State) -> Mapping[str, int]:
        links = profiles = 0
        for key in person.visitor_keys("link"):
            linked = await state.get(key)
            # A user's visitor may have become another's since it was found.
            if linked is not None and person.user_id in {None, linked[_TAG:]}:
                await state.delete(key)
                links += 1
        own = person.user_key("user-profile")
        for key in (*person.visitor_keys("anonymous-profile", former=True), *([] if own is None else [own])):
            if await state.fields(key):
                await state.delete(key)
                profiles += 1
        return {"links": links, "profiles": profiles}


def anonymous_profile(tenant: str, anonymous_id: str) -> str:
    """The state key of a visitor's own traits: a field each, its value JSON."""
    return state_key("anonymous-profile", tenant, anonymous_id)


def user_profile(tenant: str, user_id: str) -> str:
    """The state key of a user's traits: a field each, its value JSON."""
    return state_key("user-profile", tenant, user_id)


def _link(tenant: str, anonymous_id: str) -> str:
    return state_key("link", tenant, anonymous_id)


def _linked(tenant: str, user_id: str) -> str:
    """What a link holds: the user's id, behind a digest of the tenant, since keys do not tell whose they are."""
    return _digest(tenant) + user_id


@lru_cache(maxsize=1024)
def _digest(tenant: str) -> str:
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=_TAG // 2).hexdigest()
