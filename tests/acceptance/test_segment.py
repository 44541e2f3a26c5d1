"""The SDKs of Segment and RudderStack send to a daemon as they do to their vendors, on one file and on Redis."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.support.daemon import Daemon, Reply, Shop, run_ingestd
from tests.support.recorded_requests import RECORDED, basic, recorded, session_of, stored_form, visitor_of
from tests.support.redis_shop import redis_shop

TYPES = ("track", "page", "screen", "identify", "group", "alias")
HEADERS_OF_SDKS = {
    "authorization", "content-type", "x-retry-count", "anonymousid", "sentat", "rsa-retry-attempt", "rsa-retry-reason",
    "rsa-since-first-attempt", "rsa-since-last-attempt", "rsa-recovered",
}  # fmt: skip


class Place(NamedTuple):
    shop: Shop
    daemon: Daemon

    def send(self, path: str, body: Any, *, key: str | None = None, **headers: str) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.daemon.request("POST", path, raw, {"Authorization": basic(key or self.shop.public.id), **named})

    def batch(self, *messages: Any, **envelope: Any) -> Reply:
        return self.send("/v1/batch", {"batch": messages, **envelope})

    def records(self, text: str) -> list[dict[str, Any]]:
        return [record for record in self.shop.stored(text) if record["type"] in {"event", "identify"}]

    def counted(self, outcome: str, key: str = "") -> float:
        return self.daemon.metric(f'ingestd_events_total{{endpoint="segment",key="{key}",outcome="{outcome}"}}')


@pytest.fixture(scope="module", params=["sqlite", "redis", pytest.param("tornado", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("segment")
    if request.param == "redis":
        with redis_shop(folder) as shared, shared.serve() as daemon:
            yield Place(shared, daemon)
    else:
        shop = Shop(folder, {"http": 'server = "tornado"'} if request.param == "tornado" else {})
        with shop.serve() as daemon:
            yield Place(shop, daemon)


@pytest.fixture
def visitor() -> str:
    """One that no other test has."""
    return f"visitor-{uuid4()}"


def taken(answer: Reply) -> bool:
    return (answer.status, answer.json()) == (200, {"success": True})


def rejected(answer: Reply) -> list[tuple[int, str | None, list[str]]]:
    assert answer.status == 200, answer.body
    assert answer.json()["success"] is True
    return [(each["index"], each["key"], each["pointers"]) for each in answer.json()["rejected"]]


def track(visitor: str, name: str = "Page View", **members: Any) -> dict[str, Any]:
    return {"type": "track", "event": name, "anonymousId": visitor, **members}


# What the SDKs send


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_request_becomes_its_records_even_if_it_comes_twice(place: Place, name: str) -> None:
    request = recorded(name, place.shop.public.id)
    for _ in range(2):
        answer = place.daemon.request("POST", request.path, request.body, request.headers)
        assert taken(answer), answer.body
        assert answer.headers["content-type"] == "application/json"
    for expected in request.records:
        (record,) = place.records(expected["messageId"])
        assert stored_form(record, expected) == expected
        assert (record["endpoint"], record["signed"]) == ("segment", False)


def test_a_retry_of_a_browser_is_another_body_of_the_same_message(place: Place, visitor: str) -> None:
    first = track(visitor, messageId=f"m-{visitor}", sentAt="2026-11-26T10:00:00.000Z")
    again = {**first, "userId": "u", "sentAt": "2026-11-26T10:00:05.000Z", "_metadata": {"retryCount": 1}}
    assert taken(place.send("/v1/t", first))
    assert taken(place.send("/v1/t", again, x_retry_count="1"))
    (record,) = place.records(visitor)
    assert record["userId"] is None


def test_each_type_has_its_paths(place: Place, visitor: str) -> None:
    message = {"event": "Page View", "anonymousId": visitor, "userId": f"u-{visitor}", "groupId": "g"}
    kinds = []
    for type_ in TYPES:
        for path in (f"/v1/{type_}", f"/v1/{type_}/", f"/v1/{type_[0]}", f"/{type_[0]}/"):
            assert taken(place.send(path, message))
            kinds.append("event" if type_ in {"track", "page", "screen"} else "identify")
    assert [record["type"] for record in place.records(visitor)] == kinds


def test_each_path_for_batches_takes_them(place: Place, visitor: str) -> None:
    paths = ["/v1/batch", "/v1/b/", "/v1/import", "/batch/", "/b", "/import", "/beacon/v1/batch/"]
    for path in paths:
        assert taken(place.send(path, {"batch": [track(visitor)]}))
    assert len(place.records(visitor)) == len(paths)


def test_an_empty_batch_is_taken(place: Place) -> None:
    assert taken(place.batch())


# Who sends


def test_the_key_may_stand_in_the_body_or_the_query(place: Place, visitor: str) -> None:
    key = place.shop.public.id
    requests: list[tuple[str, Any]] = [
        ("/v1/t", track(visitor, writeKey=key)),
        ("/v1/b", {"writeKey": key, "batch": [track(visitor)]}),
        ("/v1/b", {"batch": [track(visitor, writeKey=key)]}),
        (f"/v1/batch?a=b&writeKey={key}", {"batch": [track(visitor)]}),
    ]
    for path, body in requests:
        for encode in (bytes, gzip.compress):
            headers = {
                "Content-Type": "text/plain",
                **({"Content-Encoding": "gzip"} if encode is gzip.compress else {}),
            }
            answer = place.daemon.request("POST", path, encode(json.dumps(body).encode()), headers)
            assert taken(answer), answer.body
    assert len(place.records(visitor)) == 2 * len(requests)
    assert key not in json.dumps(place.records(visitor))


def test_no_key_or_a_wrong_one_is_a_401_that_every_sdk_understands(place: Place, visitor: str) -> None:
    server = place.shop.server
    bad = [
        {}, {"Authorization": "Basic !!!"}, {"Authorization": basic("")}, {"Authorization": basic("nobody")},
        {"Authorization": basic(f"{server.id}:{server.secret}")}, {"Authorization": basic(server.id)},
    ]  # fmt: skip
    for headers in bad:
        answer = place.daemon.request("POST", "/v1/batch", json.dumps({"batch": [track(visitor)]}).encode(), headers)
        problem = answer.json()
        assert answer.status == 401
        assert {type(problem[name]) for name in ("code", "message", "error")} == {str}
        assert answer.headers["access-control-allow-origin"] == "*"
    assert place.records(visitor) == []


def test_a_key_in_the_path_of_a_request_is_in_no_log(place: Place) -> None:
    key = place.shop.public.id
    place.daemon.request("POST", f"/v1/batch?writeKey={key}", b"[]")
    place.daemon.request("GET", f"/v1/projects/{key}/nothing")
    place.daemon.read_log(0.2)
    assert not [line for line in place.daemon.log if key in line]


# What a message becomes


def test_an_event_has_its_own_name_or_an_old_one_or_another_spelling(place: Place, visitor: str) -> None:
    order = "Order Completed"
    names = {
        order: order, "order_completed": order, "OrderCompleted": order, "ORDER COMPLETED": order,
        "Completed Order": order, "completed_order": order,
        "Viewed Product": "Product Viewed", "Viewed Product Category": "Product List Viewed",
        "Added Product": "Product Added", "product added to wishlist": "Product Added to Wishlist",
    }  # fmt: skip
    assert taken(place.batch(*(track(visitor, name) for name in names)))
    assert [record["key"] for record in place.records(visitor)] == [*names.values()]


def test_null_is_absent_and_an_empty_array_an_empty_object(place: Place, visitor: str) -> None:
    properties: Any = {
        "category": None,
        "products": [{"price": None, "tags": [None, 1]}],
        "other": {"a": None, "b": {}},
    }
    absent = {"messageId": None, "userId": None, "dispatchId": None, "sessionId": None, "timestamp": None}
    context = {"campaign": {"source": None, "name": "x"}, "page": [], "traits": None, "deep": [[{"a": None}]]}
    answer = place.batch(
        track(visitor, "Product List Viewed", properties=properties, context=context, **absent),
        track(visitor, "Cart Viewed", properties=[], context=None),
        {"type": "identify", "anonymousId": visitor, "traits": [], "context": []},
        sentAt=None, context=None, writeKey=None,
    )  # fmt: skip
    assert taken(answer), answer.body
    first, second, third = place.records(visitor)
    assert first["data"] == {"products": [{"tags": [None, 1]}], "other": {"b": {}}}
    assert first["context"] == {"campaign": {"name": "x"}, "page": {}, "deep": [[{}]]}
    assert first["extra"] == {}
    assert (second["data"], second["context"]) == ({}, {})
    assert (third["traits"], third["context"]) == ({}, {})


def test_null_and_an_empty_array_stay_wrong_on_other_paths(place: Place, visitor: str) -> None:
    event = {"key": "Cart Viewed", "anonymousId": visitor, "data": {"cart_id": None}}
    key = place.shop.public.id
    assert place.daemon.post("/track", event, key).status == 400
    assert place.daemon.post("/track", {**event, "data": []}, key).status == 400


def test_a_plain_decimal_as_text_is_the_number_that_the_schema_expects(place: Place, visitor: str) -> None:
    before = place.daemon.metric("ingestd_texts_as_numbers_total")
    item: dict[str, Any] = {"sku": "17", "price": "19.90", "quantity": "2", "size": "42"}
    assert taken(place.batch(track(visitor, "Order Completed", properties={"total": "39.8", "products": [item, item]})))
    (record,) = place.records(visitor)
    stored = {**item, "price": 19.9, "quantity": 2}
    assert record["data"] == {"total": 39.8, "products": [stored, stored]}
    assert place.daemon.metric("ingestd_texts_as_numbers_total") - before == 5
    properties = {"total": "39,80", "products": [{"price": "1e3"}]}
    refused = place.batch(track(visitor, "Order Completed", properties=properties))
    assert rejected(refused) == [(0, "Order Completed", ["/properties/total", "/properties/products/0/price"])]
    assert len(place.records(visitor)) == 1
    assert place.daemon.metric("ingestd_texts_as_numbers_total") - before == 5


def test_other_endpoints_take_no_text_for_a_number(place: Place, visitor: str) -> None:
    body = {"key": "Order Completed", "anonymousId": visitor, "data": {"total": "39.8"}}
    assert place.daemon.post("/track", body, place.shop.public.id).json()["code"] == "invalid_data"


def test_an_alias_of_a_user_moves_nothing_of_that_user(place: Place, visitor: str) -> None:
    """Anybody could send it with the public key, and take over the visitors of a user."""
    old, new = f"old-{visitor}", f"new-{visitor}"
    identify = {"type": "identify", "anonymousId": visitor, "userId": old, "traits": {}}
    assert taken(place.batch(identify, {"type": "alias", "previousId": old, "userId": new}, track(visitor)))
    assert [record["userId"] for record in place.records(visitor) if record["anonymousId"] == visitor] == [old, old]


def test_ids_may_be_numbers(place: Place, visitor: str) -> None:
    number = int(uuid4()) % 10**12
    assert taken(place.batch({"type": "track", "event": "Page View", "userId": number, "messageId": visitor}))
    (record,) = place.records(visitor)
    assert (record["userId"], record["anonymousId"]) == (str(number), visitor_of("shop", str(number)))


def test_a_user_that_is_none_is_no_visitor_either(place: Place, visitor: str) -> None:
    for number in range(2):
        message = {"type": "track", "event": "Page View", "userId": "guest", "messageId": f"{visitor}{number}"}
        assert taken(place.batch(message))
    first, second = place.records(visitor)
    assert first["anonymousId"] == second["anonymousId"] == "guest"
    assert first["sessionId"] != second["sessionId"]


def test_a_session_of_rudderstack_is_one_session_until_its_number_changes(place: Place, visitor: str) -> None:
    for number in (1764151199999, 1764151199999, "1764151200000"):
        assert taken(place.batch(track(visitor, context={"sessionId": number})))
    sessions = [(record["sessionId"], record["sessionIsNew"]) for record in place.records(visitor)]
    first, second = session_of("shop", visitor, "1764151199999"), session_of("shop", visitor, "1764151200000")
    assert sessions == [(first, True), (first, False), (second, True)]


def test_a_context_of_the_batch_supplements_each_message(place: Place, visitor: str) -> None:
    both = {"library": {"name": "x"}, "locale": "de"}
    assert taken(place.batch(track(visitor, context={"locale": "en"}), track(visitor), context=both))
    assert [record["context"] for record in place.records(visitor)] == [{**both, "locale": "en"}, both]


def test_a_context_of_the_batch_is_small(place: Place, visitor: str) -> None:
    answer = place.batch(track(visitor), context={"a": "x" * 9000})
    assert (answer.status, answer.json()["code"]) == (413, "too_large")
    assert place.records(visitor) == []


@pytest.mark.parametrize(
    ("text", "messages", "status"),
    [(b'"%b"' % (b"x" * 1500), 2500, 200), (b'"%b"' % (b"x" * 8000), 6, 413), (b"[%b1]" % (b"1e15," * 1300), 2, 413)],
)
def test_a_context_of_the_batch_is_not_copied_without_a_bound(
    place: Place, visitor: str, text: bytes, messages: int, status: int
) -> None:
    """A batch may become four times as large by it, and larger by 2 KiB for each message."""
    batch = b",".join([b'{"type":"page","anonymousId":"%b"}' % visitor.encode()] * messages)
    assert place.send("/v1/batch", b'{"context":{"a":%b},"batch":[%b]}' % (text, batch)).status == status
    assert len(place.records(visitor)) == (messages if status == 200 else 0)


# The answer


def test_a_bad_message_is_told_and_the_others_are_stored(place: Place, visitor: str) -> None:
    bad = [
        track(visitor, "No Such Event"),
        track(visitor, "Order Completed", properties={"total": "x", "products": [{"price": "1"}]}),
        {"type": "track", "event": "Page View"},
        {"type": "nothing", "anonymousId": visitor},
        {"anonymousId": visitor},
        {"type": ["track"], "anonymousId": visitor},
        {"type": "alias", "previousId": visitor},
        {"type": "group", "userId": "u"},
        track(visitor, ""),
        track(visitor, properties="x"),
        track(visitor, context={"page": {"url": 1}}),
        track(visitor, messageId="x" * 129),
        {"type": "identify", "anonymousId": visitor, "traits": "x"},
        5,
    ]  # fmt: skip
    good = track(visitor)
    before = {outcome: place.counted(outcome) for outcome in ("unknown_key", "invalid")}
    answer = place.batch(good, *bad, good)
    assert rejected(answer) == [
        (1, "No Such Event", []),
        (2, "Order Completed", ["/properties/total", "/properties/products/0/price"]),
        (3, "Page View", ["/anonymousId"]),
        (4, None, ["/type"]), (5, None, ["/type"]), (6, None, ["/type"]),
        (7, None, ["/userId"]), (8, None, ["/groupId"]), (9, None, ["/event"]),
        (10, "Page View", ["/properties"]), (11, "Page View", ["/context/page/url"]),
        (12, "Page View", ["/messageId"]), (13, None, ["/traits"]), (14, None, []),
    ]  # fmt: skip
    assert {type(each["message"]) for each in answer.json()["rejected"]} == {str}
    assert len(place.records(visitor)) == 2
    assert place.counted("unknown_key") == before["unknown_key"] + 1
    assert place.counted("invalid") > before["invalid"]
    assert place.counted("invalid", "Order Completed") >= 1


def test_a_single_bad_message_is_told_with_200(place: Place, visitor: str) -> None:
    assert rejected(place.send("/v1/t", track(visitor, "No Such Event"))) == [(0, "No Such Event", [])]
    assert rejected(place.send("/v1/t", b'{"event": "half \\ud83d", "anonymousId": "a"}')) == [(0, None, [])]


def test_a_message_that_is_not_json_is_refused_alone(place: Place, visitor: str) -> None:
    good = json.dumps(track(visitor))
    body = f'{{"sentAt":"2026-11-26T10:00:00Z","batch":[{good},{{"type":"track","event":"cut \\ud83d"}},{good}]}}'
    assert rejected(place.send("/v1/batch", body.encode())) == [(1, None, [])]
    assert len(place.records(visitor)) == 2


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"), (b"[]", 400, "not_an_object"), (b"{}", 400, "invalid_envelope"),
        (b'{"batch": {}}', 400, "invalid_envelope"), (b'{"batch": [', 400, "invalid_json"),
        (b'{"batch": [' + b"1," * 2500 + b"1]}", 400, "invalid_envelope"),
        (b"x" * (5 << 20), 413, "too_large"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_batch_is_refused_as_a_whole(place: Place, body: bytes, status: int, code: str) -> None:
    answer = place.send("/v1/batch", body)
    problem = answer.json()
    assert (answer.status, problem["code"]) == (status, code)
    assert {type(problem[name]) for name in ("code", "message", "error")} == {str}


def test_a_batch_has_up_to_2500_messages(place: Place, visitor: str) -> None:
    assert taken(place.batch(*[track(visitor)] * 2500))
    assert len(place.records(visitor)) == 2500


def test_a_message_beyond_the_limit_of_an_event_is_refused_alone(place: Place, visitor: str) -> None:
    answer = place.batch(track(visitor, properties={"text": "x" * (1 << 20)}), track(visitor))
    assert rejected(answer) == [(0, None, [])]
    assert len(place.records(visitor)) == 1


def test_other_methods_and_preflights_are_answered_for_browsers(place: Place) -> None:
    for path in ("/v1/t", "/v1/batch", "/v1/b/", "/v1/m", "/beacon/v1/batch"):
        preflight = place.daemon.request("OPTIONS", path, headers={"Origin": "https://shop.example"})
        assert preflight.status == 204
        assert set(preflight.headers["access-control-allow-headers"].split(", ")) == HEADERS_OF_SDKS
        assert preflight.headers["access-control-allow-methods"] == "POST"
        wrong = place.daemon.request("GET", path)
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST, OPTIONS")
        assert "Retry-After" in wrong.headers["access-control-expose-headers"]


def test_loaders_get_the_least_they_need(place: Place) -> None:
    settings = place.daemon.request("GET", "/v1/projects/some-key/settings")
    assert settings.json()["integrations"] == {"Segment.io": {"apiKey": "some-key"}}
    source = place.daemon.request("GET", "/sourceConfig/?p=npm&v=3.34.0")
    assert source.json()["source"]["destinations"] == []
    assert source.json()["source"]["enabled"] is True
    head = place.daemon.request("HEAD", "/sourceConfig/")
    assert (head.status, head.body) == (200, b"")
    preflight = place.daemon.request("OPTIONS", "/sourceConfig/", headers={"Origin": "https://shop.example"})
    assert preflight.headers["access-control-allow-methods"] == "GET"
    assert place.daemon.request("POST", "/sourceConfig/", b"{}").status == 405


def test_figures_of_an_sdk_about_itself_are_dropped(place: Place, visitor: str) -> None:
    before = place.daemon.ops("/metrics").body.count(b'endpoint="segment"')
    assert taken(place.daemon.request("POST", "/v1/m", json.dumps({"series": [visitor]}).encode()))
    assert place.records(visitor) == []
    assert place.daemon.ops("/metrics").body.count(b'endpoint="segment"') == before


# The same truth


def test_a_visitor_of_both_ways_is_one_visitor(place: Place, visitor: str) -> None:
    key, user = place.shop.public.id, f"user of {visitor}"
    own = place.daemon.post("/track", {"key": "Page View", "anonymousId": visitor, "data": {}}, key).json()
    assert taken(place.batch(track(visitor), {"type": "identify", "anonymousId": visitor, "userId": user}))
    again = place.daemon.post("/track", {"key": "Page View", "anonymousId": visitor, "data": {}}, key).json()
    records = place.records(visitor)
    assert {record["sessionId"] for record in records} == {own["session"]["sessionId"], again["session"]["sessionId"]}
    assert len({record["sessionId"] for record in records}) == 1
    assert [record["userId"] for record in records] == [None, None, user, user]


def test_a_message_of_both_ways_is_stored_once(place: Place, visitor: str) -> None:
    key, page = place.shop.public.id, {"key": "Page View", "anonymousId": visitor, "data": {}}
    assert place.daemon.post("/track", {**page, "messageId": f"a-{visitor}"}, key).status == 200
    assert taken(place.batch(track(visitor, messageId=f"a-{visitor}"), track(visitor, messageId=f"b-{visitor}")))
    assert place.daemon.post("/track", {**page, "messageId": f"b-{visitor}"}, key).status == 200
    assert [record["endpoint"] for record in place.records(visitor)] == ["track", "segment"]


def test_a_visitor_derived_from_a_user_is_linked(place: Place, visitor: str) -> None:
    derived = visitor_of("shop", visitor)
    assert taken(place.batch({"type": "track", "event": "Page View", "userId": visitor}))
    page = {"key": "Page View", "anonymousId": derived, "data": {}}
    assert place.daemon.post("/track", page, place.shop.public.id).status == 200
    assert [record["userId"] for record in place.records(derived)] == [visitor] * 2


def test_an_order_of_a_backend_finds_the_journey_of_the_browser_and_the_reverse(place: Place, visitor: str) -> None:
    user, campaign = f"user of {visitor}", {"campaign": {"source": "mail", "name": "autumn"}}
    touched = track(visitor, context=campaign)
    login = {"type": "identify", "anonymousId": visitor, "userId": user}
    sent = {"type": "track", "event": "Page View", "userId": user, "context": {"campaign": {"source": "push"}}}
    by_backend = {
        "type": "track",
        "event": "Order Completed",
        "userId": user,
        "properties": {"order_id": f"1-{visitor}"},
    }
    by_browser = track(visitor, "Order Completed", properties={"order_id": f"2-{visitor}"})
    assert taken(place.batch(touched, login, by_backend, sent, by_browser))

    def sources() -> dict[str, str]:
        found = [each for each in place.shop.stored(visitor) if each["type"] == "attribution"]
        return {each["orderId"]: each["touchpoint"]["source"] for each in found}

    for _ in range(100):
        if len(sources()) == 2:
            break
        place.daemon.read_log(0.1)
    assert sources() == {f"1-{visitor}": "mail", f"2-{visitor}": "push"}


def test_each_message_ends_in_one_outcome(place: Place, visitor: str) -> None:
    def total() -> float:
        lines = place.daemon.ops("/metrics").body.decode().splitlines()
        samples = [
            line for line in lines if re.match(r'ingestd_(events_total\{endpoint="segment"|identifies_total)', line)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in samples)

    before = total()
    message = track(visitor, messageId=f"m-{visitor}")
    identify = {"type": "identify", "anonymousId": visitor}
    place.batch(message, message, track(visitor, "No"), {}, identify, {**identify, "traits": 5})
    place.send("/v1/t", track(visitor))
    place.send("/v1/batch", b"{")
    assert total() == before + 8


# Operators


def test_operators_choose_names_and_what_becomes_of_unknown_ones(tmp_path: Path, visitor: str) -> None:
    shop = Shop(tmp_path, {"plugins.segment": 'unknown = "accept"\nnames = { "Signed Up" = "Account Created" }'})
    with shop.serve() as daemon:
        place = Place(shop, daemon)
        names = ("signed_up", "Signed Up", "Wheel Spun", "order_completed")
        answer = place.batch(*(track(visitor, name, properties={"a": [1]}) for name in names))
        assert taken(answer), answer.body
        keys = [record["key"] for record in place.records(visitor)]
        assert keys == ["Account Created", "Account Created", "Wheel Spun", "Order Completed"]
        assert place.counted("accepted") == 1  # without the name that a caller has chosen
        assert rejected(place.batch(track(visitor, "Wheel Spun", properties=5))) == [(0, "Wheel Spun", ["/properties"])]
        assert rejected(place.batch(track("", "Wheel Spun"))) == [(0, "Wheel Spun", ["/anonymousId"])]


def test_a_reload_changes_the_options(tmp_path: Path, visitor: str) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        place = Place(shop, daemon)
        assert rejected(place.batch(track(visitor, "Wheel Spun"))) == [(0, "Wheel Spun", [])]
        shop.config.write_text(shop.config.read_text() + '[plugins.segment]\nunknown = "accept"\n')
        shop.command("reload")
        assert taken(place.batch(track(visitor, "Wheel Spun")))
        shop.config.write_text(shop.config.read_text() + 'names = { "a" = "No Key" }\n')
        os.kill(daemon.pid, signal.SIGHUP)
        daemon._wait_for_line("'No Key' is no event key")
        assert taken(place.batch(track(visitor, "Wheel Spun")))


def test_a_name_for_no_event_key_stops_the_start_and_the_check(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.segment": 'names = { "a" = "No Key" }'})
    for command in ("serve", "check"):
        done = run_ingestd(command, config=shop.config)
        assert done.returncode == 78
        assert "plugins.segment.names" in done.stdout + done.stderr


def test_without_the_plugin_its_paths_do_not_exist(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins": 'enabled = ["keys", "hmac_auth", "identity", "session"]'})
    with shop.serve() as daemon:
        for method, path in (("POST", "/v1/batch"), ("POST", "/v1/m"), ("GET", "/sourceConfig"), ("OPTIONS", "/v1/t")):
            assert daemon.request(method, path, b"{}").status == 404


def test_a_backend_is_no_crawler_but_its_visitor_may_be_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.bots": 'action = "mark"', "http": 'store_address = "whole"'})
    google = {"userAgent": "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"}
    with shop.serve() as daemon:
        place = Place(shop, daemon)
        for name, origin in (("backend", {}), ("browser", {"Origin": "https://shop.example"})):
            messages = [track(name), track(name, context=google)]
            assert taken(place.send("/v1/batch", {"batch": messages}, user_agent="python-requests/2.32", **origin))
    seen = {name: [record["context"] for record in shop.stored(name)] for name in ("backend", "browser")}
    assert seen["backend"] == [{}, {**google, "bot": "Googlebot"}]
    assert [each["bot"] for each in seen["browser"]] == ["python-requests"] * 2
    assert [each["ip"] for each in seen["browser"]] == ["127.0.0.1"] * 2


def test_messages_share_nothing_that_a_plugin_changes(tmp_path: Path) -> None:
    options = 'hash = ["/context/device/id", "/traits/email", "/context/traits/email"]\nsecret = "a long enough secret"'
    shop = Shop(tmp_path, {"plugins.scrub": options})
    with shop.serve() as daemon:
        login = {"type": "identify", "anonymousId": "v", "context": {"traits": {"email": "v@shop.example"}}}
        assert taken(Place(shop, daemon).batch(track("v"), track("v"), login, context={"device": {"id": "d"}}))
    first, second, third = shop.stored()
    assert first["context"]["device"] == second["context"]["device"] == third["context"]["device"]
    assert third["traits"] == third["context"]["traits"]


def test_a_rate_counts_messages(tmp_path: Path, visitor: str) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_key = "10/h"'})
    with shop.serve() as daemon:
        place = Place(shop, daemon)
        assert taken(place.batch(*[track(visitor)] * 8))
        limited = place.batch(*[track(visitor)] * 3)
        assert (limited.status, limited.json()["code"]) == (429, "limited")
        assert re.fullmatch(r"[1-9]\d*", limited.headers["retry-after"])
        assert {type(limited.json()[name]) for name in ("code", "message", "error")} == {str}
        assert place.counted("limited") == 3
        assert place.daemon.post(
            "/track", {"key": "Page View", "anonymousId": visitor, "data": {}}, shop.public.id
        ).status
    assert len(place.records(visitor)) in {8, 9}


def test_a_daemon_that_is_killed_midway_loses_nothing_and_stores_nothing_twice(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    batches = [[track(f"v-{number}", messageId=f"{number}-{each}") for each in range(50)] for number in range(30)]
    answered = 0
    with Daemon(shop.config) as daemon:
        for batch in batches[:20]:
            assert taken(Place(shop, daemon).batch(*batch))
            answered += 1
        # Requests whose answers nobody reads: the kill meets them at any point.
        open_requests = []
        for batch in batches[20:]:
            connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
            body = json.dumps({"batch": batch})
            connection.request("POST", "/v1/batch", body, {"Authorization": basic(shop.public.id)})
            open_requests.append(connection)
        daemon.kill()
        for connection in open_requests:
            connection.close()
    with shop.serve() as daemon:
        stored = {record["messageId"] for record in shop.stored()}
        assert stored >= {message["messageId"] for batch in batches[:answered] for message in batch}
        for batch in batches:  # as an SDK does with all requests that it has no answer to
            assert taken(Place(shop, daemon).batch(*batch))
    ids = [record["messageId"] for record in shop.stored() if record["type"] == "event"]
    assert sorted(ids) == sorted(message["messageId"] for batch in batches for message in batch)
