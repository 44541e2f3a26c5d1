"""The contract's promises about valid requests: the answers, and the records in the journal."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.daemon import Daemon, Key, Reply, Shop, sign
from tests.support.event_keys import KEYS
from tests.support.scrape import parse

PAYLOADS = Path(__file__).parents[1] / "data" / "payloads"
ENDPOINTS = ["track", "customer-events", "identify"]
EVENT: dict[str, Any] = {"key": "Page View", "data": {}}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
UUID7 = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

COMMON_MEMBERS = {
    "id", "type", "tenant", "endpoint", "signed", "receivedAt", "timestamp", "anonymousId", "userId", "sessionId",
    "sessionIsNew", "dispatchId", "messageId", "context", "extra",
}  # fmt: skip
MEMBERS = {"event": COMMON_MEMBERS | {"key", "data", "schema"}, "identify": COMMON_MEMBERS | {"traits", "linked"}}


@dataclass
class Site:
    """A shop with a running daemon and a second tenant."""

    shop: Shop
    daemon: Daemon
    other_tenant: Key

    def send(self, endpoint: str, body: dict[str, Any] | bytes, **headers: str) -> Reply:
        if endpoint == "customer-events":
            return self.daemon.post_signed(body, self.shop.server, **headers)
        path = "/identify/public" if endpoint == "identify" else "/track"
        return self.daemon.post(path, body, self.shop.public.id, **headers)

    def store(self, endpoint: str, visitor: str, /, **fields: Any) -> dict[str, Any]:
        """Sends an event or identify request of the visitor that must be stored, and returns the session."""
        answer = self.send(endpoint, {**({} if endpoint == "identify" else EVENT), "anonymousId": visitor, **fields})
        assert answer.status == 200, answer.body
        session: dict[str, Any] = answer.json()["session"]
        return session

    def records(self, visitor: str) -> list[dict[str, Any]]:
        """The visitor's stored records, without derived records."""
        stored = [record for record in self.shop.stored() if record["type"] in {"event", "identify"}]
        return [record for record in stored if record["anonymousId"] == visitor]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, http_server: str) -> Iterator[Site]:
    shop = Shop(tmp_path_factory.mktemp("contract"), {"http": f'server = "{http_server}"'})
    other = shop.create_key("public", "other-shop")
    with shop.serve() as daemon:
        yield Site(shop, daemon, other)


@pytest.fixture
def visitor() -> str:
    """A visitor that no other test uses."""
    return f"visitor-{uuid4()}"


def milliseconds(text: str) -> int:
    assert re.fullmatch(INSTANT, text), text
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


# Answers


@pytest.mark.parametrize("key", KEYS)
def test_each_event_key_is_answered_in_the_form_of_each_endpoint(site: Site, key: str, visitor: str) -> None:
    data = json.loads((PAYLOADS / f"{key.lower().replace(' ', '_')}.json").read_text(encoding="utf-8"))
    body = {"key": key, "data": data, "anonymousId": visitor}
    answer = site.send("track", body)
    session_id = answer.json()["session"]["sessionId"]
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert re.fullmatch(UUID, session_id)
    assert answer.json() == {"success": True, "session": {"sessionId": session_id, "isNew": True}}
    answer = site.send("track", body)
    assert answer.json() == {"success": True, "session": {"sessionId": session_id, "isNew": False}}
    answer = site.send("customer-events", body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {"session": {"sessionId": session_id}}


def test_identify_is_answered_like_track(site: Site, visitor: str) -> None:
    body = {"anonymousId": visitor, "userId": "user", "traits": {"plan": "gold"}, "context": {"ip": "192.0.2.1"}}
    first, second = site.send("identify", body), site.send("identify", {"anonymousId": visitor})
    session_id = first.json()["session"]["sessionId"]
    assert (first.status, second.status) == (200, 200)
    assert re.fullmatch(UUID, session_id)
    assert first.json() == {"success": True, "session": {"sessionId": session_id, "isNew": True}}
    assert second.json() == {"success": True, "session": {"sessionId": session_id, "isNew": False}}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_supplied_session_is_answered_in_lower_case(site: Site, endpoint: str, visitor: str) -> None:
    supplied = str(uuid4())
    assert site.store(endpoint, visitor, sessionId=supplied.upper())["sessionId"] == supplied
    again = site.store("track", visitor)
    if endpoint == "customer-events":
        assert again["sessionId"] != supplied
    else:
        assert again == {"sessionId": supplied, "isNew": False}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "text/plain;charset=UTF-8"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": "multipart/form-data"},
        {"Content_Type": "no media type"},
        {"Content_Type": ""},
        {"Content_Encoding": "identity"},
    ],
    ids=str,
)
def test_the_media_type_does_not_matter(site: Site, endpoint: str, headers: dict[str, str], visitor: str) -> None:
    answer = site.send(endpoint, {**EVENT, "anonymousId": visitor}, **headers)
    assert answer.status == 200


@pytest.mark.parametrize("encoding", ["gzip", "GZIP"])
def test_a_gzip_body_is_read(site: Site, encoding: str, visitor: str) -> None:
    raw = json.dumps({**EVENT, "anonymousId": visitor}).encode()
    packed = gzip.compress(raw)
    for path in ("/track", "/identify/public"):
        assert site.daemon.post(path, packed, site.shop.public.id, Content_Encoding=encoding).status == 200
    signature = sign(site.shop.server.secret, raw)
    answer = site.daemon.post(
        "/customer-events", packed, site.shop.server.id, Content_Encoding=encoding, x_signature=signature
    )
    assert answer.status == 200
    assert len(site.records(visitor)) == 3


# Records


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_record_has_the_members_of_the_contract(site: Site, endpoint: str, visitor: str) -> None:
    supplied = str(uuid4())
    at = (datetime.now(UTC) - timedelta(minutes=5)).replace(microsecond=120_000)
    kind = "identify" if endpoint == "identify" else "event"
    own: dict[str, Any]
    if kind == "event":
        own = {"key": "Product Viewed", "data": {"product_id": "p-1", "price": 19.5, "colour": ["red", None]}}
    else:
        own = {"traits": {"email": "shopper@example.com", "tags": {"vip": True}}}
    shared: dict[str, Any] = {
        "anonymousId": visitor,
        "userId": "user-1",
        "dispatchId": "mail-7",
        "messageId": f"message-{visitor}",
        "context": {"campaign": {"source": "news", "term": "shoes"}, "page": {"url": "not a url"}, "ip": "192.0.2.1"},
    }
    before = time.time_ns() // 1_000_000
    site.store(
        endpoint, visitor, **{**own, **shared, "sessionId": supplied.upper(), "timestamp": at.isoformat(), "brand": 7}
    )
    after = time.time_ns() // 1_000_000

    [record] = site.records(visitor)
    assert set(record) == MEMBERS[kind]
    assert re.fullmatch(UUID7, record["id"])
    assert before <= int(record["id"].replace("-", "")[:12], 16) <= after
    assert before <= milliseconds(record.pop("receivedAt")) <= after
    del record["id"]
    if kind == "identify":
        assert record.pop("linked") is True
    else:
        assert re.fullmatch("[0-9a-f]{12}", record.pop("schema"))
    assert record == {
        "type": kind,
        "tenant": "shop",
        "endpoint": endpoint,
        "signed": endpoint == "customer-events",
        "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.120Z"),
        **own,
        **shared,
        "sessionId": supplied,
        "sessionIsNew": endpoint != "customer-events",
        "extra": {"brand": 7},
    }


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_omitted_members_are_stored_as_null_or_empty(site: Site, endpoint: str, visitor: str) -> None:
    session_id = site.store(endpoint, visitor)["sessionId"]
    [record] = site.records(visitor)
    kind = "identify" if endpoint == "identify" else "event"
    assert set(record) == MEMBERS[kind]
    assert record["timestamp"] == record["receivedAt"]
    del record["id"], record["timestamp"], record["receivedAt"]
    record.pop("schema", None)
    assert record == {
        "type": kind, "tenant": "shop", "endpoint": endpoint, "signed": endpoint == "customer-events",
        "anonymousId": visitor, "userId": None,
        "sessionId": session_id, "sessionIsNew": True, "dispatchId": None, "messageId": None, "context": {},
        "extra": {}, **({"traits": {}, "linked": False} if kind == "identify" else EVENT),
    }  # fmt: skip


def test_the_export_is_in_the_order_of_the_answers_and_is_filtered(site: Site, visitor: str) -> None:
    for number in range(5):
        site.store("track", visitor, number=number)
    site.store("identify", visitor)
    records = site.records(visitor)
    assert [record["extra"].get("number") for record in records] == [0, 1, 2, 3, 4, None]
    assert sorted(record["id"] for record in records) == [record["id"] for record in records]
    identifies = site.shop.exported("--type", "identify")
    assert records[-1] in identifies
    assert {record["type"] for record in identifies} == {"identify"}
    assert records[0] in site.shop.exported("--since", "1h")
    assert site.shop.exported("--since", "2999-01-01T00:00:00Z") == []


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_callers_cannot_set_members_of_records_by_their_own_fields(site: Site, endpoint: str, visitor: str) -> None:
    hostile: dict[str, Any] = {
        "id": "00000000-0000-7000-8000-000000000000",
        "type": "attribution",
        "tenant": "other-shop",
        "endpoint": "customer-events",
        "receivedAt": "2020-01-01T00:00:00.000Z",
        "sessionIsNew": "yes",
        "signed": "yes",
        "linked": True,
        "schema": "none",
        "extra": {"extra": {"tenant": "other-shop"}},
        "decidedAt": "2020-01-01T00:00:00.000Z",
        "position": -1,
        "at": 0,
        "key_id": "k",
        "anonymous_id": "someone-else",
        "orderId": "o-1",
        "orderEventId": None,
        "model": "linear",
        "windowSeconds": 1,
        "value": {"total": 1_000_000},
        "touchpoint": None,
        "credits": {},
        "touchpoints": [],
        "attributionId": "a",
        "reason": "refund",
        "cause": "c",
        "": "no name",
        "__proto__": {"tenant": "other-shop"},
        **({"key": 7, "data": [1], "dispatchId": {"not": "text"}} if endpoint == "identify" else {"traits": [1]}),
    }
    started = time.time_ns() // 1_000_000
    session = site.store(endpoint, visitor, **hostile)
    [record] = site.records(visitor)
    kind = "identify" if endpoint == "identify" else "event"
    assert set(record) == MEMBERS[kind]
    assert record["extra"] == hostile
    assert (record["type"], record["tenant"], record["endpoint"]) == (kind, "shop", endpoint)
    assert record["signed"] is (endpoint == "customer-events")
    assert record.get("linked", False) is False
    assert (record["sessionId"], record["sessionIsNew"], record["dispatchId"]) == (session["sessionId"], True, None)
    assert record["id"] != hostile["id"]
    assert milliseconds(record["receivedAt"]) >= started
    assert record["timestamp"] == record["receivedAt"]


def test_values_are_kept_exactly(site: Site, visitor: str) -> None:
    document = (
        '{"big":123456789012345678901234567890,"below":-9223372036854775809,"unsigned":18446744073709551616,'
        '"odd":9007199254740993,"float":0.1,"small":5e-324,"large":1.7976931348623157e308,"whole":40.0,'
        r'"nul":"a\u0000b","escaped":"\u00e9\ud83d\ude00\u2028\/","plain":"é😀 \u007f","zero":-0.0,'
        '"":{"":[[],{},[null,true,false]]},"ключ":"значение"}'
    )
    template = '{"key":"Page View","anonymousId":"%s","data":%s,"extraField":%s,"context":{"more":%s}}'
    body = (template % (visitor, document, document, document)).encode()
    assert site.send("track", body).status == 200
    assert site.send("customer-events", body).status == 200
    identify = f'{{"anonymousId":"{visitor}","traits":{document}}}'.encode()
    assert site.send("identify", identify).status == 200
    expected = json.loads(document)
    first, second, third = site.records(visitor)
    for kept in (first, second):
        for value in (kept["data"], kept["extra"]["extraField"], kept["context"]["more"]):
            # Compared as text, because Python takes 40 and 40.0, or 0.0 and -0.0, for equal.
            assert json.dumps(value) == json.dumps(expected)
    assert json.dumps(third["traits"]) == json.dumps(expected)


@pytest.mark.parametrize("odd", ["a\0b", "\0", " x ", "é" * 512, "😀" * 512, "' OR 1=1 --", "{}", "\x7f\x1b[0m"])
def test_an_anonymous_id_is_any_text(site: Site, odd: str) -> None:
    first, second = site.store("track", odd), site.store("track", odd)
    assert second == {"sessionId": first["sessionId"], "isNew": False}
    assert len(site.records(odd)) == 2


# Timestamps


def ago(**age: float) -> str:
    return (datetime.now(UTC) - timedelta(**age)).isoformat()


def ignored(site: Site) -> dict[str, int]:
    """The number of timestamps that the daemon has ignored, by reason."""
    samples = parse(site.daemon.ops("/metrics").body)["ingestd_timestamps_ignored_total"].samples
    return {sample.labels["reason"]: int(sample.value) for sample in samples}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_timestamp_is_the_time_of_the_event_within_bounds(site: Site, endpoint: str, visitor: str) -> None:
    public = endpoint != "customer-events"
    elsewhere = (datetime.now(timezone(timedelta(hours=5, minutes=30))) - timedelta(hours=1)).isoformat(" ")
    taken = [ago(hours=23), ago(minutes=1), ago(hours=2).replace("+00:00", "z"), elsewhere]
    old = [ago(hours=25), "2000-01-01T00:00:00Z", "2020-02-29T23:59:60Z"]
    late = [ago(hours=-1), "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.123456789-23:59"]
    unset = [
        "1999-12-31T23:59:59.999Z", "2000-01-01T00:59:59.999+01:00", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00", "0001-01-01t00:00:00.0000000000001+23:59", "0000-01-01T00:00:00+23:59",
    ]  # fmt: skip
    other = ["yesterday", "", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", 1_700_000_000, None, {}, [1]]
    before = ignored(site)
    for sent in [*taken, *old, *late, *unset, *other]:
        site.store(endpoint, visitor, timestamp=sent)
    expected = {"unparsable": len(other), "unset": len(unset), "future": len(late), "too_old": len(old) * public}
    assert {reason: count - before[reason] for reason, count in ignored(site).items()} == expected

    records = iter(site.records(visitor))
    for sent in taken if public else [*taken, *old]:
        record = next(records)
        if not sent.endswith(":60Z"):  # a leap second, which Python does not know
            wanted = datetime.fromisoformat(sent.replace("z", "Z"))
            assert milliseconds(record["timestamp"]) == (wanted - EPOCH) // timedelta(milliseconds=1)
        else:
            assert record["timestamp"].startswith("2020-02-29T23:59:59.")
        assert record["extra"] == {}
    for _ in [*old, *late] if public else late:
        record = next(records)
        assert record["timestamp"] == record["receivedAt"]
    for value in [*unset, *other]:
        record = next(records)
        assert record["timestamp"] == record["receivedAt"]
        assert record["extra"] == {"timestamp": value}
    assert next(records, None) is None


# Users


def test_the_linked_user_is_applied_on_both_track_endpoints(site: Site, visitor: str) -> None:
    site.store("identify", visitor, userId="")
    site.store("identify", visitor, userId=None)
    site.store("track", visitor)
    site.store("track", visitor, userId="before")
    site.store("track", visitor)
    site.store("identify", visitor, userId="linked")
    for endpoint in ("track", "customer-events"):
        site.store(endpoint, visitor)
        site.store(endpoint, visitor, userId=None)
        site.store(endpoint, visitor, userId="")
        site.store(endpoint, visitor, userId="own")
        site.store(endpoint, visitor)
    site.store("identify", visitor, userId="newer")
    site.store("customer-events", visitor)
    answer = site.daemon.post("/track", {**EVENT, "anonymousId": visitor}, site.other_tenant.id)
    assert answer.json()["session"]["isNew"] is True
    users = [record["userId"] for record in site.records(visitor)]
    each = ["linked", "linked", "linked", "own", "linked"]
    assert users == [None, None, None, "before", None, "linked", *each, *each, "newer", "newer", None]


# Repeated messages


@pytest.mark.parametrize("first", ENDPOINTS)
def test_a_repeated_message_is_stored_once_and_answered_like_the_first(site: Site, first: str, visitor: str) -> None:
    message = f"message-{visitor}"
    session_id = site.store(first, visitor, messageId=message)["sessionId"]
    events = {
        endpoint: f'ingestd_events_total{{endpoint="{endpoint}",key="Signed In",outcome="duplicate"}}'
        for endpoint in ("track", "customer-events")
    }
    before = {endpoint: site.daemon.metric(line) for endpoint, line in events.items()}
    for endpoint in ENDPOINTS:
        body = {"anonymousId": f"{visitor}-2", "messageId": message, "userId": "u", "sessionId": str(uuid4())}
        answer = site.send(endpoint, body if endpoint == "identify" else {**body, "key": "Signed In", "data": {}})
        assert answer.status == 200
        if endpoint == "customer-events":
            assert answer.json() == {"session": {"sessionId": session_id}}
        else:
            assert answer.json() == {"success": True, "session": {"sessionId": session_id, "isNew": True}}
    assert {endpoint: site.daemon.metric(line) for endpoint, line in events.items()} == {
        endpoint: count + 1 for endpoint, count in before.items()
    }
    # An event that was not stored has no other effect either.
    assert site.store("track", f"{visitor}-2")["isNew"] is True
    assert [record["userId"] for record in site.records(f"{visitor}-2")] == [None]
    # A message belongs to its tenant.
    other = site.daemon.post("/track", {**EVENT, "anonymousId": visitor, "messageId": message}, site.other_tenant.id)
    assert other.json()["session"]["sessionId"] != session_id
    assert [record["tenant"] for record in site.records(visitor)] == ["shop", "other-shop"]


def test_the_second_answer_has_the_session_of_the_first(site: Site, visitor: str) -> None:
    site.store("track", visitor)
    first = site.store("track", visitor, messageId=visitor)
    assert first["isNew"] is False
    assert site.store("track", f"{visitor}-2", messageId=visitor) == first


def test_simultaneous_copies_are_stored_once(site: Site, visitor: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        sessions = list(pool.map(lambda _: site.store("track", visitor, messageId=visitor), range(16)))
    assert [session["isNew"] for session in sessions] == [True] * 16
    assert len({session["sessionId"] for session in sessions}) == 1
    assert len(site.records(visitor)) == 1


def test_simultaneous_first_events_make_one_session(site: Site, visitor: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        sessions = list(pool.map(lambda number: site.store(ENDPOINTS[number % 3], visitor), range(16)))
    assert len({session["sessionId"] for session in sessions}) == 1
    assert [record["sessionIsNew"] for record in site.records(visitor)].count(True) == 1


def test_a_message_id_is_text_of_a_bounded_length(site: Site, visitor: str) -> None:
    long = "é" * 128
    assert site.store("track", visitor, messageId=long)["isNew"] is True
    assert site.store("track", f"{visitor}-2", messageId=long)["isNew"] is True
    assert site.records(f"{visitor}-2") == []
    body = {**EVENT, "anonymousId": visitor}
    for wrong in (f"{long}x", "", None, 7):
        assert site.send("track", {**body, "messageId": wrong}).status == 400
