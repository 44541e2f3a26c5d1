"""Events that plugins drop or change.

An event that `prepare` drops leaves nothing behind. An event that it changes is stored as if the caller had sent it so.
An event that `filter_event` drops leaves its session to the next event.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPResponse

from ingestd.api import hookimpl
from ingestd.api.errors import BadRequest
from ingestd.api.events import Event, Request
from ingestd.plugins.identity import IdentityPlugin
from tests.support.door import PAGE_VIEW, Door, MakeDoor

SESSION = "5C3F1F0E-3F0A-4F0C-8F53-3A4A4C7F0A11"
CRAWLER = {"User-Agent": "crawler/1.0"}


class Crawlers:
    """Drops events by the request's user agent or the event's `context`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str | None]] = []

    @hookimpl
    def prepare(self, event: Event, request: Request) -> str | None:
        self.seen.append((event.type, request.peer, event.session_id))
        event.session_id = None  # a dropped event is answered with the session that the caller named
        if request.headers.get("user-agent", "").startswith("crawler") or event.context.get("crawler"):
            return "a crawler"
        return None


def session(answer: HTTPResponse) -> dict[str, Any]:
    assert answer.code == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)["session"]
    return found


def sessions_begun(public: Door) -> float | None:
    return public.metrics.registry.get_sample_value("ingestd_sessions_begun_total")


async def test_a_dropped_event_leaves_no_session_no_message_and_no_link(door: MakeDoor, tmp_path: Path) -> None:
    crawlers = Crawlers()
    async with door(tmp_path, crawlers, IdentityPlugin(IdentityPlugin.Options())) as public:
        event = {**PAGE_VIEW, "messageId": "m"}
        identify = {"anonymousId": "visitor", "userId": "ann", "traits": {"plan": "gold"}}
        first = session(await public.post(event, **CRAWLER))
        again = session(await public.post(event, **CRAWLER))
        assert first["isNew"]
        assert again["isNew"]
        assert first["sessionId"] != again["sessionId"]
        named = session(await public.post({**event, "sessionId": SESSION}, **CRAWLER))
        assert named == {"sessionId": SESSION.lower(), "isNew": False}
        session(await public.post(identify, "/identify/public", **CRAWLER))
        assert await public.records() == []
        assert (public.counted("dropped"), sessions_begun(public)) == (3, 0)

        live = session(await public.post(event))
        assert live["isNew"], "the session begins with the first event that is stored"
        assert live["sessionId"] not in {first["sessionId"], again["sessionId"], SESSION.lower()}
        [record] = await public.records()
        assert (record["sessionIsNew"], record["userId"], record["messageId"]) == (True, None, "m")
        session(await public.post({**PAGE_VIEW, "sessionId": SESSION}, **CRAWLER))
        assert session(await public.post()) == {"sessionId": live["sessionId"], "isNew": False}
        assert (public.counted("accepted"), public.counted("duplicate"), sessions_begun(public)) == (2, None, 1)
        assert crawlers.seen[2:4] == [("event", "127.0.0.1", SESSION), ("identify", "127.0.0.1", None)]


async def test_each_event_of_a_batch_is_dropped_alone(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Crawlers(), IdentityPlugin(IdentityPlugin.Options())) as public:
        crawler: dict[str, Any] = {**PAGE_VIEW, "context": {"crawler": True}}
        link = {"type": "identify", "anonymousId": "visitor", "userId": "ann", "context": {"crawler": True}}
        events = [crawler, {**PAGE_VIEW, "messageId": "m"}, {"key": "no key"}, link, crawler, PAGE_VIEW]
        answer = await public.post({"events": events}, "/batch")
        results = json.loads(answer.body)["results"]
        assert [result["status"] for result in results] == [200, 200, 400, 200, 200, 200]
        assert [result["session"]["isNew"] for result in results if "session" in result] == [True] * 4 + [False]
        assert len({result["session"]["sessionId"] for result in results if "session" in result}) == 4
        assert [record["sessionIsNew"] for record in await public.records()] == [True, False]
        assert [record["userId"] for record in await public.records()] == [None, None]
        assert (public.counted("accepted"), public.counted("dropped"), sessions_begun(public)) == (2, 2, 1)

        whole = json.loads((await public.post({"events": [crawler] * 3}, "/batch")).body)["results"]
        assert [result["status"] for result in whole] == [200] * 3
        assert len(await public.records()) == 2


class Changing:
    """Sets the fields in the event's `data`."""

    @hookimpl
    def prepare(self, event: Event, request: Request) -> None:
        for name, value in event.data.pop("set", {}).items():
            setattr(event, name, value)


@pytest.mark.logs("a request to track failed", "a request to track-batch failed", "unusable ids as anonymousId")
async def test_a_changed_event_is_stored_as_if_the_caller_had_sent_it_so(door: MakeDoor, tmp_path: Path) -> None:
    def changed(visitor: str = "visitor", **fields: Any) -> dict[str, Any]:
        return {**PAGE_VIEW, "anonymousId": visitor, "data": {"set": fields}}

    async with door(tmp_path, Changing(), IdentityPlugin(IdentityPlugin.Options())) as public:
        await public.post({"anonymousId": "other", "userId": "ann"}, "/identify/public")
        other = session(await public.post({**PAGE_VIEW, "anonymousId": "other"}))["sessionId"]
        assert session(await public.post(changed(anonymous_id="other"))) == {"sessionId": other, "isNew": False}
        assert session(await public.post(changed(session_id=SESSION)))["sessionId"] == SESSION.lower()
        for _ in range(2):
            session(await public.post(changed("nobody", message_id="order 1", context={"a": 1}, dispatch_id="d")))
        lone = [session(await public.post(changed(anonymous_id="undefined"))) for _ in range(2)]
        assert [each["isNew"] for each in lone] == [True, True]
        session(await public.post(changed("null", anonymous_id="other", user_id="bob", extra={"b": 2})))
        assert (await public.post(changed(session_id='"'))).code == 500
        batch = {"events": [changed(), changed(anonymous_id=""), changed(anonymous_id="other")]}
        results = json.loads((await public.post(batch, "/batch")).body)["results"]
        assert [result["status"] for result in results] == [200, 500, 200]
        assert results[2]["session"]["sessionId"] == other

        stored = await public.records()
        assert [(record["anonymousId"], record["userId"]) for record in stored[2:]] == [
            ("other", "ann"), ("visitor", None), ("nobody", None), ("undefined", None), ("undefined", None),
            ("other", "bob"), ("visitor", None), ("other", "ann"),
        ]  # fmt: skip
        assert (stored[4]["context"], stored[4]["dispatchId"], stored[7]["extra"]) == ({"a": 1}, "d", {"b": 2})
        assert public.counted("duplicate") == 1


class Picky:
    """Refuses the events of one visitor, and fails with those of another."""

    @hookimpl
    def prepare(self, event: Event) -> None:
        if event.anonymous_id == "refused":
            raise BadRequest("not this one")
        if event.anonymous_id == "odd":
            raise RuntimeError("the password is hunter2")


@pytest.mark.logs("a request to track failed", "a request to identify failed", "a request to track-batch failed")
async def test_an_exception_of_prepare_decides_the_answer_to_its_event(door: MakeDoor, tmp_path: Path) -> None:
    async with door(tmp_path, Picky()) as public:
        visitors = ["a", "refused", "odd", "b"]
        batch = {"events": [{**PAGE_VIEW, "anonymousId": visitor} for visitor in visitors]}
        answer = await public.post(batch, "/batch")
        assert [result["status"] for result in json.loads(answer.body)["results"]] == [200, 400, 500, 200]
        assert b"hunter2" not in answer.body
        for visitor, status in (("refused", 400), ("odd", 500)):
            for path, body in (("/track", PAGE_VIEW), ("/identify/public", {})):
                assert (await public.post({**body, "anonymousId": visitor}, path)).code == status
        assert [record["anonymousId"] for record in await public.records()] == ["a", "b"]
        assert (public.counted("invalid"), public.counted("failed")) == (2, 2)


class Filter:
    """Drops events with `drop` in their context, after their session is known."""

    @hookimpl
    def filter_event(self, event: Event) -> str | None:
        return "not wanted" if event.context.get("drop") else None


async def test_the_first_record_of_a_session_tells_that_it_is_new_even_after_filtered_events(
    door: MakeDoor, tmp_path: Path
) -> None:
    dropped = {**PAGE_VIEW, "context": {"drop": True}}
    async with door(tmp_path, Filter(), IdentityPlugin(IdentityPlugin.Options())) as public:
        first = session(await public.post(dropped))
        session(await public.post({"anonymousId": "visitor", "context": {"drop": True}}, "/identify/public"))
        assert (first["isNew"], sessions_begun(public)) == (True, 0)
        answers = [session(await public.post()) for _ in range(2)]
        assert {answer["sessionId"] for answer in answers} == {first["sessionId"]}
        session(await public.post(dropped))
        session(await public.post({**dropped, "sessionId": SESSION}))
        session(await public.post({**PAGE_VIEW, "sessionId": SESSION}))
        session(await public.post())
        told = [(record["sessionId"], record["sessionIsNew"]) for record in await public.records()]
        mine, supplied = first["sessionId"], SESSION.lower()
        assert told == [(mine, True), (mine, False), (supplied, True), (supplied, False)]

        events = [{**event, "anonymousId": "other"} for event in (dropped, dropped, PAGE_VIEW, dropped, PAGE_VIEW)]
        results = json.loads((await public.post({"events": events}, "/batch")).body)["results"]
        assert len({result["session"]["sessionId"] for result in results}) == 1
        assert [record["sessionIsNew"] for record in (await public.records())[4:]] == [True, False]
        assert (public.counted("dropped"), sessions_begun(public)) == (6, 3)
