"""Reasons of refusals: locations in the schema, keywords and codes, but no text of the caller."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest, Forbidden, SchemaFault, TooLarge
from ingestd.api.events import Endpoint
from ingestd.observability.metrics.refusals import MAX_SERIES, OTHER, RefusalCounter, RefusalLabels
from ingestd.plugins.auth.replays import ReplayRules
from ingestd.plugins.identity import TraitBounds
from ingestd.validation.batch_parser import BatchParser
from ingestd.validation.validator import Validator
from tests.support.examples import examples

KEY = "Gift Wrapped"
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:shop:schema:gift_wrapped",
    "title": KEY,
    "type": "object",
    "required": ["paper"],
    "properties": {
        "paper": {"type": "string", "maxLength": 5},
        "colour": {"enum": ["red", "green"]},
        "a/b~c": {"type": "number"},
        "properties": {"type": "object", "properties": {"items": {"const": 1}}},
        "cards": {"type": "array", "items": {"$ref": "#/$defs/card"}, "maxItems": 3, "uniqueItems": True},
        "closed": {"type": "object", "additionalProperties": False, "properties": {"known": {"type": "string"}}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "prefixed": {"type": "object", "patternProperties": {"^x-": {"type": "string"}}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"minimum": 0}], "items": False},
        "choice": {"oneOf": [{"type": "string"}, {"type": "object", "required": ["id"]}]},
        "both": {"allOf": [{"properties": {"one": {"type": "string"}}}]},
        "needs": {"type": "object", "dependentRequired": {"one": ["two"]}},
        "sealed": {"type": "object", "unevaluatedProperties": False},
        "named": {"type": "object", "propertyNames": {"maxLength": 3}},
    },
    "$defs": {"card": {"type": "object", "required": ["text"], "properties": {"inner": {"$ref": "#/$defs/card"}}}},
}


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Validator:
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "gift_wrapped.json").write_text(json.dumps(SCHEMA))
    return Validator.load(folder)


def fault_of(validator: Validator, body: dict[str, Any]) -> tuple[str, str] | None:
    try:
        validator.event(body)
    except BadRequest as refused:
        return refused.fault
    return None


def wrapped(**data: Any) -> dict[str, Any]:
    return {"key": KEY, "anonymousId": "v", "data": {"paper": "plain", **data}}


@pytest.mark.parametrize(
    ("body", "pointer", "reason"),
    [
        (wrapped(paper=7), "/data/paper", "type"),
        (wrapped(paper="longer"), "/data/paper", "maxLength"),
        ({"key": KEY, "anonymousId": "v", "data": {}}, "/data/paper", "required"),
        ({"key": KEY, "anonymousId": "v"}, "/data", "required"),
        ({"key": KEY, "data": {"paper": "x"}}, "/anonymousId", "required"),
        ({"key": KEY, "anonymousId": "v", "data": []}, "/data", "type"),
        (wrapped(colour="#mine"), "/data/colour", "enum"),
        (wrapped(**{"a/b~c": "x"}), "/data/a~1b~0c", "type"),
        (wrapped(properties={"items": 2}), "/data/properties/items", "const"),
        (wrapped(cards=[{"text": 1}, {}]), "/data/cards/*/text", "required"),
        (wrapped(cards=[{"text": 1, "inner": {"text": 1, "inner": 5}}]), "/data/cards/*/inner/inner", "type"),
        (wrapped(cards=[{"text": 1}] * 2), "/data/cards", "uniqueItems"),
        (wrapped(closed={"mine": 1}), "/data/closed/(undeclared)", "additionalProperties"),
        (wrapped(closed={"paper": 1}), "/data/closed/(undeclared)", "additionalProperties"),
        (wrapped(closed={"known": 1}), "/data/closed/known", "type"),
        (wrapped(counts={"mine": "x"}), "/data/counts/(undeclared)", "type"),
        (wrapped(prefixed={"x-mine": 1}), "/data/prefixed/(undeclared)", "type"),
        (wrapped(pair=["a", -1]), "/data/pair/*", "minimum"),
        (wrapped(choice={"mine": 1}), "/data/choice", "oneOf"),
        (wrapped(both={"one": 1}), "/data/both/one", "type"),
        (wrapped(needs={"one": 1}), "/data/needs/two", "required"),
        (wrapped(sealed={"mine": 1}), "/data/sealed/(undeclared)", "unevaluatedProperties"),
        (wrapped(named={"mine": 1}), "/data/named", "propertyNames"),
        ({**wrapped(), "context": {"campaign": {"source": 5}}}, "/context/campaign/source", "type"),
    ],
)
def test_a_fault_is_named_by_names_of_the_schema(
    validator: Validator, body: dict[str, Any], pointer: str, reason: str
) -> None:
    assert fault_of(validator, body) == (pointer, reason)


def test_of_several_faults_the_first_counts_and_the_envelope_comes_first(validator: Validator) -> None:
    assert fault_of(validator, {**wrapped(paper=7), "anonymousId": 1}) == ("/anonymousId", "type")


def names_in(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(names_in, schema))
    if not isinstance(schema, dict):
        return set()
    own = {*schema.get("properties", {}), *schema.get("required", [])}
    own |= {name for names in schema.get("dependentRequired", {}).values() for name in names}
    return own.union(*map(names_in, schema.values()))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=9) | st.sampled_from(["x-mine", "items", "inner", "text"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(data=st.dictionaries(st.sampled_from([*SCHEMA["properties"]]), VALUES, min_size=1, max_size=4))
def test_no_name_of_the_caller_is_ever_shown(validator: Validator, data: dict[str, Any]) -> None:
    declared = names_in(SCHEMA) | {"data", "*", "(undeclared)"}
    fault = fault_of(validator, wrapped(**data))
    if fault is not None:
        steps = fault[0].split("/")[1:]
        assert {step.replace("~1", "/").replace("~0", "~") for step in steps} <= declared
        assert fault[1].isalpha()


def test_a_pointer_into_a_schema_that_contains_itself_is_bounded(validator: Validator) -> None:
    card: dict[str, Any] = {"text": 1, "inner": 5}
    for _ in range(150):
        card = {"text": 1, "inner": card}
    fault = fault_of(validator, wrapped(cards=[card]))
    assert fault is not None
    assert len(fault[0]) <= 200


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{}", ("/events", "required")),
        (b'{"events": {}}', ("/events", "type")),
        (b'{"events": []}', ("/events", "minItems")),
        (b'{"events": [%s]}' % b",".join([b"1"] * 1001), ("/events", "maxItems")),
    ],
    ids=["required", "type", "minItems", "maxItems"],
)
def test_a_body_that_is_not_a_batch_has_a_location_too(body: bytes, fault: tuple[str, str]) -> None:
    with pytest.raises(BadRequest) as refused:
        asyncio.run(BatchParser().parse(body))
    assert refused.value.fault == fault


def test_rules_of_plugins_have_a_location_too() -> None:
    with pytest.raises(BadRequest) as many:
        TraitBounds(1, 100).check({"one": 1, "two": 2})
    with pytest.raises(BadRequest) as large:
        TraitBounds(9, 4).check({"one": "longer"})
    with pytest.raises(BadRequest) as unknowable:
        ReplayRules(max_age=None, require_message_id=True).check({}, 0)
    assert many.value.fault == ("/traits", "maxProperties")
    assert large.value.fault == ("/traits", "size")
    assert unknowable.value.fault == ("/messageId", "required")


# Counting


def test_a_refusal_counts_by_its_fault_or_else_by_its_code() -> None:
    counter = RefusalCounter()
    counter.count(Endpoint.TRACK, KEY, BadRequest("no", fault=SchemaFault("/data/paper", "type")), 1)
    counter.count(Endpoint.TRACK, KEY, BadRequest("no", fault=SchemaFault("/data/paper", "type")), 1)
    counter.count(Endpoint.TRACK, "", TooLarge("it is"), 7)
    counter.count(Endpoint.CUSTOMER_EVENTS, "", Forbidden("no", code="no_permission"), 1)
    assert counter.counts() == {
        ("track", KEY, "/data/paper", "type"): 2,
        ("track", "", "", "too_large"): 7,
        ("customer-events", "", "", "no_permission"): 1,
    }


@examples(20)
@given(st.integers(MAX_SERIES - 3, MAX_SERIES + 50), st.integers(1, 3))
def test_series_are_bounded_and_nothing_is_left_uncounted(reasons: int, keys: int) -> None:
    counter = RefusalCounter()
    for number in range(reasons):
        fault = SchemaFault(f"/data/{number}", "type")
        counter.count(Endpoint.TRACK, f"Key {number % keys}", BadRequest("no", fault=fault), 1)
    counts = counter.counts()
    assert len(counts) <= MAX_SERIES + keys
    assert sum(counts.values()) == reasons
    others = {each.key: count for each, count in counts.items() if each.reason == OTHER}
    assert sum(others.values()) == max(0, reasons - MAX_SERIES)
    # An existing series still counts.
    counter.count(Endpoint.TRACK, "Key 0", BadRequest("no", fault=SchemaFault("/data/0", "type")), 1)
    assert counter.counts()[RefusalLabels(Endpoint.TRACK.value, "Key 0", "/data/0", "type")] == 2
