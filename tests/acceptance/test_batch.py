"""Batches: each event is answered and stored like a single event, on SQLite and on Redis."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.times import parse_time
from tests.support.clients import at_once
from tests.support.daemon import Daemon, Key, Reply, Shop, sign
from tests.support.redis_shop import redis_shop

PAGE: dict[str, Any] = {"key": "Page View", "data": {}}
SESSIONS = [str(uuid4()) for _ in range(2)]
MIB = 1 << 20


class Site(NamedTuple):
    """A shop with a running daemon and the keys of a second tenant."""

    shop: Shop
    daemon: Daemon
    public: Key
    server: Key

    def send(self, events: Any, **headers: str) -> Reply:
        return self.daemon.post("/batch", {"events": events}, self.shop.public.id, **headers)

    def send_signed(self, events: Any, key: Key | None = None) -> Reply:
        key = key or self.shop.server
        body = json.dumps({"events": events}).encode()
        return self.daemon.post("/customer-events/batch", body, key.id, x_signature=sign(key.secret, body))

    def records(self, visitor: str) -> list[dict[str, Any]]:
        return [record for record in self.shop.stored() if record.get("anonymousId") == visitor]

    def counted(self, outcome: str, key: str = "", endpoint: str = "track") -> float:
        return self.daemon.metric(f'ingestd_events_total{{endpoint="{endpoint}",key="{key}",outcome="{outcome}"}}')


@pytest.fixture(scope="module", params=["sqlite", "redis", "window"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("batch")
    if request.param == "sqlite":
        yield from _site(Shop(folder))
    else:
        apart = {"journal": 'url = "sqlite:journal.db"'} if request.param == "window" else {}
        with redis_shop(folder, apart) as shop:
            yield from _site(shop)


def _site(shop: Shop) -> Iterator[Site]:
    public, server = shop.create_key("public", "other"), shop.create_key("server", "other")
    with shop.serve() as daemon:
        yield Site(shop, daemon, public, server)


@pytest.fixture
def visitor() -> str:
    """A visitor that no other test uses."""
    return f"visitor-{uuid4()}"


def statuses(answer: Reply) -> list[int]:
    assert answer.status == 200, answer.body
    return [result["status"] for result in answer.json()["results"]]


# Answers


def test_events_of_a_visitor_see_the_effects_of_earlier_events(site: Site, visitor: str) -> None:
    page = {**PAGE, "anonymousId": visitor}
    answer = site.send(
        [page, {"type": "identify", "anonymousId": visitor, "userId": "user"}, {"type": "event", **page}]
    )
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    session_id = answer.json()["results"][0]["session"]["sessionId"]
    assert answer.json() == {
        "success": True,
        "results": [
            {"status": 200, "success": True, "session": {"sessionId": session_id, "isNew": is_new}}
            for is_new in (True, False, False)
        ],
    }
    records = site.records(visitor)
    assert [record["type"] for record in records] == ["event", "identify", "event"]
    assert [record["endpoint"] for record in records] == ["track", "identify", "track"]
    assert [record["userId"] for record in records] == [None, "user", "user"]
    assert [record["sessionIsNew"] for record in records] == [True, False, False]
    assert [record["extra"] for record in records] == [{}] * 3


def test_a_signed_batch_is_answered_like_signed_events(site: Site, visitor: str) -> None:
    page = {**PAGE, "anonymousId": visitor}
    supplied = {"type": "identify", "anonymousId": visitor, "userId": "user", "sessionId": SESSIONS[0]}
    answer = site.send_signed([page, supplied, {**page, "key": "No"}, page])
    first, second, third, fourth = answer.json()["results"]
    assert set(answer.json()) == {"results"}
    assert first == fourth == {"status": 200, "session": {"sessionId": first["session"]["sessionId"]}}
    # A server key does not replace the session of the visitor's browser.
    assert second == {"status": 200, "session": {"sessionId": SESSIONS[0]}}
    assert (third["status"], third["code"]) == (404, "unknown_key")
    records = site.records(visitor)
    assert [record["endpoint"] for record in records] == ["customer-events"] * 3
    assert [record["userId"] for record in records] == [None, "user", "user"]


def test_each_bad_event_is_answered_with_its_own_faults(site: Site, visitor: str) -> None:
    page = {**PAGE, "anonymousId": visitor}
    wrong_price = {"key": "Product Viewed", "anonymousId": visitor, "data": {"price": "1", "name": 2}}
    deep = json.loads('{"data":' + '{"a":' * 200 + "1" + "}" * 201)
    bad = [{}, wrong_price, {**page, "key": "Page view"}, 5, {**page, "type": "page"}, {**page, "type": None}, deep]
    answer = site.send([page, *bad, page])
    assert statuses(answer) == [200, 400, 400, 404, 400, 400, 400, 400, 200]
    results = answer.json()["results"]
    for event, result in zip(bad, results[1:-1], strict=True):
        if not isinstance(event, dict) or "type" not in event:
            alone = site.daemon.post("/track", event, site.shop.public.id)
            assert result == alone.json()  # pointers included
    assert {fault["pointer"] for fault in results[2]["errors"]} == {"/data/price", "/data/name"}
    assert [fault["pointer"] for fault in results[5]["errors"]] == ["/type"]
    assert len(site.records(visitor)) == 2


@pytest.mark.parametrize("signed", [False, True], ids=["public", "signed"])
def test_an_event_that_is_not_json_does_not_affect_the_others(site: Site, visitor: str, signed: bool) -> None:
    spoilt = [
        rb'{"a": "\ud83d"}', rb'{"a": "\ude00\ud83d"}', rb'{"a": "\ud83d\n"}', b'{"a": "\xff"}', b'{"a": "\0"}',
        b"{'a': 1}", b'{"a": 1e400}', b'{"a": NaN}', b'{"a": 01}', b'{"a": ' + b"9" * 5000 + b"}", b"undefined", b"",
        b'{"a": 1,}', b'{"a":[' * 5000 + b"]}" * 5000,
    ]  # fmt: skip
    good = json.dumps({**PAGE, "anonymousId": visitor}).encode()
    events = [good]
    for event in spoilt:
        events += [event, good]
    body = b'{"events": [' + b",".join(events) + b"]}"
    if signed:
        key = site.shop.server
        answer = site.daemon.post("/customer-events/batch", body, key.id, x_signature=sign(key.secret, body))
    else:
        answer = site.daemon.post("/batch", body, site.shop.public.id)
    assert statuses(answer) == [200, *[400, 200] * len(spoilt)]
    for result in answer.json()["results"][1::2]:
        assert result["code"] == "invalid_json"
        assert result["detail"]
    assert len(site.records(visitor)) == len(spoilt) + 1


def test_one_bad_event_among_a_thousand_does_not_affect_the_others(site: Site, visitor: str) -> None:
    events: list[Any] = [{**PAGE, "anonymousId": visitor, "number": number} for number in range(1000)]
    events[700] = {**events[700], "data": []}
    assert statuses(site.send(events)) == [400 if number == 700 else 200 for number in range(1000)]
    stored = [record["extra"]["number"] for record in site.records(visitor)]
    assert stored == [number for number in range(1000) if number != 700]


def test_record_ids_continue_from_the_request_id(site: Site, visitor: str) -> None:
    page = {**PAGE, "anonymousId": visitor}
    answer = site.send([page, {**page, "data": 1}, page])
    first, second = [record["id"] for record in site.records(visitor)]
    assert first == answer.headers["x-request-id"]
    assert int(second.replace("-", ""), 16) == int(first.replace("-", ""), 16) + 2


def test_copies_of_a_message_are_stored_once(site: Site, visitor: str) -> None:
    copy = {**PAGE, "anonymousId": visitor, "messageId": f"m-{visitor}"}
    other = {**copy, "anonymousId": f"{visitor}-2"}
    results = site.send([copy, copy, other]).json()["results"]
    assert results[0] == results[1] == results[2]
    assert results[0]["session"]["isNew"] is True
    assert site.send([copy]).json()["results"] == results[:1]
    assert site.daemon.post("/track", copy, site.shop.public.id).json() == {
        name: value for name, value in results[0].items() if name != "status"
    }
    assert len(site.records(visitor)) == 1
    assert site.records(f"{visitor}-2") == []


def test_simultaneous_batches_make_one_session_and_store_a_message_once(site: Site, visitor: str) -> None:
    events = [{**PAGE, "anonymousId": visitor, "messageId": f"{visitor}-{number}"} for number in range(20)]
    answers = at_once([lambda: site.send(events).json()["results"]] * 8)
    assert all(answer == answers[0] for answer in answers)
    records = site.records(visitor)
    assert sorted(record["messageId"] for record in records) == sorted(event["messageId"] for event in events)
    assert len({record["sessionId"] for record in records}) == 1
    assert [record["sessionIsNew"] for record in records].count(True) == 1


# A batch compared with the same events sent one after the other

visitors = st.sampled_from(["anna", "ben", "cleo"])
optional: dict[str, st.SearchStrategy[Any]] = {
    "userId": st.sampled_from(["u-1", "u-2", "", None, "guest"]),
    "sessionId": st.sampled_from(SESSIONS),
    "messageId": st.sampled_from(["m-1", "m-2", "m-3"]),
}
pages = st.fixed_dictionaries(
    {"key": st.just("Page View"), "data": st.just({}), "anonymousId": visitors}, optional=optional
)
identifies = st.fixed_dictionaries(
    {"type": st.just("identify"), "anonymousId": visitors},
    optional={**optional, "traits": st.dictionaries(st.sampled_from(["plan", "email"]), st.integers(0, 3))},
)
faulty = st.sampled_from([{}, 5, {"key": "No", "data": {}, "anonymousId": "anna"}, {**PAGE, "anonymousId": ""}])
public_batches = st.lists(pages | identifies | faulty, min_size=1, max_size=12)
signed_batches = st.lists(pages | faulty, min_size=1, max_size=12)


def named(event: Any, number: int) -> Any:
    """The event, with visitors, users and messages that only this example has."""
    if not isinstance(event, dict):
        return event
    own = {"anonymousId", "messageId", "userId"}
    return {
        name: f"{value}-{number}" if name in own and value not in {"", None, "guest"} else value
        for name, value in event.items()
    }


def one_by_one(site: Site, events: Sequence[Any], *, signed: bool) -> list[Any]:
    answers = []
    for event in events:
        kind = event.get("type", "event") if isinstance(event, dict) else "event"
        body = {name: value for name, value in event.items() if name != "type"} if isinstance(event, dict) else event
        if signed:
            answer = site.daemon.post_signed(body, site.server)
        else:
            path = "/identify/public" if kind == "identify" else "/track"
            answer = site.daemon.post(path, body, site.public.id)
        answers.append({"status": answer.status, **answer.json()})
    return answers


def alike(values: Sequence[Any]) -> list[Any]:
    """The values, with sessions replaced by numbers in the order of their appearance."""
    text = json.dumps(values)
    for number, session_id in enumerate(dict.fromkeys(re.findall(r'"sessionId": "([^"]*)"', text))):
        text = text.replace(session_id, f"session {number}")
    plain: list[Any] = json.loads(text)
    return plain


def test_the_time_of_sending_corrects_a_wrong_clock_of_a_device(site: Site) -> None:
    """The device's clock is a year slow. Each event is as old as the device says, and the bounds hold for its time."""

    def sent(visitor: str, sent_at: Any, *timestamps: Any, signed: bool = False) -> list[tuple[float, Any]]:
        """Age of each stored event in seconds, and the timestamp in its `extra`."""
        events = [{**PAGE, "anonymousId": visitor, "timestamp": timestamp} for timestamp in timestamps]
        body = json.dumps({"sentAt": sent_at, "events": events}).encode()
        if signed:
            key = site.shop.server
            answer = site.daemon.post("/customer-events/batch", body, key.id, x_signature=sign(key.secret, body))
        else:
            answer = site.daemon.post("/batch", body, site.shop.public.id)
        assert [result["status"] for result in answer.json()["results"]] == [200] * len(events)
        return [
            (
                (parse_time(record["receivedAt"]) or 0) / 1000 - (parse_time(record["timestamp"]) or 0) / 1000,
                record["extra"].get("timestamp"),
            )
            for record in site.records(visitor)
        ]

    slow = "2025-01-02T12:00:00+01:00"
    times = ["2025-01-02T10:59:59.500Z", "2025-01-01T11:00:01Z", "2025-01-01T10:59:59Z", "2025-01-02T11:00:01Z", "noon"]
    assert sent("slow", slow, *times) == [(0.5, None), (86399, None), (0, None), (0, None), (0, "noon")]
    assert sent("unset", "1970-01-01T00:01:00Z", "1970-01-01T00:00:30Z") == [(30, None)]
    # As in a single event, a time that nobody set stays in `extra`.
    assert sent("no date", slow, "1970-01-01T00:00:00Z") == [(0, "1970-01-01T00:00:00Z")]
    for name, useless in {"text": "now", "number": 5, "object": {}, "long": f"{slow}{'Z' * 9000}"}.items():
        assert sent(name, useless, times[0]) == [(0, None)]
    ((age, _),) = sent("backend", slow, times[0], signed=True)
    assert age > 86400 * 300  # a backend's clock is right


EXAMPLES = count()


@pytest.mark.parametrize("signed", [False, True], ids=["public", "signed"])
def test_a_batch_has_the_effect_of_its_events_one_after_the_other(site: Site, signed: bool) -> None:
    @given(signed_batches if signed else public_batches)
    def each(events: list[Any]) -> None:
        number = next(EXAMPLES)
        events = [named(event, number) for event in events]
        answer = site.send_signed(events) if signed else site.send(events)
        results, alone = answer.json()["results"], one_by_one(site, events, signed=signed)
        # Later events find the same state.
        after = [{**PAGE, "anonymousId": f"{visitor}-{number}"} for visitor in ("anna", "ben", "cleo")]
        results += site.send(after).json()["results"]
        alone += one_by_one(site, after, signed=False)
        assert alike(results) == alike(alone)
        numbers.append(number)

    numbers: list[int] = []
    each()
    by_tenant: dict[str, dict[str, list[Any]]] = {"shop": {}, "other": {}}
    for record in site.shop.stored():
        example = str(record.get("anonymousId", "")).rpartition("-")[2]
        if example.isdigit() and int(example) in numbers:
            own = {"id", "receivedAt", "timestamp", "tenant"}
            told = {name: value for name, value in record.items() if name not in own}
            by_tenant[record["tenant"]].setdefault(example, []).append(told)
    for example, records in by_tenant["shop"].items():
        assert alike(records) == alike(by_tenant["other"].pop(example))
    assert by_tenant["other"] == {}
