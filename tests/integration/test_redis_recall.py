"""Events on Redis get the same result with and without remembered state, despite writes of other daemons."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha1
from pathlib import Path
from typing import Any
from uuid import UUID

import pluggy
import pytest

from ingestd.api import hookimpl, hookspecs
from ingestd.api.errors import Forbidden, Unavailable, WriteConflict
from ingestd.api.events import Endpoint, Event, Principal, Session
from ingestd.api.journal import Append
from ingestd.api.options import Duration
from ingestd.api.store import State, state_key
from ingestd.hooks.caller import HookFailure, Hooks
from ingestd.pipeline.backpressure import Backpressure
from ingestd.pipeline.resolver import Resolved
from ingestd.pipeline.storing import Storing
from ingestd.pipeline.together import Together
from ingestd.plugins.identity import IdentityPlugin
from ingestd.plugins.session import SessionPlugin
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.testing.sinks import make_records
from tests.support.journals import read_all
from tests.support.redis_server import RedisServer, redis_server

NOW = 1_795_233_906_000
IDLE = 1_800_000  # milliseconds
KEY = state_key("recalled", "shop", "visitor")
SUPPLIED = ["5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11", "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a22"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


class Everyone:
    """Authenticates every request."""

    @hookimpl
    def authenticate(self) -> Principal | None:
        return Principal("shop", "key")


class Enriching:
    """With an enriching plugin, no event is resolved from remembered state."""

    @hookimpl
    def enrich(self, event: Event) -> None:
        pass


class Preparing:
    """With a preparing plugin, events are still resolved from remembered state."""

    @hookimpl
    def prepare(self, event: Event) -> None:
        pass


class Filter:
    """Drops the events of one user."""

    @hookimpl
    def filter_event(self, event: Event) -> str | None:
        return "not wanted" if event.user_id == "unwanted" else None


class Daemon:
    def __init__(self, backend: RedisBackend, *plugins: object) -> None:
        self.backend = backend
        manager = pluggy.PluginManager(hookspecs.HOOK_NAMESPACE)
        manager.add_hookspecs(hookspecs)
        session = SessionPlugin(SessionPlugin.Options(idle=Duration.parse("30m")))
        for plugin in (Everyone(), session, IdentityPlugin(IdentityPlugin.Options()), *plugins):
            manager.register(plugin)
        parts = Hooks(manager), backend.store, backend.journal, Backpressure(10_000)
        self.storing, self.together = Storing(*parts), Together(*parts)

    async def store(self, event: Event) -> Resolved:
        """Store the event. Returns after it is durable."""
        done: asyncio.Future[Resolved | Exception] = asyncio.get_running_loop().create_future()
        await self.storing.begin(event, done.set_result)
        stored = await done
        assert isinstance(stored, Resolved)
        return stored

    async def trips(self, event: Event) -> int:
        """The number of round trips to store the event."""
        before = self.backend.database.link.batches
        await self.store(event)
        return self.backend.database.link.batches - before


@asynccontextmanager
async def shop(server: RedisServer, folder: Path, *plugins: object) -> AsyncIterator[list[Daemon]]:
    """Two daemons on one journal."""
    prefix = sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"
    async with AsyncExitStack() as stack:
        daemons = []
        for _ in range(2):
            backend = RedisBackend(make_pool(server.url, (), timeout=2), prefix=prefix, timeout=2, patience=5)
            await backend.open(serving=False)
            stack.push_async_callback(backend.close)
            daemons.append(Daemon(backend, *plugins))
        yield daemons


def make_event(visitor: str, at: int = NOW, number: int = 0, **members: Any) -> Event:
    kind = members.get("type", "event")
    common: dict[str, Any] = {
        "type": kind, "endpoint": Endpoint.IDENTIFY if kind == "identify" else Endpoint.TRACK,
        "key": None if kind == "identify" else "Page View", "user_id": None, "session_id": None, "message_id": None,
        "data": {} if kind == "identify" else {"title": f"{number} shirts", "prices": [number, 0.5, None]},
        "context": {"page": {"url": f"https://shop.example/{number}?q=é"}}, "extra": {"number": number},
    }  # fmt: skip
    return Event(
        id=str(UUID(int=number)), tenant="shop", received_at=at, timestamp=at, traits={}, anonymous_id=visitor,
        session_is_new=False, dispatch_id=None, **(common | members),
    )  # fmt: skip


def make_day(seed: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """Groups of simultaneous events, each with the index of its daemon."""
    chance = random.Random(seed)
    at = NOW
    day: list[tuple[int, list[dict[str, Any]]]] = []
    for number in range(150):
        at += chance.choice([0, 1, 60_000, IDLE // 3, IDLE + 1] if chance.random() < 0.3 else [0, 1])
        events: list[dict[str, Any]] = []
        for index in range(chance.choice([1, 1, 1, 3, 12])):
            event: dict[str, Any] = {"visitor": f"visitor {chance.randint(1, 4)}", "at": at}
            event["number"] = number * 20 + index
            if chance.random() < 0.1:
                event |= {"type": "identify", "user_id": chance.choice(["ann", "bob", None])}
            elif chance.random() < 0.1:
                event |= {"endpoint": Endpoint.CUSTOMER_EVENTS}
            elif chance.random() < 0.1:
                event |= {"user_id": "eve"}
            if chance.random() < 0.15:
                event |= {"session_id": chance.choice(SUPPLIED)}
            if chance.random() < 0.15:
                event |= {"message_id": f"message {chance.randint(1, 40)}"}
            if chance.random() < 0.1:
                event |= {"visitor": "undefined", "has_visitor": False}
            events.append(event)
        day.append((chance.randint(0, 1), events))
    return day


async def live_through(daemons: Sequence[Daemon], day: list[tuple[int, list[dict[str, Any]]]]) -> list[Any]:
    """All answers, and then the records in the journal. Sessions are numbered by their begin."""
    sessions: dict[str, int] = {}
    found: list[Any] = []
    for which, given in day:
        daemon = daemons[which]
        events = [make_event(**members) for members in given]
        stored = [await daemon.store(events[0])] if len(events) == 1 else await daemon.together.store(events)
        for each in stored:
            assert isinstance(each, Resolved), each
            begun = sessions.setdefault(each.session.session_id, len(sessions))
            found.append((each.outcome, begun, each.session.is_new))
    for record in await read_all(daemons[0].backend.journal):
        body = record.decode()
        found.append({**body, "sessionId": sessions[body["sessionId"]]})
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_remembered_state_does_not_change_the_results_of_events(
    server: RedisServer, tmp_path: Path, seed: int
) -> None:
    day = make_day(seed)
    async with shop(server, tmp_path / "one") as daemons, shop(server, tmp_path / "other", Enriching()) as others:
        assert await live_through(daemons, day) == await live_through(others, day)


async def test_an_event_of_a_remembered_visitor_takes_one_trip(server: RedisServer, tmp_path: Path) -> None:
    async with shop(server, tmp_path, Preparing()) as (daemon, _):
        assert await daemon.trips(make_event("a")) == 2
        assert await daemon.trips(make_event("a", NOW + 1)) == 1
        assert await daemon.trips(make_event("a", NOW + 2, message_id="m", session_id=None)) == 1
        before = daemon.backend.database.link.batches
        await daemon.together.store([make_event("a", NOW + number) for number in range(100)])
        assert daemon.backend.database.link.batches == before + 1


async def test_one_record_of_all_daemons_tells_that_a_session_is_new_even_after_dropped_events(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path, Filter()) as daemons:
        here, there = daemons
        dropped = [await here.store(make_event("a", user_id="unwanted")) for _ in range(2)]
        simultaneous = await asyncio.gather(*(daemon.store(make_event("a")) for daemon in daemons * 5))
        dropped += [await there.store(make_event("a", user_id="unwanted"))]
        last = await there.store(make_event("a", NOW + 1))
        assert [each.session.is_new for each in dropped] == [True, True, False]
        assert [each.session.is_new for each in simultaneous].count(True) == 1
        assert len({each.session.session_id for each in (*dropped, *simultaneous, last)}) == 1
        records = [record.decode()["sessionIsNew"] for record in await read_all(here.backend.journal)]
        assert (records.count(True), records.count(False)) == (1, 10)


async def test_a_batch_keeps_its_order_despite_changes_by_another_daemon(server: RedisServer, tmp_path: Path) -> None:
    async with shop(server, tmp_path) as (here, there):
        visitors = [f"visitor {number % 5}" for number in range(600)]  # more than one append takes
        for visitor in visitors[:5]:
            await here.store(make_event(visitor))
        await there.store(make_event("visitor 3", type="identify", user_id="ann"))
        stored = await here.together.store([make_event(visitor, NOW + 1) for visitor in visitors])
        assert not [each for each in stored if not isinstance(each, Resolved) or each.session.is_new]
        records = [record.decode() for record in (await read_all(here.backend.journal))[6:]]
        assert [record["anonymousId"] for record in records] == visitors
        assert [record["userId"] for record in records] == [
            "ann" if visitor == "visitor 3" else None for visitor in visitors
        ]


class Choosy:
    """Refuses the events of one visitor, and fails with those of another."""

    @hookimpl(tryfirst=True)
    async def resolve_user(self, event: Event) -> str | None:
        if event.anonymous_id == "refused":
            raise Forbidden("not this one")
        if event.anonymous_id == "broken":
            raise RuntimeError("a fault of the plugin")
        return None


async def test_a_refused_event_does_not_affect_the_others_of_its_batch(server: RedisServer, tmp_path: Path) -> None:
    async with shop(server, tmp_path, Choosy()) as (daemon, _):
        for at in NOW, NOW + 1:  # first without remembered state, then with it
            visitors = ["a", "refused", "b", "broken", "a"]
            stored = await daemon.together.store([make_event(visitor, at) for visitor in visitors])
            assert [type(each) for each in stored] == [Resolved, Forbidden, Resolved, HookFailure, Resolved]
        records = [record.decode()["anonymousId"] for record in await read_all(daemon.backend.journal)]
        assert records == ["a", "b", "a"] * 2


async def test_a_session_replaced_by_another_daemon_is_not_continued(server: RedisServer, tmp_path: Path) -> None:
    async with shop(server, tmp_path) as (here, there):
        first = await here.store(make_event("a"))
        await there.store(make_event("a", NOW + 1, session_id=SUPPLIED[0]))
        assert (await here.store(make_event("a", NOW + 2))).session == Session(SUPPLIED[0], is_new=False)
        # Activity at another daemon keeps the session alive here too.
        await there.store(make_event("a", NOW + IDLE))
        assert (await here.store(make_event("a", NOW + 2 * IDLE))).session == Session(SUPPLIED[0], is_new=False)
        last = await here.store(make_event("a", NOW + 3 * IDLE + 1))
        assert last.session.is_new
        assert last.session.session_id not in {first.session.session_id, SUPPLIED[0]}


class Careless:
    """Hides failures of the state."""

    @hookimpl(tryfirst=True)
    async def resolve_user(self, event: Event, state: State) -> str | None:
        try:
            return await state.get(KEY)
        except Unavailable:
            return "nobody"


async def test_a_plugin_that_hides_missing_state_does_not_falsify_the_result(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path, Careless()) as (here, there):
        await there.backend.store.begin(NOW).put(KEY, "ann")
        await here.store(make_event("a"))
        await here.together.store([make_event("b"), make_event("a")])
        await there.backend.store.begin(NOW).put(KEY, "bob")
        await here.store(make_event("a"))
        users = [record.decode()["userId"] for record in await read_all(here.backend.journal)]
        assert users == ["ann", "ann", "ann", "bob"]


async def test_an_append_with_remembered_state_is_atomic_and_detects_conflicts(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path) as (here, there):
        journal = here.backend.journal
        with pytest.raises(WriteConflict):
            await journal.recall(NOW).get(KEY)
        state = here.backend.store.begin(NOW)
        assert await state.renew(KEY, "first", 1000) == ("first", True)
        recalled = journal.recall(NOW + 500)
        assert await recalled.renew(KEY, "second", 1000) == ("first", False)
        assert await there.backend.store.begin(NOW + 1001).get(KEY) is None  # the renewal is written with the append
        await journal.append(make_records(1), recalled)
        assert await there.backend.store.begin(NOW + 1500).get(KEY) == "first"
        states = [journal.recall(NOW) for _ in range(3)]
        for each in states[:2]:
            assert await each.get(KEY) == "first"
        await there.backend.store.begin(NOW).put(KEY, "other")
        [record] = make_records(1)
        with pytest.raises(WriteConflict):
            await journal.append([record], states[0])
        # Appends after a conflict conflict too, so that they stay in order.
        answers = await journal.append_each([Append(record, each) for each in (states[2], states[1], states[2])])
        assert [type(answer) for answer in answers] == [type(None), WriteConflict, WriteConflict]
        assert len(await read_all(journal)) == 2
        for change in (states[2].put(KEY, "x"), states[2].swap(KEY, "first", "x"), states[2].delete(KEY)):
            with pytest.raises(WriteConflict):
                await change
