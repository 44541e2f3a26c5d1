"""Links and profiles on the real SQLite back end, compared with a model of the contract."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.events import Endpoint, Event
from ingestd.ids import time_uuid
from ingestd.plugins.identity import IdentityPlugin, anonymous_profile, user_profile
from ingestd.store import Store
from ingestd.unusable_ids import UnusableIds
from tests.support.backends import sqlite_backend, sqlite_daemon

START = 4_000_000_000_000

Who = tuple[str, str]  # a tenant, and a visitor or a user of it
Traits = dict[str, tuple[int, Any]]  # when each was received, and its value


def request(visitor: Who, user: str | None = None, traits: dict[str, Any] | None = None) -> Event:
    """An identify request, or without traits an event: what the plugin looks at is the same."""
    return Event(
        id=time_uuid(),
        type="event" if traits is None else "identify",
        tenant=visitor[0],
        endpoint=Endpoint.TRACK if traits is None else Endpoint.IDENTIFY,
        received_at=START,
        timestamp=START,
        key="Page View" if traits is None else None,
        data={},
        traits=traits or {},
        anonymous_id=visitor[1],
        user_id=user,
        session_id=None,
        session_is_new=False,
        dispatch_id=None,
        message_id=None,
        context={},
        extra={},
    )


class Identity:
    """The plugin on a store, a unit of work a call."""

    def __init__(self, store: Store, plugin: IdentityPlugin | None = None) -> None:
        self._store = store
        self._plugin = plugin or IdentityPlugin(IdentityPlugin.Options())

    async def identify(self, now: int, visitor: Who, user: str | None, traits: dict[str, Any]) -> None:
        state = self._store.begin(now)
        event = request(visitor, user, traits)
        await self._plugin.store_identity(event, state)
        await self._store.commit(state)
        assert (event.user_id, event.traits) == (user, traits)  # the record keeps what the caller sent

    async def user_of(self, visitor: Who) -> str | None:
        return await self._plugin.resolve_user(request(visitor), self._store.begin(START))

    async def traits_of_visitor(self, visitor: Who) -> Traits:
        return await self._traits(anonymous_profile(*visitor))

    async def traits_of_user(self, user: Who) -> Traits:
        return await self._traits(user_profile(*user))

    async def _traits(self, key: str) -> Traits:
        fields = await self._store.begin(START).fields(key)
        return {name: (field.at, json.loads(field.value)) for name, field in fields.items()}


class Identify(NamedTuple):
    """One identify request, `pause` milliseconds after the one before it (or before: clocks are set back)."""

    pause: int
    visitor: Who
    user: str | None
    traits: dict[str, Any]


class Model:
    """The contract in plain Python."""

    def __init__(self) -> None:
        self.links: dict[Who, str] = {}
        self.visitors: dict[Who, Traits] = {}
        self.users: dict[Who, Traits] = {}

    def identify(self, now: int, step: Identify) -> None:
        tenant, _ = step.visitor
        own = {name: (now, value) for name, value in step.traits.items()}
        anonymous = self.visitors.setdefault(step.visitor, {})
        if step.user is None or step.user.strip().lower() in {"", "guest", "null", "0"}:
            _merge(anonymous, own)
            return
        profile = self.users.setdefault((tenant, step.user), {})
        if step.visitor not in self.links:
            _merge(profile, anonymous)
        self.links[step.visitor] = step.user
        _merge(profile, own)


def _merge(profile: Traits, traits: Traits) -> None:
    for name, (at, value) in traits.items():
        if name not in profile or profile[name][0] <= at:
            profile[name] = at, value


VISITORS = [("shop", "v"), ("shop", "w"), ("shop", "x"), ("other", "v")]
USERS = ["ann", "bob", "v"]
identifies = st.builds(
    Identify,
    pause=st.sampled_from([0, 0, 1, 1000, -1, -5000, 86_400_000]),
    visitor=st.sampled_from(VISITORS),
    user=st.sampled_from([None, None, *USERS, *USERS, "guest", " GUEST", "Null", "0", " "]),
    traits=st.dictionaries(
        st.sampled_from(["email", "plan", "age", ""]),
        st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text(max_size=3), st.lists(st.text(max_size=2))),
        max_size=3,
    ),
)
step = st.one_of(identifies, identifies, identifies, identifies, st.just("reopen"))
steps = st.one_of(st.lists(step, max_size=6), st.lists(step, min_size=20, max_size=40))  # a few, or many


@settings(max_examples=60, deadline=None)
@given(steps)
def test_any_identify_requests_leave_what_the_contract_says(steps: list[Identify | Literal["reopen"]]) -> None:
    async def run(folder: Path) -> None:
        model, now = Model(), START
        async with AsyncExitStack() as stack:
            identity = Identity((await stack.enter_async_context(sqlite_backend(folder))).store)
            for step in [*steps, "reopen"]:
                if isinstance(step, str):
                    await compare(model, identity)
                    await stack.aclose()
                    identity = Identity((await stack.enter_async_context(sqlite_backend(folder))).store)
                    continue
                now += step.pause
                await identity.identify(now, step.visitor, step.user, step.traits)
                model.identify(now, step)
                assert await identity.user_of(step.visitor) == model.links.get(step.visitor)
            await compare(model, identity)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def compare(model: Model, identity: Identity) -> None:
    for visitor in VISITORS:
        assert await identity.user_of(visitor) == model.links.get(visitor)
        assert await identity.traits_of_visitor(visitor) == model.visitors.get(visitor, {})
    for tenant in "shop", "other":
        for user in [*USERS, "guest", "Null", "0", ""]:
            assert await identity.traits_of_user((tenant, user)) == model.users.get((tenant, user), {})


async def test_a_shared_device_does_not_pass_traits_to_the_next_user(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity, visitor = Identity(backend.store), ("shop", "v")
        await identity.identify(START, visitor, None, {"email": "ann@example.com"})
        await identity.identify(START + 1, visitor, "ann", {})
        await identity.identify(START + 2, visitor, None, {"phone": "1"})
        await identity.identify(START + 3, visitor, "bob", {"plan": "free"})
        await identity.identify(START + 4, visitor, "ann", {})
        assert await identity.traits_of_user(("shop", "ann")) == {"email": (START, "ann@example.com")}
        assert await identity.traits_of_user(("shop", "bob")) == {"plan": (START + 3, "free")}
        assert await identity.user_of(visitor) == "ann"


async def test_at_the_first_link_the_newest_value_of_each_trait_wins(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity = Identity(backend.store)
        await identity.identify(START, ("shop", "v"), None, {"old": 1, "own": 1, "only": 1})
        await identity.identify(START + 1, ("shop", "w"), "ann", {"old": 2, "new": 2})
        await identity.identify(START + 2, ("shop", "v"), None, {"new": 3})
        await identity.identify(START + 3, ("shop", "v"), "ann", {"own": None})
        assert await identity.traits_of_user(("shop", "ann")) == {
            "old": (START + 1, 2),
            "new": (START + 2, 3),
            "own": (START + 3, None),
            "only": (START, 1),
        }


async def test_of_simultaneous_first_links_only_one_user_gets_the_traits(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity, visitor = Identity(backend.store), ("shop", "v")
        await identity.identify(START, visitor, None, {"email": "someone@example.com"})
        users = [f"u{number}" for number in range(12)]
        await asyncio.gather(*(identity.identify(START + 1, visitor, user, {}) for user in users))
        profiles = [await identity.traits_of_user(("shop", user)) for user in users]
        assert sorted(len(profile) for profile in profiles) == [0] * 11 + [1]
        assert await identity.user_of(visitor) in users


async def test_tenants_never_cross(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity = Identity(backend.store)
        await identity.identify(START, ("shop", "v"), "ann", {"email": "ann@shop.example"})
        await identity.identify(START, ("other", "w"), "ann", {"plan": "free"})
        for stranger in ("other", "v"), ("sho", "pv"), ("shopv", ""), ("", "shopv"):
            assert await identity.user_of(stranger) is None
        assert await identity.traits_of_user(("shop", "ann")) == {"email": (START, "ann@shop.example")}
        assert await identity.traits_of_user(("other", "ann")) == {"plan": (START, "free")}


@pytest.mark.parametrize("user", ["null", "0", " Guest\n", "NULL", " ", "[object Object]", "<nil>", "None"])
async def test_a_word_for_nothing_makes_no_link(tmp_path: Path, user: str) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = IdentityPlugin(IdentityPlugin.Options())
        plugin.startup(daemon)
        identity, visitor = Identity(daemon.store, plugin), ("shop", "v")
        await identity.identify(START, visitor, user, {"plan": "free"})
        assert await identity.user_of(visitor) is None
        assert await identity.traits_of_visitor(visitor) == {"plan": (START, "free")}
        await identity.identify(START, visitor, "ann", {})
        await identity.identify(START + 1, visitor, user, {"plan": "paid"})
        assert await identity.user_of(visitor) == "ann"
        assert await identity.traits_of_user(("shop", "ann")) == {"plan": (START, "free")}


async def test_the_words_for_nothing_are_configurable(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        daemon.unusable_ids = UnusableIds([" Nobody "])
        plugin = IdentityPlugin(IdentityPlugin.Options())
        plugin.startup(daemon)
        identity = Identity(daemon.store, plugin)
        await identity.identify(START, ("shop", "v"), "NOBODY", {})
        await identity.identify(START, ("shop", "w"), "guest", {})
        assert await identity.user_of(("shop", "v")) is None
        assert await identity.user_of(("shop", "w")) == "guest"
