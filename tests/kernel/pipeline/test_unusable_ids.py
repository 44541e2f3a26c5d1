"""An event with an unusable anonymousId is stored and answered, and leaves no state, on any back end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pluggy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.api import hookimpl, hookspecs
from ingestd.api.backend import Backend
from ingestd.api.events import Endpoint, Principal, Request
from ingestd.api.times import now
from ingestd.config import HttpOptions
from ingestd.hooks.caller import Hooks
from ingestd.observability.metrics import Metrics
from ingestd.observability.unusable_id_reports import IdField, UnusableIdReports
from ingestd.pipeline.handler import Pipeline
from ingestd.pipeline.outcomes import Answer, Outcomes
from ingestd.pipeline.processor import Processors
from ingestd.plugins.identity import IdentityPlugin
from ingestd.plugins.session import SessionPlugin
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.scheduling.room import Backpressure
from ingestd.support.unusable_ids import UNUSABLE, UnusableIds
from ingestd.validation.validator import Validator
from tests.support.backends import sqlite_backend
from tests.support.journals import read_all
from tests.support.redis_server import RedisServer, redis_server

WARNINGS = pytest.mark.logs(r"ingestd\.ids WARNING clients send unusable ids as (anonymousId|userId|order_id)")
KINDS = ("session", "link", "anonymous-profile", "user-profile")
VALIDATOR = Validator.load(None)
SUPPLIED = "5C3F1F0E-3F0A-4F0C-8F53-3A4A4C7F0A11"


class Everyone:
    @hookimpl
    def authenticate(self) -> Principal:
        return Principal("shop", "key", {"CRM": frozenset(["ADMIN"])})


class Door:
    """A pipeline on a back end, with the plugins that remember visitors."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.metrics = Metrics()
        manager = pluggy.PluginManager(hookspecs.HOOK_NAMESPACE)
        manager.add_hookspecs(hookspecs)
        for plugin in (Everyone(), SessionPlugin(SessionPlugin.Options()), IdentityPlugin(IdentityPlugin.Options())):
            manager.register(plugin)
        hooks = Hooks(manager)
        self._pipeline = Pipeline(
            hooks, VALIDATOR, Processors(hooks, backend.store, backend.partitions, [Backpressure(10_000)]),
            Outcomes(self.metrics), HttpOptions(), unusable_ids=UnusableIds(),
        )  # fmt: skip

    async def send(self, endpoint: Endpoint, body: dict[str, Any], *, batch: bool = False) -> dict[str, Any]:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        text = json.dumps(body).encode()
        request = Request(endpoint, {}, text, received_at=now(), batch=batch)
        await self._pipeline.handle(request, answered.set_result)
        answer = await answered
        assert answer.status == 200, answer.body
        told: dict[str, Any] = json.loads(answer.body)
        return told

    async def remembered(self) -> list[str]:
        store = self.backend.store
        return [key for kind in KINDS async for key, _ in store.scan(kind)]

    async def records(self) -> list[dict[str, Any]]:
        return [record.decode() for record in await read_all(self.backend.journal)]

    def counted(self, field: IdField) -> float | None:
        return self.metrics.registry.get_sample_value("ingestd_unusable_ids_total", {"field": field.value})


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def open_door(kind: str, folder: Path, redis: RedisServer) -> AsyncIterator[Door]:
    if kind == "sqlite":
        async with sqlite_backend(folder) as backend:
            yield Door(backend)
        return
    backend = RedisBackend(make_pool(redis.url, (), timeout=2), prefix=f"{uuid4()}:", timeout=2, patience=5)
    await backend.open(serving=False)
    try:
        yield Door(backend)
    finally:
        await backend.close()


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bool, dict[str, Any]]:
    """Whether it is an identify request, and a body with an unusable anonymousId in any spelling."""
    word = draw(st.sampled_from(UNUSABLE))
    body: dict[str, Any] = {"anonymousId": draw(st.sampled_from([word, word.upper(), f" {word}\n", f'"{word}"', " "]))}
    is_identify = draw(st.booleans())
    body |= {"traits": {"email": "ann@shop.example"}} if is_identify else {"key": "Page View", "data": {}}
    optional: dict[str, list[str | None]] = {
        "userId": ["ann", "null", None], "sessionId": [SUPPLIED], "messageId": ["m-1", "m-2"],
    }  # fmt: skip
    for name, values in optional.items():
        if draw(st.booleans()):
            body[name] = draw(st.sampled_from(values))
    return is_identify, body


@WARNINGS
def test_unusable_ids_leave_no_state(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    with asyncio.Runner() as runner:
        opened = open_door(kind, tmp_path, redis)
        door = runner.run(opened.__aenter__())
        sent = 0

        @given(st.lists(bodies(), min_size=1, max_size=5), st.booleans())
        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        def holds(events: list[tuple[bool, dict[str, Any]]], in_a_batch: bool) -> None:
            nonlocal sent
            if in_a_batch:
                batch = [{**body, **({"type": "identify"} if is_identify else {})} for is_identify, body in events]
                runner.run(door.send(Endpoint.TRACK, {"events": batch}, batch=True))
            else:
                for is_identify, body in events:
                    runner.run(door.send(Endpoint.IDENTIFY if is_identify else Endpoint.TRACK, body))
            sent += len(events)
            assert runner.run(door.remembered()) == []
            assert door.counted(IdField.ANONYMOUS_ID) == sent

        holds()
        for record in runner.run(door.records()):
            assert record["userId"] in {None, "ann", "null"}
        runner.run(opened.__aexit__(None, None, None))


@WARNINGS
async def test_each_event_without_a_visitor_has_a_separate_session(
    kind: str, tmp_path: Path, redis: RedisServer
) -> None:
    page: dict[str, Any] = {"key": "Page View", "data": {}, "anonymousId": "undefined"}
    async with open_door(kind, tmp_path, redis) as door:
        answers = [await door.send(Endpoint.TRACK, page) for _ in range(3)]
        told = await door.send(Endpoint.TRACK, {"events": [page] * 3}, batch=True)
        sessions = [answer["session"] for answer in [*answers, *told["results"]]]
        assert [session["isNew"] for session in sessions] == [True] * 6
        assert len({UUID(session["sessionId"]) for session in sessions}) == 6
        supplied = await door.send(Endpoint.TRACK, {**page, "sessionId": SUPPLIED})
        assert supplied["session"] == {"sessionId": SUPPLIED.lower(), "isNew": False}
        signed = await door.send(Endpoint.CUSTOMER_EVENTS, {**page, "sessionId": SUPPLIED})
        assert signed == {"session": {"sessionId": SUPPLIED.lower()}}
        assert [record["sessionId"] for record in await door.records()] == [
            *(session["sessionId"] for session in sessions), SUPPLIED.lower(), SUPPLIED.lower(),
        ]  # fmt: skip


@WARNINGS
async def test_a_message_without_a_visitor_is_stored_once(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    page: dict[str, Any] = {"key": "Page View", "data": {}, "anonymousId": "undefined", "messageId": "m"}
    async with open_door(kind, tmp_path, redis) as door:
        answers = await asyncio.gather(*(door.send(Endpoint.TRACK, page) for _ in range(5)))
        answers.append(await door.send(Endpoint.TRACK, {**page, "anonymousId": "visitor"}))
        told = await door.send(Endpoint.TRACK, {"events": [page, page]}, batch=True)
        sessions = [answer["session"] for answer in [*answers, *told["results"]]]
        assert sessions == [sessions[0]] * 8
        assert len(await door.records()) == 1


@WARNINGS
async def test_an_event_without_a_visitor_gets_no_user(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    page: dict[str, Any] = {"key": "Page View", "data": {}}
    async with open_door(kind, tmp_path, redis) as door:
        for visitor, user in ("undefined", "ann"), ("visitor", "bob"), ("visitor", "undefined"):
            await door.send(Endpoint.IDENTIFY, {"anonymousId": visitor, "userId": user})
        for visitor, name in ("undefined", None), ("visitor", None), ("visitor", "0"):
            await door.send(Endpoint.TRACK, {**page, "anonymousId": visitor, "userId": name})
        users = [record["userId"] for record in await door.records()]
        assert users == ["ann", "bob", "undefined", None, "bob", "0"]
        assert door.counted(IdField.USER_ID) == 2
        assert door.counted(IdField.ANONYMOUS_ID) == 2


@WARNINGS
async def test_unusable_order_ids_are_counted(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    async with open_door(kind, tmp_path, redis) as door:
        for order_id in "undefined", "NaN ", "o-1", "":
            data = {"order_id": order_id}
            await door.send(Endpoint.TRACK, {"key": "Order Completed", "data": data, "anonymousId": "visitor"})
        assert door.counted(IdField.ORDER_ID) == 2
        assert door.counted(IdField.ANONYMOUS_ID) == 0


@WARNINGS
def test_each_field_has_one_warning_an_hour_with_the_number_of_unusable_ids(caplog: pytest.LogCaptureFixture) -> None:
    time, counted = 0.0, dict.fromkeys(IdField, 0)

    def count(field: IdField) -> None:
        counted[field] += 1

    reports = UnusableIdReports(count, lambda: time)
    for minute in range(121):
        time = minute * 60.0
        reports.report(IdField.USER_ID)
        if minute == 30:
            reports.report(IdField.ORDER_ID)
    lines = [record.getMessage() for record in caplog.records if record.name == "ingestd.ids"]
    assert [line.partition(" since ")[0].removeprefix("clients send unusable ids as ") for line in lines] == [
        "userId; 1 of them", "order_id; 1 of them", "userId; 60 of them", "userId; 60 of them",
    ]  # fmt: skip
    assert counted == {IdField.ANONYMOUS_ID: 0, IdField.USER_ID: 121, IdField.ORDER_ID: 1}
