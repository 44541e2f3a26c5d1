"""Events on Redis become the same records as on SQLite, although each daemon has a cache and others write too."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha1
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pluggy
import pytest

from ingestd.api import hookimpl, hookspecs
from ingestd.api.backend import Backend
from ingestd.api.errors import Forbidden
from ingestd.api.events import Endpoint, Event, Principal, Session
from ingestd.api.options import Duration
from ingestd.api.store import State, state_key
from ingestd.hooks.caller import HookFailure, Hooks
from ingestd.pipeline.processor import Awaited, Processor, Result
from ingestd.pipeline.resolver import Resolved, Resolver
from ingestd.plugins.identity import IdentityPlugin
from ingestd.plugins.session import SessionPlugin
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.scheduling import demand
from ingestd.scheduling.room import Backpressure
from tests.support.backends import sqlite_backend
from tests.support.journals import read_all
from tests.support.redis_server import RedisServer, redis_server

NOW = 4_102_444_800_000  # beyond the present: what has a life here has not ended for the daemon
IDLE = 1_800_000  # milliseconds
MIB = 1 << 20
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


class Filter:
    """Drops the events of one user."""

    @hookimpl
    def filter_event(self, event: Event) -> str | None:
        return "not wanted" if event.user_id == "unwanted" else None


class Daemon:
    def __init__(self, backend: Backend, *plugins: object) -> None:
        self.backend = backend
        manager = pluggy.PluginManager(hookspecs.HOOK_NAMESPACE)
        manager.add_hookspecs(hookspecs)
        session = SessionPlugin(SessionPlugin.Options(idle=Duration.parse("30m")))
        for plugin in (Everyone(), session, IdentityPlugin(IdentityPlugin.Options()), *plugins):
            manager.register(plugin)
        self._processor = Processor(
            Resolver(Hooks(manager), backend.journal), backend.store, backend.journal, Backpressure(10_000)
        )

    async def process(self, events: Sequence[Event]) -> list[Result]:
        """The results of a request, once they are durable."""
        awaited = Awaited()
        await awaited.process(self._processor, list(events))
        return await awaited.results

    async def store(self, event: Event) -> Resolved:
        (result,) = await self.process([event])
        assert isinstance(result, Resolved), result
        return result

    @property
    def trips(self) -> int:
        assert isinstance(self.backend, RedisBackend)
        return self.backend.database.link.batches


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
        for each in await daemons[which].process([make_event(**members) for members in given]):
            assert isinstance(each, Resolved), each
            begun = sessions.setdefault(each.session.session_id, len(sessions))
            found.append((each.outcome, begun, each.session.is_new))
    for record in await read_all(daemons[0].backend.journal):
        body = record.decode()
        found.append({**body, "sessionId": sessions[body["sessionId"]]})
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_events_become_the_same_records_as_on_sqlite(server: RedisServer, tmp_path: Path, seed: int) -> None:
    day = make_day(seed)
    async with shop(server, tmp_path) as daemons, sqlite_backend(tmp_path) as backend:
        assert await live_through(daemons, day) == await live_through([Daemon(backend)] * 2, day)


async def test_an_event_of_a_known_visitor_takes_one_trip_and_so_does_a_batch(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path) as (daemon, _):
        await daemon.store(make_event("a"))
        before = daemon.trips
        await daemon.store(make_event("a", NOW + 1))
        await daemon.store(make_event("a", NOW + 2, message_id="m"))
        await daemon.process([make_event("a", NOW + number) for number in range(100)])
        assert daemon.trips == before + 3


async def test_a_batch_of_new_visitors_takes_one_trip_to_load_their_state_and_one_to_store_it(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "_STEP", 60.0)  # a slow machine would need pauses, and a trip for each
    async with shop(server, tmp_path) as (daemon, _):
        for number in range(3):  # the daemon learns which entries an event needs
            await daemon.store(make_event(f"{number}"))
        before = daemon.trips
        await daemon.process([make_event(f"visitor {number}") for number in range(100)])
        assert daemon.trips == before + 2


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
        stored = await here.process([make_event(visitor, NOW + 1) for visitor in visitors])
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
            stored = await daemon.process([make_event(visitor, at) for visitor in visitors])
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


async def test_two_daemons_that_write_the_same_visitor_in_turn_have_one_truth(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path) as daemons:
        for number in range(40):
            at = NOW + number * (IDLE // 3)
            daemon = daemons[number % 2]
            if number % 5 == 0:
                await daemon.store(make_event("a", at, type="identify", user_id=f"user {number}"))
            if number % 7 == 0:
                await daemon.store(make_event("a", at, session_id=SUPPLIED[number % 2]))
            stored = await daemon.store(make_event("a", at, number))
            assert stored.record is not None
            record = stored.record.decode()
            assert record["userId"] == f"user {number // 5 * 5}"
            assert record["sessionId"] == (await daemons[1 - number % 2].store(make_event("a", at))).session.session_id
        records = [record.decode() for record in await read_all(daemons[0].backend.journal)]
        sessions = [None, *(record["sessionId"] for record in records)]
        assert [record["sessionIsNew"] for record in records] == [each != before for before, each in pairwise(sessions)]


async def test_events_of_one_visitor_at_two_daemons_at_once_begin_one_session(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path) as daemons:
        for number in range(5):
            events = [make_event(f"{number}", NOW, place) for place in range(20)]
            results = await asyncio.gather(*(daemons[place % 2].store(event) for place, event in enumerate(events)))
            assert len({result.session.session_id for result in results}) == 1
            assert [result.session.is_new for result in results].count(True) == 1
        assert len(await read_all(daemons[0].backend.journal)) == 100


class Counting:
    """Counts the events of a visitor in a value that every event changes."""

    @hookimpl
    async def enrich(self, event: Event, state: State) -> None:
        key = state_key("count", event.tenant, event.anonymous_id)
        event.extra["count"] = int(await state.get(key) or 0) + 1
        await state.put(key, f"{event.extra['count']}")


async def test_a_value_that_every_event_changes_counts_each_event_of_all_daemons_once(
    server: RedisServer, tmp_path: Path
) -> None:
    async with shop(server, tmp_path, Counting()) as daemons:
        for _ in range(5):
            batches = [[make_event("a", NOW, number) for number in range(10)] for _ in daemons]
            await asyncio.gather(*(map(Daemon.process, daemons, batches)))
        records = [record.decode()["extra"] for record in await read_all(daemons[0].backend.journal)]
        assert [record["count"] for record in records] == [*range(1, 101)]
        assert [record["number"] for record in records[:10]] == [*range(10)]


async def test_an_entry_that_nobody_uses_leaves_the_cache(server: RedisServer, tmp_path: Path) -> None:
    async with shop(server, tmp_path) as (daemon, _):
        assert isinstance(daemon.backend, RedisBackend)
        entries = daemon.backend.database.entries
        for visitor in "ab":
            await daemon.store(make_event(visitor))
        entries.forget_unused()
        await daemon.store(make_event("a", NOW + 1))
        entries.forget_unused()
        before = daemon.trips
        await daemon.store(make_event("a", NOW + 2))
        assert daemon.trips == before + 1
        await daemon.store(make_event("b", NOW + 2))
        assert daemon.trips == before + 3


async def test_the_cache_of_entries_stays_within_its_bytes(server: RedisServer, tmp_path: Path) -> None:
    async with shop(server, tmp_path) as (daemon, _):
        keys = [state_key("large", "shop", f"{number}") for number in range(20_000)]
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for first in range(0, len(keys), 500):
            state = daemon.backend.store.begin(NOW, event=True)
            await state.load(keys[first : first + 500])
            for key in keys[first : first + 500]:
                await state.put(key, f"{key}{'x' * 4000}", 1000)
            await daemon.backend.store.commit(state)
        del state
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert used < 48 * MIB  # without a limit it would be 90
        before_trips = daemon.trips
        state = daemon.backend.store.begin(NOW, event=True)
        assert await state.get(keys[-1]) == f"{keys[-1]}{'x' * 4000}"
        assert daemon.trips == before_trips
