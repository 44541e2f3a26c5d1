"""Links and profiles on the SQLite back end, compared with a model of the contract."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api import times
from ingestd.api.events import Endpoint, Event
from ingestd.api.privacy import Person
from ingestd.api.store import Field, Store, key_digest, state_key
from ingestd.plugins.identity import IdentityPlugin, anonymous_profile, user_profile
from ingestd.support.ids import time_uuid
from ingestd.support.unusable_ids import UnusableIds
from tests.support.backends import PluginDaemon, sqlite_backend, sqlite_daemon

START = 4_000_000_000_000
DAY = 86_400_000

Who = tuple[str, str]  # a tenant, and one of its visitors or users
Traits = dict[str, tuple[int, Any]]  # the time of receipt and the value of each


def request(
    visitor: Who, user: str | None = None, traits: dict[str, Any] | None = None, *, signed: bool = False
) -> Event:
    """An identify request, or without traits an event. The plugin reads the same fields of both."""
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
        signed=signed,
    )


class Identity:
    """The plugin on a store. Each call is one transaction."""

    def __init__(self, store: Store, plugin: IdentityPlugin | None = None) -> None:
        self._store = store
        self._plugin = plugin or IdentityPlugin(IdentityPlugin.Options())

    async def identify(
        self, now: int, visitor: Who, user: str | None, traits: dict[str, Any] | None = None, *, signed: bool = False
    ) -> bool | None:
        """Send an identify request. Returns whether its record has `linked`."""
        state = self._store.begin(now)
        traits = traits or {}
        event = request(visitor, user, traits, signed=signed)
        await self._plugin.store_identity(event, state)
        await self._store.commit(state)
        assert (event.user_id, event.traits) == (user, traits)  # the record keeps the traits that the caller sent
        return event.linked

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
    """An identify request, `pause` milliseconds after the previous one. A negative pause sets the clock back."""

    pause: int
    visitor: Who
    user: str | None
    traits: dict[str, Any]
    signed: bool


MOST_TRAITS, MOST_BYTES = 3, 40


def bounded(options: IdentityPlugin.Options) -> IdentityPlugin:
    """The plugin with profiles of a few traits."""
    return IdentityPlugin(options, most_traits=MOST_TRAITS, most_bytes=MOST_BYTES)


class Model:
    """A model of the contract in plain Python, with the bounds of `options` and `bounded`."""

    def __init__(self, options: IdentityPlugin.Options) -> None:
        self.dropped = 0
        self._options = options
        self._changes: list[tuple[Who, int]] = []
        """The times at which public keys changed the user of a visitor."""
        self._gathered: dict[tuple[Who, Who], int] = {}
        """The last times at which public keys linked each visitor to each user."""
        self.links: dict[Who, str] = {}
        self.visitors: dict[Who, Traits] = {}
        self.users: dict[Who, Traits] = {}

    def identify(self, now: int, step: Identify) -> bool:
        """Apply the request. Returns whether it links the visitor to the user."""
        tenant, _ = step.visitor
        own = {name: (now, value) for name, value in step.traits.items()}
        anonymous = self.visitors.setdefault(step.visitor, {})
        if step.user is None or step.user.strip().lower() in {"", "guest", "null", "0"}:
            self._merge(anonymous, own)
            return False
        if not step.signed and not self._may_link(now, step.visitor, (tenant, step.user)):
            self._merge(anonymous, own)
            return False
        profile = self.users.setdefault((tenant, step.user), {})
        if step.visitor not in self.links:
            self._merge(profile, anonymous)
        self.links[step.visitor] = step.user
        self._merge(profile, own)
        return True

    def _merge(self, profile: Traits, traits: Traits) -> None:
        for name, (at, value) in traits.items():
            if name not in profile or profile[name][0] <= at:
                profile[name] = at, value
        while traits and (len(profile) > MOST_TRAITS or _size(profile) > MOST_BYTES):
            del profile[min(profile, key=lambda name: (profile[name][0], name))]
            self.dropped += 1

    def _may_link(self, now: int, visitor: Who, user: Who) -> bool:
        """Whether a public key may link the visitor to the user now. An allowed link is counted."""
        if self._options.links == "signed":
            return False
        before = self.links.get(visitor)
        if before == user[1]:
            return True
        changes = sum(each == visitor and at >= now - DAY for each, at in self._changes)
        if before is not None and changes >= self._options.max_links:
            return False
        gathered = {each for (whose, each), at in self._gathered.items() if whose == user and at >= now - 30 * DAY}
        if visitor not in gathered and len(gathered) >= self._options.max_visitors:
            return False
        if before is not None:
            self._changes.append((visitor, now))
        self._gathered[user, visitor] = now
        return True


def _size(profile: Traits) -> int:
    return sum(len((name + _json(value)).encode()) for name, (_, value) in profile.items())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


VISITORS = [("shop", "v"), ("shop", "w"), ("shop", "x"), ("other", "v")]
USERS = ["ann", "bob", "v"]
identifies = st.builds(
    Identify,
    # No sum of these is near a day or a month, because a clock set back may move these edges.
    pause=st.sampled_from([0, 0, 1, 1000, -1, -5000, 307 * 60_000, DAY + 3_600_000, 31 * DAY]),
    visitor=st.sampled_from(VISITORS),
    user=st.sampled_from([None, None, *USERS, *USERS, "guest", " GUEST", "Null", "0", " "]),
    traits=st.dictionaries(
        st.sampled_from(["email", "plan", "age", "", "é"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(0, 9),
            st.text('aé"\\', max_size=20),
            st.lists(st.text("a", max_size=2)),
        ),
        max_size=3,
    ),
    signed=st.sampled_from([False, False, True]),
)
options = st.builds(
    IdentityPlugin.Options,
    links=st.sampled_from(["any", "any", "any", "signed"]),
    max_links=st.sampled_from([1, 2, 10]),
    max_visitors=st.sampled_from([1, 2, 100]),
)
step = st.one_of(identifies, identifies, identifies, identifies, st.just("reopen"))
steps = st.one_of(st.lists(step, max_size=6), st.lists(step, min_size=20, max_size=40))  # a few, or many


@given(options, steps)
def test_links_and_profiles_equal_the_model_after_any_identify_requests(
    options: IdentityPlugin.Options, steps: list[Identify | Literal["reopen"]]
) -> None:
    async def run(folder: Path) -> None:
        model, now, plugin = Model(options), START, bounded(options)
        dropped: list[int] = []
        plugin._traits.count_dropped = dropped.append
        async with AsyncExitStack() as stack:
            identity = Identity((await stack.enter_async_context(sqlite_backend(folder))).store, plugin)
            for step in [*steps, "reopen"]:
                if isinstance(step, str):
                    await compare(model, identity)
                    await stack.aclose()
                    identity = Identity((await stack.enter_async_context(sqlite_backend(folder))).store, plugin)
                    continue
                now = min(now + step.pause, START + 89 * DAY)  # before the first profile ends
                linked = await identity.identify(now, step.visitor, step.user, step.traits, signed=step.signed)
                assert linked == model.identify(now, step)
                assert await identity.user_of(step.visitor) == model.links.get(step.visitor)
            await compare(model, identity)
            assert sum(dropped) == model.dropped

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


async def test_only_one_of_simultaneous_first_links_passes_on_the_traits(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity, visitor = Identity(backend.store), ("shop", "v")
        await identity.identify(START, visitor, None, {"email": "someone@example.com"})
        users = [f"u{number}" for number in range(12)]
        await asyncio.gather(*(identity.identify(START + 1, visitor, user, {}) for user in users))
        profiles = [await identity.traits_of_user(("shop", user)) for user in users]
        assert sorted(len(profile) for profile in profiles) == [0] * 11 + [1]
        assert await identity.user_of(visitor) in users


async def test_tenants_share_no_links_and_no_profiles(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity = Identity(backend.store)
        await identity.identify(START, ("shop", "v"), "ann", {"email": "ann@shop.example"})
        await identity.identify(START, ("other", "w"), "ann", {"plan": "free"})
        for stranger in ("other", "v"), ("sho", "pv"), ("shopv", ""), ("", "shopv"):
            assert await identity.user_of(stranger) is None
        assert await identity.traits_of_user(("shop", "ann")) == {"email": (START, "ann@shop.example")}
        assert await identity.traits_of_user(("other", "ann")) == {"plan": (START, "free")}


@pytest.mark.parametrize("user", ["null", "0", " Guest\n", "NULL", " ", "[object Object]", "<nil>", "None"])
async def test_an_unusable_user_id_makes_no_link(tmp_path: Path, user: str) -> None:
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


async def test_the_unusable_ids_are_configurable(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        daemon.unusable_ids = UnusableIds([" Nobody "])
        plugin = IdentityPlugin(IdentityPlugin.Options())
        plugin.startup(daemon)
        identity = Identity(daemon.store, plugin)
        await identity.identify(START, ("shop", "v"), "NOBODY", {})
        await identity.identify(START, ("shop", "w"), "guest", {})
        assert await identity.user_of(("shop", "v")) is None
        assert await identity.user_of(("shop", "w")) == "guest"


async def test_a_reload_changes_the_bounds_and_keeps_the_counts(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        daemon.unusable_ids = UnusableIds(["nobody"])
        plugin, successor = IdentityPlugin(IdentityPlugin.Options()), bounded(IdentityPlugin.Options())
        plugin.startup(daemon)
        many = {f"trait {number:03}": number for number in range(600)}
        await Identity(daemon.store, plugin).identify(START, ("shop", "v"), None, many)
        successor.take_over(plugin)
        identity = Identity(daemon.store, successor)
        await identity.identify(START + 1, ("shop", "v"), "nobody", {"new": 1})
        assert {*await identity.traits_of_visitor(("shop", "v"))} == {"trait 598", "trait 599", "new"}
        assert daemon.registry.get_sample_value("ingestd_identity_traits_dropped_total") == 100 + 498


# Bounds of public keys


def refused(daemon: PluginDaemon) -> dict[str, float]:
    """The numbers of refused links by reason."""
    samples = [sample for family in daemon.registry.collect() for sample in family.samples]
    return {
        sample.labels["reason"]: sample.value
        for sample in samples
        if sample.name == "ingestd_identity_links_refused_total" and sample.value
    }


async def test_a_visitor_changes_users_at_most_max_links_times_a_day(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = IdentityPlugin(IdentityPlugin.Options(max_links=3))
        plugin.startup(daemon)
        identity, visitor = Identity(daemon.store, plugin), ("shop", "v")
        # The first link and links to the same user do not count.
        users = ["u0", "u1", "u1", "u2", "u2", "u3", "u3"]
        assert [await identity.identify(START, visitor, user) for user in users] == [True] * 7
        assert await identity.identify(START + DAY, visitor, "u4", {"email": "u4@shop.example"}) is False
        assert await identity.user_of(visitor) == "u3"
        assert await identity.traits_of_user(("shop", "u4")) == await identity.traits_of_user(("shop", "u3")) == {}
        assert await identity.traits_of_visitor(visitor) == {"email": (START + DAY, "u4@shop.example")}
        assert refused(daemon) == {"max_links": 1}
        assert await identity.identify(START + DAY, visitor, "u4", signed=True) is True
        assert await identity.identify(START + DAY + 1, visitor, "u5") is True
        assert refused(daemon) == {"max_links": 1}


async def test_a_user_gains_at_most_max_visitors_new_visitors_a_month(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = IdentityPlugin(IdentityPlugin.Options(max_visitors=2))
        plugin.startup(daemon)
        identity = Identity(daemon.store, plugin)
        for visitor in "s", "t":  # signed links do not count
            assert await identity.identify(START, ("shop", visitor), "ann", signed=True) is True
        for visitor in "a", "b", "a":
            assert await identity.identify(START, ("shop", visitor), "ann") is True
        assert await identity.identify(START + 30 * DAY, ("shop", "c"), "ann", {"plan": "free"}) is False
        assert await identity.user_of(("shop", "c")) is None
        assert await identity.traits_of_user(("shop", "ann")) == {}
        assert await identity.identify(START, ("shop", "a"), "bob") is True
        assert await identity.identify(START + 1, ("shop", "a"), "ann") is True  # the visitor is not new to this user
        assert await identity.identify(START, ("other", "c"), "ann") is True
        assert refused(daemon) == {"max_visitors": 1}
        assert await identity.identify(START + 30 * DAY + 2, ("shop", "c"), "ann") is True


async def test_simultaneous_links_do_not_exceed_the_bounds(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        options = IdentityPlugin.Options(max_links=3, max_visitors=4)
        identity = Identity(backend.store, IdentityPlugin(options))
        linked = await asyncio.gather(*(identity.identify(START, ("shop", "v"), f"u{n}") for n in range(12)))
        assert sum(map(bool, linked)) == 4
        linked = await asyncio.gather(*(identity.identify(START, ("shop", f"w{n}"), "ann") for n in range(12)))
        assert sum(map(bool, linked)) == 4


async def test_with_signed_links_only_a_public_key_makes_none(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = IdentityPlugin(IdentityPlugin.Options(links="signed"))
        plugin.startup(daemon)
        identity, visitor = Identity(daemon.store, plugin), ("shop", "v")
        assert await identity.identify(START, visitor, "ann", {"email": "a@shop.example"}) is False
        assert await identity.user_of(visitor) is None
        assert await identity.traits_of_user(("shop", "ann")) == {}
        assert await identity.traits_of_visitor(visitor) == {"email": (START, "a@shop.example")}
        assert await identity.identify(START + 1, visitor, "ann", signed=True) is True
        assert await identity.traits_of_user(("shop", "ann")) == {"email": (START, "a@shop.example")}
        assert await identity.identify(START + 2, visitor, "bob") is False
        assert await identity.user_of(visitor) == "ann"
        assert refused(daemon) == {"unsigned": 2}


@pytest.mark.parametrize("signed", [False, True])
async def test_a_user_id_that_is_too_long_makes_no_link(tmp_path: Path, *, signed: bool) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = IdentityPlugin(IdentityPlugin.Options())
        plugin.startup(daemon)
        identity, visitor = Identity(daemon.store, plugin), ("shop", "v")
        assert await identity.identify(START, visitor, "u" * 513, {"plan": "free"}, signed=signed) is False
        assert await identity.user_of(visitor) is None
        assert await identity.traits_of_visitor(visitor) == {"plan": (START, "free")}
        assert refused(daemon) == {"long_user_id": 1}
        assert await identity.identify(START + 1, visitor, "u" * 512, signed=signed) is True
        assert await identity.user_of(visitor) == "u" * 512
        assert await identity.identify(START + 2, visitor, "\N{PILE OF POO}" * 129, signed=signed) is False


async def test_a_reload_changes_the_options_and_keeps_the_metrics(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        before = IdentityPlugin(IdentityPlugin.Options())
        before.startup(daemon)
        after = IdentityPlugin(IdentityPlugin.Options(links="signed"))
        after.take_over(before)
        assert await Identity(daemon.store, after).identify(START, ("shop", "v"), "ann") is False
        assert refused(daemon) == {"unsigned": 1}


@pytest.mark.parametrize("who", ["user", "visitor"])
async def test_forgetting_a_person_deletes_the_counts_for_the_bounds(tmp_path: Path, who: str) -> None:
    async with sqlite_backend(tmp_path) as backend:
        plugin = IdentityPlugin(IdentityPlugin.Options(max_links=1, max_visitors=1))
        identity = Identity(backend.store, plugin)
        await identity.identify(START, ("shop", "v"), "bob")
        await identity.identify(START, ("shop", "v"), "ann")
        digest = key_digest("shop", "v")
        state = backend.store.begin(START)
        await plugin.forget_person(Person("shop", "ann" if who == "user" else None, [digest]), state)
        assert await state.window(state_key("user-new-visitors", "shop", "ann")) == []
        assert await state.window(state_key("link-changes", "shop", "v")) == []
        await backend.store.commit(state)
        assert await identity.identify(START, ("shop", "w"), "ann") is True


# Lives, and the bound of all profiles

DAY = 86_400_000


async def test_profiles_and_links_end_after_their_last_use(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        identity = Identity(backend.store)

        async def there(at: int) -> tuple[bool, ...]:
            state = backend.store.begin(at)
            profiles = anonymous_profile("shop", "v"), user_profile("shop", "ann"), user_profile("shop", "bob")
            found = [bool(await state.fields(each)) for each in profiles]
            return *found, await state.get(state_key("link", "shop", "w")) is not None

        await identity.identify(START, ("shop", "v"), None, {"plan": "free"})
        await identity.identify(START, ("shop", "w"), "ann", {"plan": "free"})
        await identity.identify(START, ("shop", "x"), "bob", {"plan": "free"}, signed=True)
        assert await there(START + 90 * DAY) == (True, True, True, True)
        assert await there(START + 91 * DAY) == (False, True, True, True)
        assert await there(START + 400 * DAY) == (False, True, True, True)
        assert await there(START + 430 * DAY) == (False, False, True, False)
        late = START + 89 * DAY
        await identity.identify(late, ("shop", "v"), None, {"plan": "paid"})
        state = backend.store.begin(START + 300 * DAY)
        assert await IdentityPlugin(IdentityPlugin.Options()).resolve_user(request(("shop", "w")), state) == "ann"
        await backend.store.commit(state)
        assert await there(late + 90 * DAY) == (True, True, True, True)
        assert await there(START + 700 * DAY) == (False, False, True, True)


async def test_entries_of_an_earlier_version_get_their_ends_at_the_start(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        state = backend.store.begin(times.now())
        await state.merge(anonymous_profile("shop", "v"), {"plan": Field(1, '"free"')})
        await state.put(state_key("link", "shop", "v"), "x" * 32 + "ann")
        await backend.store.commit(state)
    async with sqlite_daemon(tmp_path) as daemon:
        IdentityPlugin(IdentityPlugin.Options()).startup(daemon)
        await asyncio.sleep(0.5)
        for days, there in (90, (True, True)), (92, (False, True)), (431, (False, False)):
            state = daemon.store.begin(times.now() + days * DAY)
            profile = bool(await state.fields(anonymous_profile("shop", "v")))
            assert (profile, await state.get(state_key("link", "shop", "v")) is not None) == there


async def test_beyond_the_bound_only_traits_that_somebody_vouches_for_are_kept(tmp_path: Path) -> None:
    async with sqlite_daemon(tmp_path) as daemon:
        plugin = IdentityPlugin(IdentityPlugin.Options())
        plugin.startup(daemon)
        store, identity = daemon.store, Identity(daemon.store, plugin)
        store.max_size = 100_000
        for number in range(100):
            await identity.identify(START, ("shop", f"v{number}"), None, {"about": "x" * 1000})
        kept = [number for number in range(100) if await identity.traits_of_visitor(("shop", f"v{number}"))]
        assert 30 < len(kept) < 50, "half of the room, counted at once"
        assert kept == [*range(len(kept))]
        assert await identity.identify(START, ("shop", "v99"), "ann", {"plan": "free"}), "links go on"
        assert await identity.traits_of_user(("shop", "ann")) == {"plan": (START, "free")}
        store.field_bytes = 75_000
        await identity.identify(START, ("shop", "v0"), "bob", {"plan": "free", "email": "bob@shop.example"})
        assert await identity.traits_of_user(("shop", "bob")) == {}
        assert await identity.user_of(("shop", "v0")) == "bob"
        await identity.identify(START, ("shop", "v1"), "eve", {"plan": "free"}, signed=True)
        assert {*await identity.traits_of_user(("shop", "eve"))} == {"plan", "about"}
        refused = daemon.registry.get_sample_value("ingestd_identity_traits_refused_total")
        assert refused == (100 - len(kept)) + 3
