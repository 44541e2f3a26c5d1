"""Rules for the messages of Segment's and RudderStack's SDKs that hold for every value."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest, Refused, SchemaViolation, TooLarge, Unavailable, UnknownKey
from ingestd.api.events import Principal, Request, Session
from ingestd.api.intake import Message
from ingestd.api.times import format_time
from ingestd.plugins.segment.intake import SegmentIntake
from ingestd.plugins.segment.names import EventNames
from ingestd.plugins.segment.translation import SegmentTranslation
from ingestd.validation.validator import Validator
from tests.support.recorded_requests import basic

VALIDATOR = Validator.load()
KEYS = VALIDATOR.keys
RECEIVED = 1_764_151_200_000
DAY = 86_400_000
INTAKE = SegmentIntake({}, accepts_unknown=False)
ROUTES = {route.path: route for route in INTAKE.routes}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
instants = st.integers(RECEIVED - 3 * DAY, RECEIVED + 3 * DAY)


def request(path: str = "/v1/batch", query: str = "", **headers: str) -> Request:
    return Request(INTAKE.endpoint, headers, b"", received_at=RECEIVED, intake=INTAKE, route=ROUTES[path], query=query)


def translation(
    path: str = "/v1/batch", envelope: Mapping[str, Any] | None = None, **headers: str
) -> SegmentTranslation:
    return INTAKE.begin(request(path, **headers), Principal("shop", "key"), envelope or {}, KEYS)


def read(message: Mapping[str, Any], path: str = "/v1/batch", **envelope: Any) -> Message:
    copied = copy.deepcopy(dict(message))
    return translation(path, envelope).read(0, copied, json.dumps(message).encode())


def track(**members: Any) -> dict[str, Any]:
    return {"type": "track", "event": "Page View", "anonymousId": "v", **members}


# Times


@given(happened=instants, sent=instants, wrong=st.integers(-50 * 365 * DAY, 50 * 365 * DAY))
def test_a_clock_that_is_wrong_by_any_amount_makes_no_difference(happened: int, sent: int, wrong: int) -> None:
    message = track(originalTimestamp=format_time(happened + wrong))
    assert read(message, sentAt=format_time(sent + wrong)).at == RECEIVED - (sent - happened)


@pytest.mark.parametrize("name", ["timestamp", "originalTimestamp"])
@pytest.mark.parametrize("zone", ["Z", "+00:00", "+05:30"])
@pytest.mark.parametrize("fraction", ["", ".5", ".500", ".500000", ".500000000"])
def test_every_form_of_a_time_counts(name: str, zone: str, fraction: str) -> None:
    at, sent = f"2026-11-26T10:00:00{fraction}{zone}", f"2026-11-26T10:00:02{zone}"
    message = read(track(**{name: at}), sentAt=sent)
    assert message.at == RECEIVED - (1500 if fraction else 2000)
    assert not {"timestamp", "originalTimestamp", "sentAt"} & set(message.body)


def test_the_time_of_sending_in_a_message_comes_before_the_one_of_its_batch() -> None:
    at = "2026-11-26T10:00:00Z"
    message = read(track(timestamp=at, sentAt="2026-11-26T10:00:01Z"), sentAt="2026-11-26T10:00:09Z")
    assert message.at == RECEIVED - 1000


def test_the_time_of_the_caller_comes_before_the_one_that_an_sdk_adds() -> None:
    both = {"timestamp": "2026-11-26T08:00:00Z", "originalTimestamp": "2026-11-26T10:00:00Z"}
    message = read(track(**both), sentAt="2026-11-26T10:00:02Z")
    assert message.at == RECEIVED - 7_202_000
    assert not {"timestamp", "originalTimestamp"} & set(message.body)
    assert read(track(**{**both, "timestamp": "today"}), sentAt="2026-11-26T10:00:02Z").at == RECEIVED - 2000


def test_a_time_that_the_server_of_a_vendor_has_corrected_is_taken_as_it_is() -> None:
    """A webhook of the vendor sends its messages so. The device's clock was a year behind."""
    at = format_time(RECEIVED - 5000)
    device = {"originalTimestamp": "2024-11-26T10:00:00Z", "sentAt": "2024-11-26T10:00:01Z"}
    assert read(track(timestamp=at, receivedAt=format_time(RECEIVED - 4000), **device)).at == RECEIVED - 5000
    assert read(track(receivedAt=format_time(RECEIVED - 4000), **device)).at == RECEIVED - 1000


def test_without_a_time_of_sending_the_time_is_taken_as_it_is() -> None:
    assert read(track(timestamp=format_time(RECEIVED - 5))).at == RECEIVED - 5
    assert read(track(timestamp=format_time(RECEIVED - 5), sentAt="yesterday")).at == RECEIVED - 5


@pytest.mark.parametrize("bad", ["yesterday", 1764151200, "2026-11-26", "2026-11-26T10:00:00", {}, True])
def test_a_time_that_is_none_stays_in_the_message(bad: object) -> None:
    message = read(track(timestamp=bad), sentAt="2026-11-26T10:00:00Z")
    assert (message.at, message.body["timestamp"]) == (None, bad)
    both = read(track(timestamp=bad, originalTimestamp=format_time(RECEIVED)))
    assert (both.at, both.body["timestamp"]) == (RECEIVED, bad)


# Values


def has_null_members(value: object) -> bool:
    if isinstance(value, dict):
        return any(each is None or has_null_members(each) for each in value.values())
    return isinstance(value, list) and any(map(has_null_members, value))


def without_null_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_null_members(each) for name, each in value.items() if each is not None}
    return [without_null_members(each) for each in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_properties_arrive_as_they_are_but_for_members_that_are_null(properties: dict[str, Any]) -> None:
    data = read(track(properties=properties)).body["data"]
    assert data == without_null_members(properties)
    assert not has_null_members(data)


MEMBERS = [
    *track(), "properties", "context", "traits", "userId", "sessionId", "groupId", "previousId", "messageId", "sentAt",
    "timestamp", "originalTimestamp", "name", "category", "key", "data", "x",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(MEMBERS), values),
    st.sampled_from(["/v1/batch", "/v1/t", "/v1/p", "/v1/i", "/v1/g", "/v1/a"]),
    st.sampled_from(["track", "identify", "page", "group", "alias", "nothing", 5, None]),
    st.booleans(),
)
def test_any_message_is_valid_or_refused(message: dict[str, Any], path: str, type_: object, has_name: bool) -> None:
    message |= {"type": type_, **({"event": "Cart Viewed"} if has_name else {})}
    with suppress(UnknownKey, BadRequest):
        made = read(message, path, context={"library": {"name": "x"}})
        (VALIDATOR.event if made.kind == "event" else VALIDATOR.identify)(made.body)
        assert made.body["anonymousId"]


@pytest.mark.parametrize("name", ["userId", "anonymousId", "messageId"])
def test_an_empty_id_is_absent(name: str) -> None:
    body = read({**track(userId="u"), name: ""}).body
    assert body.get(name) != ""


@pytest.mark.parametrize("number", [17, 17.0])
def test_a_whole_number_is_one_id_in_every_form(number: float) -> None:
    ids = {"userId": number, "messageId": number, "context": {"sessionId": number}}
    as_text = {"userId": "17", "messageId": "17", "context": {"sessionId": "17"}}
    made, expected = (read({"type": "page", **each}).body for each in (ids, as_text))
    for name in ("userId", "messageId", "anonymousId", "sessionId"):
        assert made[name] == expected[name]
    assert read({"type": "group", "userId": 1, "groupId": number}).body["traits"] == {"groups": {"17": {}}}
    assert read({"type": "alias", "userId": 1, "previousId": number}).body["anonymousId"] == "17"


@pytest.mark.parametrize("number", [17.5, 2.0**53, 1e300, True])
def test_any_other_number_is_no_id(number: float) -> None:
    with pytest.raises(BadRequest, match="/userId"):
        VALIDATOR.event(read(track(userId=number)).body)


def test_names_of_a_shop_come_before_all_others() -> None:
    names = EventNames(KEYS, {"Order Completed": "Order Updated", "done": "Order Completed"})
    assert names.find("Order Completed") == "Order Updated"
    assert names.find("order_completed") == "Order Updated"
    assert names.find("DONE") == "Order Completed"
    assert names.find("nothing") is None


def test_keys_that_differ_in_case_only_mean_themselves() -> None:
    names = EventNames([*KEYS, "order completed"], {})
    assert names.find("Order Completed") == "Order Completed"
    assert names.find("order completed") == "order completed"


@pytest.mark.parametrize("key", sorted(KEYS))
def test_each_key_has_its_other_spellings(key: str) -> None:
    names = EventNames(KEYS, {})
    for spelling in (key, key.lower(), key.upper(), key.replace(" ", "_"), key.replace(" ", "-"), key.replace(" ", "")):
        assert names.find(spelling) == key


# Credentials


@pytest.mark.parametrize(
    ("headers", "query", "body", "key"),
    [
        ({"Authorization": basic("one")}, "writeKey=two", {"writeKey": "three"}, "one"),
        ({"Authorization": basic("one").replace("Basic", "bASIC")}, "", None, "one"),
        ({"Authorization": basic("")}, "a=1&writeKey=two&writeKey=four", {"writeKey": "three"}, "two"),
        ({"Authorization": "Basic %%%"}, "writeKey=", {"writeKey": "three"}, "three"),
        ({"Authorization": "Bearer x"}, "writeKey=a%2Fb", {}, "a/b"),
        ({}, "", {"writeKey": 5}, None),
        ({}, "", {"writeKey": ""}, None),
        ({"Authorization": "Basic /////w=="}, "&".join(f"a{number}=1" for number in range(200)), {}, None),
    ],
)  # fmt: skip
def test_the_first_key_that_is_found_counts(
    headers: dict[str, str], query: str, body: dict[str, Any] | None, key: str | None
) -> None:
    made = request(query=query, **headers)
    assert (INTAKE.credential(made, None) or INTAKE.credential(made, body or {})) == key


# Answers

KEPT = Session("s", is_new=False)
BAD = BadRequest("no", errors=[SchemaViolation("/data/total", "expected number")])


def test_an_answer_names_the_places_in_the_message_as_it_was_sent() -> None:
    made = translation()
    for index, message in enumerate([track(event="x" * 300), {"type": "alias", "userId": "u", "previousId": "p"}]):
        made.read(index, message, b"{}")
    alias = BadRequest("no", errors=[SchemaViolation("/anonymousId", "too long")])
    answer = made.answer([BAD, alias, TooLarge("It is too large."), KEPT])
    assert isinstance(answer, bytes)
    told = json.loads(answer)["rejected"]
    assert [each["index"] for each in told] == [0, 1, 2]
    assert [each["pointers"] for each in told] == [["/properties/total"], ["/previousId"], []]
    assert [each["key"] for each in told] == ["x" * 100, None, None]
    assert [each["message"] for each in told] == [
        "/properties/total: expected number", "/previousId: too long", "It is too large.",
    ]  # fmt: skip


def test_a_refusal_that_may_pass_is_the_answer_to_the_whole_request() -> None:
    full = Unavailable("Full.")
    assert translation().answer([KEPT, BAD, full]) is full


def test_an_answer_without_refusals_is_the_least() -> None:
    results: list[Session | Refused] = [KEPT] * 3
    assert translation().answer(results) == translation().answer([]) == b'{"success":true}'


def test_only_a_browser_gives_its_address() -> None:
    assert translation(Origin="https://shop.example").read(0, track(), b"").relayed is False
    assert translation().read(0, track(), b"").relayed is True
