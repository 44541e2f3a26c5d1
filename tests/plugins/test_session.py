"""Sessions on the SQLite back end, compared with a model of the contract."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.events import Endpoint, Event, Session
from ingestd.api.options import Duration
from ingestd.api.store import Store
from ingestd.plugins.session import SessionPlugin
from ingestd.support.ids import time_uuid
from tests.support.backends import sqlite_backend
from tests.support.examples import examples

IDLE = 1_800_000
START = 4_000_000_000_000  # far in the future, because the real time must not matter
SUPPLIED = [str(UUID(int=number << 100 | 0xABC)) for number in range(1, 4)]

half_an_hour = SessionPlugin(SessionPlugin.Options())


async def resolve(
    store: Store,
    now: int,
    *,
    plugin: SessionPlugin = half_an_hour,
    visitor: str = "v",
    tenant: str = "shop",
    endpoint: Endpoint = Endpoint.TRACK,
    supplied: str | None = None,
    timestamp: int | None = None,
    message: str | None = None,
) -> Session:
    """Resolve the session of an event or identify request, and commit it."""
    event = Event(
        id=time_uuid(),
        type="identify" if endpoint.identifies else "event",
        tenant=tenant,
        endpoint=endpoint,
        received_at=now,
        timestamp=now if timestamp is None else timestamp,
        key=None if endpoint.identifies else "Page View",
        data={},
        traits={},
        anonymous_id=visitor,
        user_id=None,
        session_id=supplied,
        session_is_new=False,
        dispatch_id=None,
        message_id=message,
        context={},
        extra={},
    )
    state = store.begin(now)
    session = await plugin.resolve_session(event, state)
    await store.commit(state)
    return session


CURRENT = "current"


class Visit(NamedTuple):
    """A request, `pause` milliseconds after the previous one. It may supply the visitor's `CURRENT` session."""

    pause: int
    visitor: tuple[str, str]
    endpoint: Endpoint
    supplied: str | None


class Model:
    """A model of the contract in plain Python: each visitor's current session and its last activity."""

    def __init__(self) -> None:
        self.current: dict[tuple[str, str], tuple[str, int]] = {}
        self.seen: set[str] = set()

    def check(self, visit: Visit, now: int, session: Session) -> None:
        """Compare a session with the expected one, and remember it."""
        present, last = self.current.get(visit.visitor, (None, 0))
        if present is not None and now - last > IDLE:
            present = None
        if visit.supplied is None:
            if present is None:
                assert session.is_new
                assert UUID(session.session_id).version == 4
                assert session.session_id not in self.seen
            else:
                assert session == Session(present, is_new=False)
            self.current[visit.visitor] = session.session_id, now
        else:
            supplied = visit.supplied.lower()
            if visit.endpoint in {Endpoint.CUSTOMER_EVENTS, Endpoint.SERVER_IDENTIFY}:
                assert session == Session(supplied, is_new=False)
                if present == supplied:
                    self.current[visit.visitor] = supplied, now
            else:
                assert session == Session(supplied, is_new=present != supplied)
                self.current[visit.visitor] = supplied, now
        self.seen.add(session.session_id)


visits = st.builds(
    Visit,
    pause=st.sampled_from([0, 1, IDLE // 2, IDLE // 2 + 1, IDLE - 1, IDLE, IDLE, IDLE + 1, 3 * IDLE]),
    visitor=st.sampled_from([("shop", "v"), ("shop", "v"), ("shop", "v"), ("shop", "w"), ("other", "v")]),
    endpoint=st.sampled_from(Endpoint.BUILT_IN),
    supplied=st.one_of(
        st.none(),
        st.none(),
        st.just(CURRENT),
        st.just(CURRENT),
        st.sampled_from(SUPPLIED),
        st.sampled_from(SUPPLIED).map(str.upper),
    ),
)
step = st.one_of(visits, visits, visits, visits, visits, st.just("reopen"))
steps = st.one_of(st.lists(step, max_size=6), st.lists(step, min_size=20, max_size=40))  # a few, or many


@given(steps)
def test_the_sessions_of_any_visits_equal_the_model(steps: list[Visit | Literal["reopen"]]) -> None:
    async def run(folder: Path) -> None:
        model, now = Model(), START
        async with AsyncExitStack() as stack:
            backend = await stack.enter_async_context(sqlite_backend(folder))
            for step in steps:
                if isinstance(step, str):
                    await stack.aclose()
                    backend = await stack.enter_async_context(sqlite_backend(folder))
                    continue
                now += step.pause
                tenant, visitor = step.visitor
                visit = step
                if step.supplied == CURRENT:
                    visit = step._replace(supplied=model.current.get(step.visitor, (None, 0))[0])
                session = await resolve(
                    backend.store, now, tenant=tenant, visitor=visitor, endpoint=visit.endpoint, supplied=visit.supplied
                )
                model.check(visit, now, session)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@pytest.mark.parametrize("endpoint", Endpoint.BUILT_IN)
async def test_simultaneous_first_events_get_one_session(tmp_path: Path, endpoint: Endpoint) -> None:
    async with sqlite_backend(tmp_path) as backend:
        for now in START, START + IDLE + 1:
            sessions = await asyncio.gather(*(resolve(backend.store, now, endpoint=endpoint) for _ in range(12)))
            assert len({session.session_id for session in sessions}) == 1
            assert sum(session.is_new for session in sessions) == 1


async def test_simultaneous_first_events_of_many_visitors_get_a_session_each(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        visitors = [f"v{number % 10}" for number in range(60)]
        sessions = await asyncio.gather(*(resolve(backend.store, START, visitor=visitor) for visitor in visitors))
        assert len({session.session_id for session in sessions}) == 10
        assert len(set(zip(visitors, (session.session_id for session in sessions), strict=True))) == 10
        assert sum(session.is_new for session in sessions) == 10


async def test_no_id_of_a_session_is_used_twice(tmp_path: Path) -> None:
    plugin = SessionPlugin(SessionPlugin.Options())
    async with sqlite_backend(tmp_path) as backend:
        given: set[str] = set()
        for round_ in range(3):  # known visitors with a live session, among new ones
            visitors = [f"v{number % 5 and round_}-{number}" for number in range(30)]
            sessions = await asyncio.gather(
                *(resolve(backend.store, START + round_, visitor=visitor, plugin=plugin) for visitor in visitors)
            )
            begun = [session.session_id for session in sessions if session.is_new]
            assert len({*begun}) == len(begun) == (24 if round_ else 30)
            assert given.isdisjoint(begun)
            given.update(begun)


async def test_one_of_simultaneous_requests_with_the_same_session_starts_it(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        sessions = await asyncio.gather(*(resolve(backend.store, START, supplied=SUPPLIED[0]) for _ in range(12)))
        assert {session.session_id for session in sessions} == {SUPPLIED[0]}
        assert sum(session.is_new for session in sessions) == 1


async def test_a_session_lives_for_exactly_the_idle_time(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        first = await resolve(backend.store, START)
        assert await resolve(backend.store, START + IDLE) == Session(first.session_id, is_new=False)
        assert (await resolve(backend.store, START + 2 * IDLE + 1)).is_new


async def test_the_idle_time_is_configurable(tmp_path: Path) -> None:
    short = SessionPlugin(SessionPlugin.Options(idle=Duration.parse("1s")))
    async with sqlite_backend(tmp_path) as backend:
        first = await resolve(backend.store, START, plugin=short)
        assert await resolve(backend.store, START + 1000, plugin=short) == Session(first.session_id, is_new=False)
        assert (await resolve(backend.store, START + 2001, plugin=short)).is_new


async def test_timestamps_do_not_matter(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        first = await resolve(backend.store, START, timestamp=START - 10 * IDLE)
        assert await resolve(backend.store, START + 1, timestamp=START - 5 * IDLE) == Session(
            first.session_id, is_new=False
        )
        assert await resolve(backend.store, START + 1 + IDLE, timestamp=0) == Session(first.session_id, is_new=False)


async def test_a_clock_set_back_shortens_no_session(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        first = await resolve(backend.store, START)
        for endpoint, supplied in [
            (Endpoint.TRACK, None),
            (Endpoint.TRACK, first.session_id),
            (Endpoint.CUSTOMER_EVENTS, first.session_id),
        ]:
            session = await resolve(backend.store, START - IDLE, endpoint=endpoint, supplied=supplied)
            assert session == Session(first.session_id, is_new=False)
        assert await resolve(backend.store, START + IDLE) == Session(first.session_id, is_new=False)


async def test_a_late_callback_does_not_replace_or_prolong_the_live_session(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        old, live = str(uuid4()), await resolve(backend.store, START)
        callback = await resolve(backend.store, START + IDLE, endpoint=Endpoint.CUSTOMER_EVENTS, supplied=old.upper())
        assert callback == Session(old, is_new=False)
        assert await resolve(backend.store, START + IDLE) == Session(live.session_id, is_new=False)
        await resolve(backend.store, START + 2 * IDLE, endpoint=Endpoint.CUSTOMER_EVENTS, supplied=old)
        assert (await resolve(backend.store, START + 2 * IDLE + 1)).is_new


async def test_a_callback_of_the_live_session_is_activity_in_it(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        live = await resolve(backend.store, START)
        await resolve(backend.store, START + IDLE, endpoint=Endpoint.CUSTOMER_EVENTS, supplied=live.session_id)
        assert await resolve(backend.store, START + 2 * IDLE) == Session(live.session_id, is_new=False)


async def test_copies_of_the_message_that_begins_a_session_all_tell_that_it_is_new(tmp_path: Path) -> None:
    """Any copy may be the stored one. The pipeline stores only one."""
    async with sqlite_backend(tmp_path) as backend:
        first = await resolve(backend.store, START, message="m-1")
        assert first.is_new
        for endpoint in Endpoint.BUILT_IN:
            assert await resolve(backend.store, START + 1, message="m-1", endpoint=endpoint) == first
        for message in ("m-2", None):
            assert await resolve(backend.store, START + 2, message=message) == Session(first.session_id, is_new=False)
        assert (await resolve(backend.store, START, message="m-1", visitor="w")).session_id != first.session_id
        assert (await resolve(backend.store, START, message="m-1", tenant="other")).session_id != first.session_id


@given(pause=st.integers(IDLE + 1, 3 * IDLE), start=st.integers(START, START + 2 * IDLE))
@examples(20)
def test_a_late_copy_of_a_message_does_not_revive_its_ended_session(pause: int, start: int) -> None:
    async def run(folder: Path) -> None:
        async with sqlite_backend(folder) as backend:
            before = await resolve(backend.store, start, message="m")
            after = await resolve(backend.store, start + pause, message="m")
            assert after.is_new
            assert after.session_id != before.session_id

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def test_tenants_and_visitors_never_share_a_session(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path) as backend:
        who = [("shop", "v"), ("shop", "w"), ("sho", "pv"), ("shopv", ""), ("other", "v"), ("3:a", "b"), ("3", ":ab")]
        sessions = [await resolve(backend.store, START, tenant=tenant, visitor=visitor) for tenant, visitor in who]
        assert all(session.is_new for session in sessions)
        assert len({session.session_id for session in sessions}) == len(who)
