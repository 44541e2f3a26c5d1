"""Identity: links between visitors and users, and the traits of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta

from ingestd.api import hookimpl
from ingestd.api.check_result import CheckResult
from ingestd.api.errors import BadRequest
from ingestd.api.events import Event
from ingestd.api.hookspecs import Daemon
from ingestd.api.options import Options as BaseOptions
from ingestd.api.privacy import Person, Visitors
from ingestd.api.store import Field, State, Store, key_digest, kind_of_tenant, state_key, tenant_digest
from ingestd.support.unusable_ids import UnusableIds

from .auth.key_registry import has_server_keys
from .lives import end_former_entries, link_life, user_life, visitor_life

__all__ = ["IdentityPlugin", "TraitBounds", "anonymous_profile", "trait_fields", "user_profile"]

_TAG = 32  # hexadecimal digits
_DAY = 86_400_000
_MONTH = 30 * _DAY
_VISITORS, _USERS = 0.5, 0.75
"""Shares of `[store] max_size` beyond which traits by public keys are not kept: those of visitors, and of users."""
_BESIDE_TRAIT = 150  # bytes that a store needs beside a name and a value
_MOST_COPIED = 2048  # bytes of a visitor's traits that are copied to its first user; more are moved

_CHANGES, _GATHERED = "link-changes", "user-new-visitors"
"""Kinds of entries: the times at which a visitor changed users, and the visitors newly linked to a user."""

_IMPORTED = "imported-link"
"""The kind of entries with the links that imports have made. Only these links does a later line of a file replace."""

_Count = Annotated[int, Meta(ge=1)]
_MOST_TRAITS, _MOST_BYTES = 500, 64 << 10  # of a profile; the bytes of their names and JSON values
_LONGEST = 512  # bytes of a linked user id in JSON: each event of the visitor carries it, and the cache keeps it
_Reason = Literal["unsigned", "max_links", "max_visitors", "long_user_id"]
_REASONS: tuple[_Reason, ...] = ("unsigned", "max_links", "max_visitors", "long_user_id")


class IdentityPlugin:
    """Makes links and keeps traits.

    A signed request makes its link unless the user id is too long. A link by a public key can also be forbidden
    (`links`) or exceed a limit (`max_links`, `max_visitors`).
    """

    class Options(BaseOptions):
        links: Literal["any", "signed"] = "any"
        max_links: _Count = 10
        max_visitors: _Count = 100
        former: ClassVar[Mapping[str, str]] = {
            "no_user": "it is ids.unusable now",
            "max_traits": f"it is always {_MOST_TRAITS} now",
            "max_traits_size": "it is always 64 KiB now",
        }

    def __init__(self, options: Options, *, most_traits: int = _MOST_TRAITS, most_bytes: int = _MOST_BYTES) -> None:
        self._options = options
        self._unusable_ids = UnusableIds()
        self._traits = TraitBounds(most_traits, most_bytes)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock for each visitor and each user whose link is being made."""
        self._refused: Mapping[_Reason, Callable[[], None]] = dict.fromkeys(_REASONS, lambda: None)
        self._daemon: Daemon | None = None
        """None in a command, whose traits are the operator's."""

    @hookimpl
    def startup(self, daemon: Daemon) -> None:
        from prometheus_client import Counter  # here, so that commands, which count nothing, start sooner

        self._daemon = daemon
        self._unusable_ids = daemon.unusable_ids
        self._traits.count_dropped = Counter(
            "ingestd_identity_traits_dropped", "Traits dropped from profiles that were full.", registry=daemon.registry
        ).inc
        self._traits.count_refused = Counter(
            "ingestd_identity_traits_refused",
            "Traits by public keys that were not kept, because all profiles together were at their bound.",
            registry=daemon.registry,
        ).inc
        refused = Counter(
            "ingestd_identity_links_refused", "Links that were not made, by reason.", ["reason"],
            registry=daemon.registry,
        )  # fmt: skip
        self._refused = {reason: refused.labels(reason).inc for reason in _REASONS}
        daemon.watch(end_former_entries(daemon.store), name="identity: ends")

    @hookimpl
    def take_over(self, predecessor: IdentityPlugin) -> None:
        self._daemon = predecessor._daemon
        self._unusable_ids = predecessor._unusable_ids
        self._traits.count_dropped = predecessor._traits.count_dropped
        self._traits.count_refused = predecessor._traits.count_refused
        self._locks = predecessor._locks
        self._refused = predecessor._refused

    @hookimpl
    def check_identity(self, event: Event) -> None:
        self._traits.check(event.traits)

    @hookimpl
    async def resolve_user(self, event: Event, state: State) -> str | None:
        key = _link(event.tenant, event.anonymous_id)
        linked = await state.get(key)
        if linked is None:
            return None
        await state.swap(key, linked, linked, link_life(key, state.now))
        return linked[_TAG:]

    @hookimpl
    async def store_identity(self, event: Event, state: State) -> None:
        if event.imported is not None:
            await self._store_imported(event, event.imported.received_at, state)
            return
        user_id, fields = event.user_id, trait_fields(event.traits, state.now)
        event.linked = False
        if user_id is None or user_id in self._unusable_ids:
            await self._add_to_visitor(event, fields, state)
            return
        is_first, reason = await self._make_link(event, user_id, state)
        if reason is not None:
            state.on_commit(self._refused[reason])
            await self._add_to_visitor(event, fields, state)
            return
        event.linked = True
        if is_first:
            await self._copy_to_user(event, user_id, state)
        await self._add_to_user(event, user_id, fields, state)

    async def _add_to_visitor(self, event: Event, fields: Mapping[str, Field], state: State) -> None:
        profile = anonymous_profile(event.tenant, event.anonymous_id)
        if self._has_room(event, fields, _VISITORS, state):
            await self._traits.merge(state, profile, fields, visitor_life(profile, state.now))

    async def _copy_to_user(self, event: Event, user_id: str, state: State) -> None:
        """Copy the traits of the visitor, unless there is no room. Large ones are moved: a link pays for no more."""
        profile = anonymous_profile(event.tenant, event.anonymous_id)
        fields = await state.fields(profile)
        if fields and await self._add_to_user(event, user_id, fields, state) and _size(fields) > _MOST_COPIED:
            await state.delete(profile)

    async def _add_to_user(self, event: Event, user_id: str, fields: Mapping[str, Field], state: State) -> bool:
        """Add traits to the profile of a user. Returns whether there was room."""
        profile = user_profile(event.tenant, user_id)
        has_room = self._has_room(event, fields, _USERS, state)
        if has_room:
            # Anybody can invent a user with a public key. A backend vouches for its users.
            life = None if event.signed else user_life(profile, state.now)
            await self._traits.merge(state, profile, fields, life)
        return has_room

    def _has_room(self, event: Event, fields: Mapping[str, Field], share: float, state: State) -> bool:
        """Whether profiles use less than a share of `[store] max_size`, or a backend vouches for the traits."""
        if not fields or self._daemon is None:
            return True
        store = self._daemon.of_tenant(event.tenant).store
        if not event.signed and store.field_bytes >= share * store.max_size:
            state.on_commit(partial(self._traits.count_refused, len(fields)))
            return False
        store.field_bytes += _size(fields)
        return True

    async def _store_imported(self, event: Event, at: int, state: State) -> None:
        """Store the link and the traits of an event from a file, by the time of its first receipt.

        Later links of the files replace earlier ones. A link that was not made by an import stays, since it is newer.
        The first daemon has refused links beyond the limits, and its record says so.
        """
        user_id, fields = event.user_id, trait_fields(event.traits, at)
        is_linked = await self._link_imported(event, user_id, state) if event.linked is not False else False
        event.linked = is_linked
        if not is_linked or user_id is None:
            await self._add_to_visitor(event, fields, state)
            return
        await self._add_to_user(event, user_id, fields, state)

    async def _link_imported(self, event: Event, user_id: str | None, state: State) -> bool:
        if user_id is None or user_id in self._unusable_ids or _is_long(user_id):
            return False
        if self._options.links == "signed" and not event.signed:
            return False
        key, wanted = _link(event.tenant, event.anonymous_id), _linked(event.tenant, user_id)
        own_key = state_key(_IMPORTED, event.tenant, event.anonymous_id)
        before = await state.get(key)
        if before is not None and before not in {wanted, await state.get(own_key)}:
            return False
        await state.put(key, wanted, link_life(key, state.now))
        await state.put(own_key, wanted, _MONTH)
        if before is None:
            await self._copy_to_user(event, user_id, state)
        return True

    async def _make_link(self, event: Event, user_id: str, state: State) -> tuple[bool, _Reason | None]:
        """Link the visitor. Returns whether this is the visitor's first link, and the reason if no link was made.

        Of several simultaneous first links, exactly one is the first.
        """
        key, wanted = _link(event.tenant, event.anonymous_id), _linked(event.tenant, user_id)
        if _is_long(user_id):
            return False, "long_user_id"
        life = link_life(key, state.now)
        if event.signed:
            return await state.put(key, wanted, life) is None, None
        if self._options.links == "signed":
            return False, "unsigned"
        gathered = state_key(_GATHERED, event.tenant, user_id)
        await state.load(keys=[key], sets=[gathered])
        if await state.swap(key, wanted, wanted, life):
            return False, None
        # Requests of one visitor or for one user wait for each other. Otherwise some could pass beyond the limits.
        async with self._lock(key), self._lock(gathered):
            return await self._make_public_link(event, key, wanted, gathered, state)

    async def _make_public_link(
        self, event: Event, key: str, wanted: str, gathered: str, state: State
    ) -> tuple[bool, _Reason | None]:
        options, now = self._options, state.now
        changes = state_key(_CHANGES, event.tenant, event.anonymous_id)
        digest = key_digest(event.tenant, event.anonymous_id)
        while True:
            before = await state.get(key)
            if before == wanted:
                return False, None
            if before is not None and len(await state.window(changes, now - _DAY)) >= options.max_links:
                return False, "max_links"
            visitors = await state.window(gathered, now - _MONTH)
            if len(visitors) >= options.max_visitors and digest not in {each for each, _ in visitors}:
                return False, "max_visitors"
            if await state.swap(key, before, wanted, link_life(key, now)):
                break
        if before is not None:
            await state.push(changes, event.id, now, keep=options.max_links, since=now - _DAY, ttl=_DAY)
        await state.push(gathered, digest, now, keep=options.max_visitors, since=now - _MONTH, ttl=_MONTH)
        return before is None, None

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    @hookimpl
    async def advise(self, store: Store) -> Sequence[CheckResult]:
        if self._options.links == "signed" or not await has_server_keys(store):
            return []
        text = (
            'links = "any": anybody can link a visitor to any user with the public key. There is a server key, so'
            ' if the backend identifies users, set plugins.identity.links = "signed" (docs/trust.md)'
        )
        return [CheckResult("identity.links", text)]

    @hookimpl
    async def find_visitors(self, tenant: str, user_id: str, store: Store) -> Visitors:
        wanted = _linked(tenant, user_id)
        beginning = f"{kind_of_tenant('link', tenant)}:"
        found = [key async for key, value in store.scan("link") if value == wanted and key.startswith(beginning)]
        return Visitors([key.partition(":")[2] for key in found])

    @hookimpl
    async def forget_person(self, person: Person, state: State) -> Mapping[str, int]:
        links = profiles = 0
        for key in person.visitor_keys("link"):
            linked = await state.get(key)
            # The visitor may have become another user's since `find_visitors` found it.
            if linked is not None and person.user_id in {None, linked[_TAG:]}:
                await state.delete(key)
                await state.pull(state_key(_GATHERED, person.tenant, linked[_TAG:]), [key.partition(":")[2]])
                links += 1
        for kind in (_CHANGES, _IMPORTED):
            for key in person.visitor_keys(kind):
                await state.delete(key)
        gathered = person.user_key(_GATHERED)
        if gathered is not None:
            await state.delete(gathered)
        own = person.user_key("user-profile")
        for key in (*person.visitor_keys("anonymous-profile", former=True), *([] if own is None else [own])):
            if await state.fields(key):
                await state.delete(key)
                profiles += 1
        return {"links": links, "profiles": profiles}


def _size(fields: Mapping[str, Field]) -> int:
    """The bytes that a store needs for these traits."""
    return sum([len(name) + len(field.value) + _BESIDE_TRAIT for name, field in fields.items()])


def _is_long(user_id: str) -> bool:
    return len(user_id) > _LONGEST or len(msgspec.json.encode(user_id)) - 2 > _LONGEST


def anonymous_profile(tenant: str, anonymous_id: str) -> str:
    """The state key of a visitor's own traits. Each trait is a field with a JSON value."""
    return state_key("anonymous-profile", tenant, anonymous_id)


def user_profile(tenant: str, user_id: str) -> str:
    """The state key of a user's traits. Each trait is a field with a JSON value."""
    return state_key("user-profile", tenant, user_id)


def _link(tenant: str, anonymous_id: str) -> str:
    return state_key("link", tenant, anonymous_id)


def _linked(tenant: str, user_id: str) -> str:
    """The value of a link: a digest of the tenant, then the user's id. The key of a link does not tell its tenant."""
    return tenant_digest(tenant) + user_id


class TraitBounds:
    """At most `traits` traits, and at most `size` bytes of names and JSON values."""

    def __init__(self, traits: int, size: int) -> None:
        self._traits = traits
        self._size = size
        self.count_dropped: Callable[[int], None] = lambda number: None
        self.count_refused: Callable[[int], None] = lambda number: None

    def check(self, traits: Mapping[str, Any]) -> None:
        """Raises `BadRequest` if a profile cannot keep so many or so large traits."""
        if len(traits) > self._traits:
            raise BadRequest.of_member(
                "/traits", f"expected at most {self._traits} traits, got {len(traits)}", "maxProperties"
            )
        size = sum([len(name.encode()) + len(msgspec.json.encode(value)) for name, value in traits.items()])
        if size > self._size:
            raise BadRequest.of_member(
                "/traits", f"expected at most {self._size} bytes of names and values, got {size}", "size"
            )

    async def merge(self, state: State, profile: str, fields: Mapping[str, Field], ttl: int | None) -> None:
        """Add traits to a profile, which then lives `ttl`. Beyond the bounds, its oldest traits are dropped."""
        if fields:
            dropped = await state.merge(profile, fields, keep=self._traits, keep_size=self._size, ttl=ttl)
            if dropped:
                state.on_commit(partial(self.count_dropped, dropped))


def trait_fields(traits: Mapping[str, Any], at: int) -> dict[str, Field]:
    """The fields of a profile for these traits. Each value is JSON."""
    return {name: Field(at, msgspec.json.encode(value).decode()) for name, value in traits.items()}
