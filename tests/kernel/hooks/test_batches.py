"""The calls of plugins for a batch, and the other events of a batch in which one event fails."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPResponse

from ingestd.api import hookimpl
from ingestd.api.errors import BadRequest, Limited
from ingestd.api.events import Endpoint, Event, Principal, Request
from ingestd.api.options import Size
from ingestd.api.store import State
from ingestd.config import HttpOptions
from ingestd.http.app import BASE_PATH
from ingestd.pipeline.event_order import ordering_keys
from tests.support.door import PAGE_VIEW, Door, MakeDoor, Slow


def of(*visitors: str) -> dict[str, Any]:
    return {"events": [{**PAGE_VIEW, "anonymousId": visitor} for visitor in visitors]}


def results(answer: HTTPResponse) -> list[Any]:
    assert answer.code == 200, answer.body
    found: list[Any] = json.loads(answer.body)["results"]
    return found


class Picky:
    """Fails with one visitor after writing state, drops the events of another, and refuses those of a third."""

    @hookimpl
    async def enrich(self, event: Event, state: State) -> None:
        if event.anonymous_id == "odd":
            raise RuntimeError("the password is hunter2")
        if event.anonymous_id == "fast":
            raise Limited("Slowly, please.", retry_after=7)

    @hookimpl
    def filter_event(self, event: Event) -> str | None:
        return "a robot" if event.anonymous_id == "robot" else None


@pytest.mark.logs("a request to track-batch failed")
async def test_a_plugin_that_fails_with_one_event_fails_only_this_event(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Picky()) as public:
        answer = await public.post(of("a", "odd", "robot", "fast", "b", "odd"), "/batch")
        assert [result["status"] for result in results(answer)] == [200, 500, 200, 429, 200, 500]
        assert results(answer)[1]["code"] == "internal_error"
        assert results(answer)[3]["detail"] == "Slowly, please."
        assert b"hunter2" not in answer.body
        assert [record["anonymousId"] for record in await public.records()] == ["a", "b"]
        counted = {outcome: public.counted(outcome) for outcome in ("accepted", "failed", "dropped", "limited")}
        assert counted == {"accepted": 2, "failed": 2, "dropped": 1, "limited": 1}
        # The session of the failed event has begun nevertheless, as with a single event.
        assert results(await public.post(of("odd", "a"), "/batch"))[1]["session"]["isNew"] is False


class Strict:
    """Refuses one user and fails with another, both in `check_identity`."""

    @hookimpl
    def check_identity(self, event: Event) -> None:
        if event.user_id == "refused":
            raise BadRequest("not this one")
        if event.user_id == "odd":
            raise RuntimeError("the password is hunter2")


@pytest.mark.logs("a request to track-batch failed", "a request to identify failed")
async def test_an_identify_request_that_a_plugin_refuses_leaves_nothing(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Strict()) as public:
        users = ["ann", "refused", "odd", "bob"]
        batch = {"events": [{"type": "identify", "anonymousId": user, "userId": user} for user in users]}
        assert await statuses(public, batch) == [200, 400, 500, 200]
        for user, status in (("refused", 400), ("odd", 500)):
            answer = await public.post({"anonymousId": user, "userId": user}, "/identify/public")
            assert (answer.code, b"hunter2" in answer.body) == (status, False)
        assert await stored(public) == ["ann", "bob"]
        answers = results(await public.post(of(*users), "/batch"))
        assert [answer["session"]["isNew"] for answer in answers] == [False, True, True, False]


class Unstorable:
    """Writes a text that no store can keep for the events of one user."""

    @hookimpl
    async def enrich(self, event: Event, state: State) -> None:
        if event.user_id == "odd":
            await state.put("unstorable:odd", "\ud800")


class Emptying:
    """Drops every event."""

    @hookimpl
    def filter_event(self, event: Event) -> str:
        return "not wanted"


KNOWN = ["a", "b", "c", "d", "e"]


def one_odd(messages: dict[int, str] | None = None) -> dict[str, Any]:
    """A batch of the known visitors. The third event has the user of `Unstorable`."""
    batch = of(*KNOWN)
    batch["events"][2]["userId"] = "odd"
    for index, message in (messages or {}).items():
        batch["events"][index]["messageId"] = message
    return batch


async def statuses(public: Door, batch: dict[str, Any]) -> list[int]:
    return [result["status"] for result in results(await public.post(batch, "/batch"))]


async def stored(public: Door) -> list[str]:
    return [record["anonymousId"] for record in await public.records()]


for_both = pytest.mark.parametrize("known", [KNOWN, []], ids=["known visitors", "strangers"])
"""Events of visitors whose state is in memory share a transaction. Each other event has a separate transaction."""


@pytest.mark.logs("one event could not be stored because of its content")
@for_both
async def test_an_event_that_can_never_be_stored_fails_alone(door: MakeDoor, tmp_path: Path, known: list[str]) -> None:
    async with door(tmp_path, Unstorable()) as public:
        for visitor in known:
            assert await statuses(public, of(visitor)) == [200]
        assert await statuses(public, one_odd()) == [200, 200, 500, 200, 200]
        assert await stored(public) == [*known, "a", "b", "d", "e"]


@pytest.mark.logs("one event could not be stored because of its content")
@for_both
async def test_an_unstorable_write_of_a_dropped_event_fails_no_other_event(
    door: MakeDoor, tmp_path: Path, known: list[str]
) -> None:
    async with door(tmp_path, Unstorable(), Emptying()) as public:
        for visitor in known:
            assert await statuses(public, of(visitor)) == [200]
        assert await statuses(public, one_odd()) == [200, 200, 500, 200, 200]
        assert await stored(public) == []


@pytest.mark.logs("one event could not be stored because of its content")
@for_both
async def test_only_the_repetition_of_a_stored_message_is_a_duplicate(
    door: MakeDoor, tmp_path: Path, known: list[str]
) -> None:
    async with door(tmp_path, Unstorable()) as public:
        for visitor in known:
            assert await statuses(public, of(visitor)) == [200]
        batch = one_odd({1: "1", 2: "2", 3: "3"})
        assert await statuses(public, batch) == [200, 200, 500, 200, 200]
        del batch["events"][2]["userId"]
        assert await statuses(public, batch) == [200] * 5
        assert await stored(public) == [*known, "a", "b", "d", "e", "a", "c", "e"]
        assert public.counted("duplicate") == 2


class Watchful:
    """Records the calls of `admit`, and admits at most `most` events."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[tuple[Endpoint, bool, int]] = []

    @hookimpl
    def admit(self, request: Request, principal: Principal | None) -> None:
        self.seen.append((request.endpoint, request.batch, request.events))
        if request.events > self.most:
            raise Limited("Too many.", retry_after=3)


async def test_a_batch_is_admitted_as_a_whole_by_its_number_of_events(door: MakeDoor, tmp_path: Path) -> None:
    watchful = Watchful(2)
    async with door(tmp_path, watchful) as public:
        assert len(results(await public.post(of("a", "b"), "/batch"))) == 2
        refused = await public.post(of("a", "b", "c"), "/batch")
        assert (refused.code, refused.headers["Retry-After"]) == (429, "3")
        assert (await public.post({"events": 3}, "/batch")).code == 400
        assert (await public.post()).code == 200
        assert watchful.seen == [
            (Endpoint.TRACK, True, 2), (Endpoint.TRACK, True, 3), (Endpoint.TRACK, True, 1), (Endpoint.TRACK, False, 1),
        ]  # fmt: skip
        assert public.counted("limited", "") == 3
        assert public.counted("invalid", "") == 1
        assert len(await public.records()) == 3


async def test_the_events_of_other_visitors_do_not_wait_for_a_slow_plugin(door: MakeDoor, tmp_path: Path) -> None:
    class Lookup:
        """Answers when fifty events are there."""

        def __init__(self) -> None:
            self.full = asyncio.Event()
            self.together = 0

        @hookimpl
        async def enrich(self, event: Event) -> None:
            self.together += 1
            if self.together == 50:
                self.full.set()
            await asyncio.wait_for(self.full.wait(), 10)
            event.extra["seen"] = time.monotonic_ns()

    lookup = Lookup()
    async with door(tmp_path, lookup) as public:
        answer = await public.post(of(*[f"visitor {number % 50}" for number in range(100)]), "/batch")
        assert [result["session"]["isNew"] for result in results(answer)] == [True] * 50 + [False] * 50
        records = await public.records()
        assert [record["anonymousId"] for record in records] == [f"visitor {number % 50}" for number in range(100)]
        assert all(records[number]["extra"]["seen"] < records[number + 50]["extra"]["seen"] for number in range(50))


class Turns:
    """Waits with each event for the turns in its `context`, and checks that no dependent event is in progress."""

    def __init__(self) -> None:
        self.under_way: dict[str, Event] = {}
        self.order: list[str] = []

    @hookimpl
    async def enrich(self, event: Event) -> None:
        number = event.data["title"]
        assert not [
            each for each in self.under_way.values() if not {*ordering_keys(each)}.isdisjoint(ordering_keys(event))
        ]
        self.under_way[number] = event
        self.order.append(number)
        for _ in range(event.context["turns"]):
            await asyncio.sleep(0)
        del self.under_way[number]


async def test_dependent_events_of_a_batch_are_handled_one_after_the_other(door: MakeDoor, tmp_path: Path) -> None:
    turns, choose = Turns(), random.Random(7)
    events: list[dict[str, Any]] = [
        {
            **PAGE_VIEW,
            "anonymousId": choose.choice("abcdef"),
            "data": {"title": f"{number}"},
            "context": {"turns": choose.choice([0, 0, 0, 1, 5])},
            **({"messageId": f"m-{number}"} if choose.random() < 0.3 else {}),
        }
        for number in range(300)
    ]
    async with door(tmp_path, turns) as public:
        answers = results(await public.post({"events": events}, "/batch"))
        assert {answer["status"] for answer in answers} == {200}
        for visitor in "abcdef":
            numbers = [event["data"]["title"] for event in events if event["anonymousId"] == visitor]
            assert [number for number in turns.order if number in numbers] == numbers
        assert turns.order != sorted(turns.order, key=int), "independent events did not wait for each other"
        assert [record["data"]["title"] for record in await public.records()] == [f"{n}" for n in range(300)]


async def test_a_batch_of_known_visitors_has_one_event_in_memory_at_a_time(door: MakeDoor, tmp_path: Path) -> None:
    others = [each for each in gc.get_objects() if isinstance(each, Event)]  # of other tests; the list keeps them alive

    class Census:
        most = 0

        @hookimpl
        def prepare(self, event: Event) -> None:
            self.count()  # the event before it is freed by now

        @hookimpl
        def enrich(self, event: Event) -> None:
            self.count()

        def count(self) -> None:
            found = sum(isinstance(each, Event) for each in gc.get_objects())
            self.most = max(self.most, found - len(others))

    census = Census()
    batch = of(*[f"visitor {number % 20}" for number in range(100)])
    async with door(tmp_path, census) as public:
        await public.post(batch, "/batch")
        census.most = 0
        assert len(results(await public.post(batch, "/batch"))) == 100
        assert census.most == 1


async def test_batches_wait_in_a_room_of_their_own(door: MakeDoor, tmp_path: Path) -> None:
    slow = Slow()
    options = HttpOptions(max_waiting=1, max_buffered=Size.parse("10kB"))
    async with door(tmp_path, slow, options=options) as public:
        sample = public.metrics.registry.get_sample_value
        # A batch larger than the bound of its key is accepted if none of the key waits.
        batch = of(*[f"visitor {number}" for number in range(40)])
        first = asyncio.ensure_future(public.post(batch, "/batch"))
        await slow.arrived.wait()
        assert (sample("ingestd_waiting_events"), sample("ingestd_waiting_batches")) == (40, 1)
        assert public.connections.buffered > 0
        refused = await public.post(of("e", "f"), "/batch")
        assert (refused.code, json.loads(refused.body)["code"]) == (503, "unavailable")
        assert "batches of this key" in json.loads(refused.body)["detail"]
        assert refused.headers["Retry-After"] == "1"
        assert sample("ingestd_batches_refused_total", {"by": "key"}) == 1
        assert public.counted("unavailable", "") == 1  # its events are not counted before it is read
        single = asyncio.ensure_future(public.post())  # has its own room
        while sample("ingestd_waiting_events") != 41:  # noqa: ASYNC110 - no answer shows it
            await asyncio.sleep(0.01)
        slow.go.set()
        assert (await single).code == 200
        assert [result["status"] for result in results(await first)] == [200] * 40
        assert [result["status"] for result in results(await public.post(of("e", "f", "g"), "/batch"))] == [200] * 3
        assert (sample("ingestd_waiting_events"), sample("ingestd_waiting_batches")) == (0, 0)


async def test_the_room_of_a_batch_whose_client_leaves_comes_back(door: MakeDoor, tmp_path: Path) -> None:
    slow = Slow()
    async with door(tmp_path, slow, options=HttpOptions(max_buffered=Size.parse("20kB"))) as public:
        body = json.dumps(of("a", "b")).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", public.port)
        head = f"POST {BASE_PATH}/batch HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await slow.arrived.wait()
        writer.close()
        slow.go.set()
        while public.metrics.registry.get_sample_value("ingestd_waiting_batches"):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        assert public.connections.buffered == 0
        assert (await public.post(of(*"abcdefgh"), "/batch")).code == 200


async def test_beside_single_events_the_refusal_of_a_long_request_waits_and_its_bytes_do_not(
    door: MakeDoor, tmp_path: Path
) -> None:
    async with door(tmp_path) as public:
        assert (await public.post()).code == 200
        body = b"no JSON" * 2000
        refused = asyncio.ensure_future(public.fetch(f"{BASE_PATH}/batch", body))
        while not public.counted("invalid", ""):  # noqa: ASYNC110 - no answer shows it
            await asyncio.sleep(0.01)
        assert not refused.done()
        assert public.connections.buffered < len(body)
        missing = asyncio.ensure_future(public.fetch("/nowhere", body))
        assert (await public.fetch("/nowhere", b"short")).code == 404
        assert not missing.done()
        assert [answer.code for answer in await asyncio.gather(refused, missing)] == [400, 404]


async def test_an_event_of_a_batch_may_be_as_large_as_a_single_one(door: MakeDoor, tmp_path: Path) -> None:
    options = HttpOptions(max_body=Size.parse("1kB"), max_batch_body=Size.parse("5kB"))
    async with door(tmp_path, options=options) as public:
        just: dict[str, Any] = {**PAGE_VIEW, "text": "x" * (1000 - len(json.dumps({**PAGE_VIEW, "text": ""})))}
        over = {**just, "text": just["text"] + "x"}
        assert [(await public.post(event)).code for event in (just, over)] == [200, 413]
        answer = await public.post({"events": [just, over, just]}, "/batch")
        assert [result["status"] for result in results(answer)] == [200, 413, 200]
        assert results(answer)[1]["code"] == "too_large"
        assert (await public.post({"events": [just] * 5}, "/batch")).code == 413
        assert public.counted("too_large", "") == 3
        assert len(await public.records()) == 3


async def test_each_event_of_a_batch_is_stored_with_the_client_s_address(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, options=HttpOptions(store_address="whole")) as public:
        identify: dict[str, Any] = {"type": "identify", "anonymousId": "b", "context": {"ip": "192.0.2.1"}}
        events = [*of("a")["events"], identify]
        await public.post({"events": events}, "/batch")
        assert [record["context"] for record in await public.records()] == [{"ip": "127.0.0.1"}, {"ip": "192.0.2.1"}]
