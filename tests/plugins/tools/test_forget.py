"""Forgetting a person, with real plugins and back ends: compared with a model, and interrupted at any write."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pluggy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api import hookimpl, hookspecs
from ingestd.api.errors import CommandError, Unavailable
from ingestd.api.events import Endpoint, Event, Record
from ingestd.api.hookspecs import HOOK_NAMESPACE
from ingestd.api.journal import Journal
from ingestd.api.privacy import Person
from ingestd.api.store import Field, State, Store, state_key
from ingestd.api.times import now
from ingestd.hooks.caller import HookFailure, Hooks
from ingestd.plugins.auth.keys import KeysPlugin
from ingestd.plugins.identity import IdentityPlugin
from ingestd.plugins.session import SessionPlugin
from ingestd.plugins.tools.forget.command import Forgetting
from ingestd.plugins.tools.forget.traces import Traces
from ingestd.support.ids import time_uuid
from ingestd.support.unusable_ids import UnusableIds
from tests.support.backends import sqlite_backend
from tests.support.journals import read_all

TENANTS, VISITORS, USERS = ("shop", "other"), ("va", "vb", "vc"), ("ua", "ub")
NOBODY = " Guest"  # clients without a known user send it


class Sent(NamedTuple):
    type: Literal["event", "identify"]
    tenant: str
    visitor: str
    user: str | None = None


class Who(NamedTuple):
    tenant: str
    user: str | None = None
    visitor: str | None = None


def make_hooks(*further: object) -> Hooks:
    manager = pluggy.PluginManager(HOOK_NAMESPACE)
    manager.add_hookspecs(hookspecs)
    identity, session = (
        IdentityPlugin(IdentityPlugin.Options(max_visitors=1000)),
        SessionPlugin(SessionPlugin.Options()),
    )
    for plugin in (KeysPlugin(KeysPlugin.Options()), identity, session, *further):
        manager.register(plugin)
    return Hooks(manager)


class Shop:
    """A store and a journal. `send` stores requests like the pipeline."""

    def __init__(self, store: Store, journal: Journal, hooks: Hooks | None = None) -> None:
        self.store = store
        self.journal = journal
        self.hooks = hooks or make_hooks()

    async def send(self, sent: Sent) -> None:
        at = now()
        is_event = sent.type == "event"
        event = Event(
            id=time_uuid(),
            type=sent.type,
            tenant=sent.tenant,
            endpoint=Endpoint.TRACK if is_event else Endpoint.IDENTIFY,
            received_at=at,
            timestamp=at,
            key="Page View" if is_event else None,
            data={"private": 1} if is_event else {},
            traits={} if is_event else {f"of {sent.visitor}": sent.user},
            anonymous_id=sent.visitor,
            user_id=sent.user,
            session_id=None,
            session_is_new=False,
            dispatch_id="dispatch",
            message_id="message",
            context={"ip": "192.0.2.1"},
            extra={"private": 2},
        )
        state = self.store.begin(at)
        if event.user_id is None and is_event:
            event.user_id = await self.hooks.resolve_user(event, state)
        session = await self.hooks.resolve_session(event, state)
        assert session is not None
        event.session_id, event.session_is_new = session.session_id, session.is_new
        if not is_event:
            await self.hooks.store_identity(event, state)
        await self.journal.commit([event.to_record()], state)

    async def append(self, *values: dict[str, Any]) -> None:
        """Append records like a consumer that derives them."""
        records = [Record(value["type"], now(), json.dumps(value).encode()) for value in values]
        await self.journal.commit(records, self.store.begin(now()))

    async def forget(self, who: Who) -> Counter[str]:
        forgetting = self.forgetting(who)
        await forgetting.learn()
        return await forgetting.run()

    def forgetting(self, who: Who) -> Forgetting:
        traces = Traces(who.tenant, UnusableIds(), user_id=who.user, anonymous_id=who.visitor)
        return Forgetting(self.hooks, self.store, self.journal, traces)

    async def records(self) -> list[dict[str, Any]]:
        return [record.decode() for record in await read_all(self.journal) if record.type != "erasure"]

    async def erasures(self) -> list[dict[str, Any]]:
        return [record.decode() for record in await read_all(self.journal) if record.type == "erasure"]

    async def remembered(self) -> dict[tuple[str, str, str], object]:
        """All entries in the state, by kind, tenant, and visitor or user."""
        state = self.store.begin(now())
        found: dict[tuple[str, str, str], object] = {}
        for tenant in TENANTS:
            for visitor in VISITORS:
                for kind in ("link", "session"):
                    found[kind, tenant, visitor] = await state.get(state_key(kind, tenant, visitor))
                key = state_key("anonymous-profile", tenant, visitor)
                found["anonymous-profile", tenant, visitor] = await state.fields(key)
            for user in USERS:
                found["user-profile", tenant, user] = await state.fields(state_key("user-profile", tenant, user))
        return {key: value for key, value in found.items() if value}


def blank(record: dict[str, Any]) -> dict[str, Any]:
    """An event or identify record without its person."""
    empty: dict[str, Any] = {name: {} for name in ("data", "context", "extra", "traits") if name in record}
    nulls = dict.fromkeys(("anonymousId", "userId", "sessionId", "dispatchId", "messageId"))
    return {**record, **empty, **nulls, "erased": True}


def is_theirs(record: dict[str, Any], who: Who, visitors: set[str]) -> bool:
    if record["tenant"] != who.tenant:
        return False
    if who.visitor is not None:
        return bool(record["anonymousId"] == who.visitor)
    if record["userId"] in {None, NOBODY}:
        return record["anonymousId"] in visitors
    return bool(record["userId"] == who.user)


def visitors_of(who: Who, sent: list[Sent]) -> tuple[set[str], set[str]]:
    """All visitors that were ever linked to the person, and those of them that are still linked."""
    if who.visitor is not None:
        return {who.visitor}, {who.visitor}
    links = [s for s in sent if s.type == "identify" and s.tenant == who.tenant and s.user in USERS]
    last = {link.visitor: link.user for link in links}
    ever = {link.visitor for link in links if link.user == who.user}
    return ever, {visitor for visitor in ever if last[visitor] == who.user}


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    kind: Literal["event", "identify"] = draw(st.sampled_from(["event", "identify"]))
    user = draw(st.sampled_from([None, *USERS, NOBODY]))
    return Sent(kind, draw(st.sampled_from(TENANTS)), draw(st.sampled_from(VISITORS)), user)


persons = st.one_of(
    st.builds(Who, st.sampled_from(TENANTS), st.sampled_from(USERS), st.none()),
    st.builds(Who, st.sampled_from(TENANTS), st.none(), st.sampled_from(VISITORS)),
)


@given(st.lists(requests(), max_size=25), persons)
@example(  # a shared device: records without a user are the first person's, the session is the second's
    [Sent("identify", "shop", "va", "ua"), Sent("identify", "shop", "va"), Sent("identify", "shop", "va", "ub")],
    Who("shop", user="ua"),
)
def test_nothing_of_the_person_remains_and_nobody_else_changes(sent: list[Sent], who: Who) -> None:
    async def check(folder: Path) -> None:
        async with sqlite_backend(folder) as backend:
            shop = Shop(backend.store, backend.journal)
            for one in sent:
                await shop.send(one)
            records, remembered = await shop.records(), await shop.remembered()
            visitors, own = visitors_of(who, sent)
            expected = [blank(r) if is_theirs(r, who, visitors) else r for r in records]
            gone = {("user-profile", who.tenant, who.user)}
            gone |= {(kind, who.tenant, visitor) for visitor in own for kind in ("link", "session")}
            gone |= {("anonymous-profile", who.tenant, visitor) for visitor in visitors}

            look = shop.forgetting(who)
            await look.learn()
            counted = await look.count()
            assert (await shop.records(), await shop.remembered()) == (records, remembered)
            counts = await shop.forget(who)
            assert await shop.records() == expected
            assert await shop.remembered() == {key: value for key, value in remembered.items() if key not in gone}
            kinds = [kind for kind, *_ in remembered.keys() & gone]
            assert +counts == +Counter(
                records=sum(is_theirs(record, who, visitors) for record in records),
                links=kinds.count("link"),
                sessions=kinds.count("session"),
                profiles=kinds.count("user-profile") + kinds.count("anonymous-profile"),
            )
            assert +counted == +counts
            erasures = await shop.erasures()
            assert len(erasures) == any(counts.values())
            for erasure in erasures:
                assert (erasure["tenant"], erasure["userId"]) == (who.tenant, who.user)
                assert erasure["anonymousIds"] == sorted(visitors)

            assert not (await shop.forget(who)).total()
            assert (await shop.records(), await shop.erasures()) == (expected, erasures)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


async def test_a_forgotten_visitor_who_returns_is_new_and_can_be_forgotten_again(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await shop.send(Sent("identify", "shop", "va", "ua"))
        await shop.forget(Who("shop", user="ua"))
        await shop.send(Sent("event", "shop", "va"))
        await shop.send(Sent("identify", "shop", "vb", "ua"))
        blanked, device, back = await shop.records()
        assert (blanked["erased"], device["userId"], device["sessionIsNew"]) == (True, None, True)
        assert (await shop.forget(Who("shop", user="ua")))["records"] == 1
        assert await shop.records() == [blanked, device, blank(back)]
        assert [erasure["anonymousIds"] for erasure in await shop.erasures()] == [["va"], ["vb"]]


async def test_visitors_are_found_by_their_links_after_the_identify_records_left_the_journal(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        for tenant in TENANTS:
            await shop.send(Sent("identify", tenant, "va", "ua"))
        await shop.send(Sent("identify", "shop", "vb", "ua"))
        await backend.journal.trim(await backend.journal.last(), 100)
        for tenant in TENANTS:
            await shop.send(Sent("identify", tenant, "va"))  # without a userId
        before = await shop.remembered()
        counts = await shop.forget(Who("shop", user="ua"))
        assert counts == Counter(records=1, links=2, sessions=2, profiles=2)
        assert await shop.remembered() == {key: value for key, value in before.items() if key[1] == "other"}
        assert [record.get("erased", False) for record in await shop.records()] == [True, False]
        assert [erasure["anonymousIds"] for erasure in await shop.erasures()] == [["va"]]


async def test_derived_records_lose_their_ids_and_keep_their_amounts(tmp_path: Path) -> None:
    def attribution(tenant: str, visitor: str, user: str | None, touch: str) -> dict[str, Any]:
        texts = {"eventId": "e", "anonymousId": touch, "sessionId": "s", "source": "mail", "dispatchId": "d"}
        point = {**texts, "clickId": {"type": "gclid", "id": "Cj0"}}
        return {
            "id": "a", "type": "attribution", "tenant": tenant, "anonymousId": visitor, "userId": user,
            "value": {"revenue": 40.5, "total": 10**30}, "touchpoint": point, "touchpoints": [point],
        }  # fmt: skip

    bare = {"eventId": "e", "source": "mail", **dict.fromkeys(("anonymousId", "sessionId", "dispatchId", "clickId"))}
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        theirs = attribution("shop", "vb", "ua", "va")
        device = attribution("shop", "vb", "ub", "va")
        others = [attribution("other", "va", "ua", "va"), {"id": "r", "type": "refund"}]
        await shop.append(theirs, device, *others)
        assert (await shop.forget(Who("shop", user="ua")))["records"] == 1
        blanked = {**theirs, "anonymousId": None, "userId": None, "touchpoint": bare, "touchpoints": [bare]}
        assert await shop.records() == [{**blanked, "erased": True}, device, *others]
        assert (await shop.forget(Who("shop", visitor="va")))["records"] == 1
        touched = {**device, "touchpoint": bare, "touchpoints": [bare]}
        assert await shop.records() == [{**blanked, "erased": True}, touched, *others]


async def test_a_visitor_linked_during_the_command_is_named_too(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await shop.send(Sent("identify", "shop", "va", "ua"))
        await shop.send(Sent("event", "shop", "vb"))
        forgetting = shop.forgetting(Who("shop", user="ua"))
        await forgetting.learn()
        await shop.send(Sent("identify", "shop", "vb", "ua"))
        counts = await forgetting.run()
        assert (counts["records"], counts["links"]) == (3, 2)
        assert all(record["erased"] for record in await shop.records())
        assert (await shop.erasures())[-1]["anonymousIds"] == ["va", "vb"]
        assert await shop.remembered() == {}


class _Broken:
    """A store or a journal that fails after some writes, like for a killed command."""

    def __init__(self, inner: Any, writes: list[str], names: set[str]) -> None:
        self._inner = inner
        self._writes = writes
        self._names = names

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in self._names:
            return method

        async def write(*arguments: Any) -> Any:
            if not self._writes:
                raise Unavailable("killed here")
            self._writes.pop()
            return await method(*arguments)

        return write


@pytest.mark.parametrize("writes", range(8))
async def test_an_interrupted_command_is_finished_by_the_next_run(tmp_path: Path, writes: int) -> None:
    """There are seven writes: the erasure, its mark, the state, three commits of up to 200 records, and the mark."""
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await shop.send(Sent("identify", "shop", "va", "ua"))
        for _ in range(225):
            await shop.send(Sent("event", "shop", "va"))
            await shop.send(Sent("identify", "shop", "va"))
        await shop.send(Sent("event", "shop", "va", "ub"))
        await shop.send(Sent("event", "shop", "vb"))
        *records, stays, other = await shop.records()
        left = ["write"] * writes
        broken: Any = [_Broken(backend.store, left, {"commit"}), _Broken(backend.journal, left, {"commit", "replace"})]
        if writes < 7:
            with pytest.raises(Unavailable, match="killed here"):
                await Shop(*broken).forget(Who("shop", user="ua"))
        else:
            await Shop(*broken).forget(Who("shop", user="ua"))
        assert len(await shop.erasures()) == (writes > 0)
        await shop.send(Sent("event", "shop", "va"))  # after the erasure: a new visitor, except for a remaining link
        await shop.forget(Who("shop", user="ua"))
        assert (await shop.records())[:-1] == [*map(blank, records), stays, other]
        assert not (await shop.forget(Who("shop", user="ua"))).total()


async def test_an_unusable_user_id_is_refused(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await shop.send(Sent("identify", "shop", "va", NOBODY))
        with pytest.raises(CommandError, match=r"is not the id of one user.*--anonymous"):
            await shop.forget(Who("shop", user="GUEST"))
        assert (await shop.forget(Who("shop", visitor="va")))["records"] == 1


async def test_an_unusable_visitor_id_is_refused_because_its_records_have_many_persons(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await shop.send(Sent("identify", "shop", "undefined", "ua"))
        await shop.send(Sent("event", "shop", "undefined", NOBODY))
        with pytest.raises(CommandError, match=r"is not the id of one visitor.*--user"):
            await shop.forget(Who("shop", visitor=" Undefined"))
        await shop.forget(Who("shop", user="ua"))
        assert [record.get("erased") for record in await shop.records()] == [True, None]


async def test_a_failing_plugin_stops_the_command_and_is_named(tmp_path: Path) -> None:
    class Broken:
        @staticmethod
        @hookimpl
        def forget_person(person: Person, state: State) -> None:
            raise ValueError(person.tenant)

    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal, make_hooks(Broken()))
        await shop.send(Sent("event", "shop", "va"))
        with pytest.raises(HookFailure, match="forget_person"):
            await shop.forget(Who("shop", visitor="va"))
        assert await shop.erasures() == []


async def test_a_dry_run_writes_nothing_whatever_plugins_do(tmp_path: Path) -> None:
    class Busy:
        @staticmethod
        @hookimpl
        async def forget_person(person: Person, state: State) -> dict[str, int]:
            (key,), new = person.visitor_keys("link"), state_key("new", "shop", "va")
            linked = await state.get(key)
            assert await state.put(key, "x") == linked
            assert await state.swap(key, "x", "y")
            assert await state.renew(new, "x", 1000) == ("x", True)
            await state.merge(new, {"name": Field(1, "x")})
            await state.delete(key)
            await state.push(new, "x", 1, keep=1)
            return {"things": 3}

    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal, make_hooks(Busy()))
        await shop.send(Sent("identify", "shop", "va", "ua"))
        before = await shop.remembered()
        forgetting = shop.forgetting(Who("shop", visitor="va"))
        await forgetting.learn()
        assert await forgetting.count() == Counter(things=3, sessions=1, profiles=0, records=1)  # it has taken the link
        assert await shop.remembered() == before


async def test_state_that_a_consumer_deletes_before_the_command_is_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await shop.send(Sent("identify", "shop", "va", "ua"))
        commit = backend.journal.commit

        async def commit_and_forget(records: Sequence[Record], *arguments: Any) -> int:
            position = await commit(records, *arguments)
            if records[0].type == "erasure":
                state = backend.store.begin(now())
                await state.delete(state_key("link", "shop", "va"))
                await backend.store.commit(state)
            return position

        monkeypatch.setattr(backend.journal, "commit", commit_and_forget)
        counts = await shop.forget(Who("shop", user="ua"))
        assert +counts == Counter(records=1, links=1, sessions=1, profiles=1)
        assert not (await shop.forget(Who("shop", user="ua"))).total()


async def test_many_visitors_are_forgotten_in_several_commits(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        shop = Shop(backend.store, backend.journal)
        await asyncio.gather(*(shop.send(Sent("identify", "shop", f"visitor {n}", "ua")) for n in range(450)))
        looking = shop.forgetting(Who("shop", user="ua"))
        await looking.learn()
        assert await looking.count() == Counter(records=450, links=450, sessions=450, profiles=1)
        counts = await shop.forget(Who("shop", user="ua"))
        assert counts == Counter(records=450, links=450, sessions=450, profiles=1)
        assert not (await shop.forget(Who("shop", user="ua"))).total()
