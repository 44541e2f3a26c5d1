"""Validation of a body: the order of the checks, the faults in the answer, and hostile input."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest, ConfigError, Refused, SchemaViolation, UnknownKey
from ingestd.validation.batch_parser import MAX_EVENTS, BatchParser
from ingestd.validation.fault_budget import FaultBudget
from ingestd.validation.faults import MAX_VIOLATIONS
from ingestd.validation.schema_files import DRAFT
from ingestd.validation.validator import MAX_DEPTH, Validator, parse_body
from tests.support.event_keys import KEYS, KNOWN_FIELDS
from tests.support.examples import examples
from tests.support.reference import Reference

VALIDATOR = Validator.load()
REFERENCE = Reference()
UUID = "0191D2F0-1111-4222-8333-44445555666f"
GOOD = {"key": "Product Viewed", "anonymousId": "visitor-1", "data": {"price": 12}}


def refusal(check: Callable[[Any], object], body: Any) -> Refused | None:
    try:
        check(body)
    except Refused as error:
        return error
    return None


def whole(check: Callable[[Any, FaultBudget], object]) -> Callable[[Any], object]:
    """The check with a budget for any body of these tests."""
    return lambda body: check(body, FaultBudget(1_000_000))


def pointers(error: Refused | None) -> set[str]:
    return {violation.pointer for violation in error.errors} if error else set()


# Bodies


def parse_batch(body: bytes) -> Sequence[msgspec.Raw]:
    return asyncio.run(BatchParser().parse(body)).events


@pytest.mark.parametrize(
    "body", [b"{}", b' {"a": [1, 2.5, null, "\\u0000 \xf0\x9f\x98\x80"]}\n', b'{"n": 1' + b"0" * 400 + b"}"]
)
def test_a_json_object_is_read_as_by_python(body: bytes) -> None:
    assert parse_body(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "code", "detail"),
    [
        (b"", "invalid_json", "truncated"),
        (b'{"a": 1', "invalid_json", "truncated"),
        (b'{"a": NaN}', "invalid_json", "byte 6"),
        (b'{"a": 1} x', "invalid_json", "byte 10"),
        (b'{"a": 1e999}', "invalid_json", "out of range"),
        (b"1" * 5000, "invalid_json", "out of range"),
        (b"\xef\xbb\xbf{}", "invalid_json", "byte 0"),
        (b'{"ab": "\\n\xff"}', "invalid_json", r"UTF-8 \(byte 10\)"),
        (b'{"a": "\\ud800"}', "invalid_json", "not JSON"),
        (b"[]", "not_an_object", "got array"),
        (b'"key"', "not_an_object", "got string"),
        (b"1", "not_an_object", "got number"),
        (b"true", "not_an_object", "got boolean"),
        (b"null", "not_an_object", "got null"),
    ],
)
def test_anything_else_is_refused_with_the_reason(body: bytes, code: str, detail: str) -> None:
    with pytest.raises(BadRequest, match=detail) as caught:
        parse_body(body)
    assert caught.value.code == code
    assert len(caught.value.detail) < 200


def test_half_of_a_surrogate_pair_is_reported_and_a_whole_pair_is_not() -> None:
    with pytest.raises(BadRequest, match=r"half of a surrogate pair \(byte 10\)"):
        parse_body(rb'{"a": "abc\ud83d')
    # Only a part of a large body is searched. The part may end within a pair.
    for length in range(256 * 1024 - 30, 256 * 1024 + 3):
        with pytest.raises(BadRequest, match="truncated"):
            parse_body(b'{"a": "' + b"x" * length + rb"\ud83d\ude00")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_bounded(opening: bytes, closing: bytes) -> None:
    def nested(levels: int) -> bytes:
        return b'{"data":' + opening * (levels - 1) + b"0" * (opening != b"[") + closing * (levels - 1) + b"}"

    parse_body(nested(MAX_DEPTH))
    for levels in (MAX_DEPTH + 1, 1100, 100_000):
        with pytest.raises(BadRequest, match="levels deep"):
            parse_body(nested(levels))


def test_faults_of_the_deepest_valid_body_can_be_reported() -> None:
    deep = json.loads('{"a":' * (MAX_DEPTH - 1) + "{}" + "}" * (MAX_DEPTH - 1))
    assert pointers(refusal(VALIDATOR.event, parse_body(json.dumps(deep).encode()))) == {
        "/key",
        "/data",
        "/anonymousId",
    }


@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists), min_size=1, max_size=MAX_EVENTS))
def test_a_batch_is_divided_without_validating_its_events(events: list[Any]) -> None:
    body = json.dumps({"sentAt": [{}], "events": events, "\u00e9": 1}).encode()
    assert [json.loads(bytes(event)) for event in parse_batch(body)] == events


def test_faults_inside_an_event_do_not_refuse_the_batch() -> None:
    events = [b'"\xff"', b"[" * 300 + b"]" * 300, b"1"]
    assert [*map(bytes, parse_batch(b'{"events":[' + b" , ".join(events) + b"]}"))] == events


NO_BATCHES = {
    "expected a JSON object, got array": [b"[]"],
    "expected a JSON object, got string": [b' "events"'],
    "expected a JSON object, got number": [b"-1", b"0"],
    "expected a JSON object, got boolean": [b"true", b"false"],
    "expected a JSON object, got null": [b"null"],
    "the body is not JSON": [b"[1", b'{"events": 1, "a": }'],
    "/events: required, but missing": [b"{}", b'{"a": {"events": [1]}}'],
    "/events: expected array, got object": [b'{"events": {}, "a": 1}'],
    "/events: expected array, got boolean": [b'{"events":\tfalse}'],
    "/events: expected 1 to 1000 events, got none": [b'{"events": []}'],
}


@pytest.mark.parametrize("detail", NO_BATCHES)
def test_a_body_that_is_not_a_batch_is_refused_with_the_reason(detail: str) -> None:
    for body in NO_BATCHES[detail]:
        with pytest.raises(BadRequest, match=detail):
            parse_batch(body)


def test_a_batch_may_have_a_thousand_events() -> None:
    assert len(parse_batch(b'{"events":[' + b"0," * (MAX_EVENTS - 1) + b"0]}")) == MAX_EVENTS == 1000
    with pytest.raises(BadRequest, match="expected 1 to 1000 events, got more"):
        parse_batch(b'{"events":[' + b"0," * MAX_EVENTS + b"0]}")


def test_a_body_of_millions_of_events_is_refused_without_making_them() -> None:
    body = b'{"events":[' + b"0," * 2_000_000 + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest):
            parse_batch(body)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_many_brackets_beside_one_another_are_not_deep() -> None:
    assert parse_body(b'{"a": [' + b"[]," * 5000 + b'"[[[["]}')["a"][-1] == "[[[["


# The order of the checks


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({}, None, ""),
        ({"anonymousId": ""}, BadRequest, "invalid_envelope"),
        ({"key": "Nope"}, UnknownKey, "unknown_key"),
        ({"data": {"price": "12"}}, BadRequest, "invalid_data"),
        ({"anonymousId": 1, "key": "Nope", "data": {"price": "12"}}, BadRequest, "invalid_envelope"),
        ({"anonymousId": 1, "data": {"price": "12"}}, BadRequest, "invalid_envelope"),
        ({"key": "Nope", "data": {"price": "12"}}, UnknownKey, "unknown_key"),
        ({"key": "product viewed"}, UnknownKey, "unknown_key"),
        ({"key": "Product Viewed "}, UnknownKey, "unknown_key"),
        ({"key": ""}, UnknownKey, "unknown_key"),
        ({"key": None}, BadRequest, "invalid_envelope"),
        ({"key": ["Product Viewed"]}, BadRequest, "invalid_envelope"),
        ({"data": []}, BadRequest, "invalid_envelope"),
    ],
)
def test_the_first_check_that_fails_is_the_answer(
    change: dict[str, Any], error: type[Refused] | None, code: str
) -> None:
    refused = refusal(VALIDATOR.event, GOOD | change)
    assert (type(refused) if refused else None) is error
    assert (refused.code if refused else "") == code


def test_all_faults_are_reported_wherever_they_are() -> None:
    body = {"key": "Order Completed", "context": {"page": {"url": 1}}, "data": {"total": "1", "products": [{}, 2]}}
    error = refusal(VALIDATOR.event, body)
    assert error is not None
    assert set(error.errors) == {
        SchemaViolation("/anonymousId", "required, but missing"),
        SchemaViolation("/context/page/url", "expected string, got number"),
        SchemaViolation("/data/total", "expected number, got string"),
        SchemaViolation("/data/products/1", "expected object, got number"),
    }
    assert error.detail.startswith("4 faults, the first: ")


def test_an_empty_body_misses_its_required_fields() -> None:
    assert pointers(refusal(VALIDATOR.event, {})) == {"/key", "/data", "/anonymousId"}
    assert pointers(refusal(VALIDATOR.identify, {})) == {"/anonymousId"}


def test_the_error_of_an_unknown_key_names_the_nearest_key() -> None:
    error = refusal(VALIDATOR.event, GOOD | {"key": "order complete"})
    assert error is not None
    assert error.detail == '"order complete" is not a supported event key; did you mean "Order Completed"?'
    other_case = refusal(VALIDATOR.event, GOOD | {"key": "Product viewed"})  # difflib alone finds Product Reviewed
    assert other_case is not None
    assert other_case.detail.endswith('did you mean "Product Viewed"?')
    far = refusal(VALIDATOR.event, GOOD | {"key": "Zzz"})
    assert far is not None
    assert far.detail == '"Zzz" is not a supported event key'


# The envelopes


ENVELOPE_VALUES: list[tuple[str, list[Any], list[Any]]] = [
    ("anonymousId", ["a", "😀" * 512, "\0", " "], ["", "a" * 513, None, 1, {}]),
    ("userId", ["", "u-1", None, "x" * 5000], [1, True, [], {}]),
    (
        "sessionId",
        [UUID, UUID.lower(), UUID.upper(), "0" * 8 + "-0000-0000-0000-" + "0" * 12],
        [
            "",
            f"{UUID}\n",
            f"\n{UUID}",
            f" {UUID}",
            f"urn:uuid:{UUID}",
            f"{UUID[:-1]}٣",
            UUID[:-1],
            UUID.replace("-", ""),
            "{" + UUID + "}",
            UUID[:-1] + "g",
            None,
            1,
        ],
    ),
    ("messageId", ["m", "m" * 128, "😀" * 128, "\n"], ["", "m" * 129, None, 1]),
    (
        "context",
        [{}, {"ip": None, "campaign": {"term": 1, "source": ""}, "page": {"title": []}}],
        [None, [], "", {"campaign": None}, {"campaign": []}, {"page": "https://shop.example"}]
        + [{"campaign": {name: None}} for name in ("source", "medium", "name")]
        + [{"page": {"url": None}}],
    ),
    ("timestamp", ["2026-11-21T04:05:06Z", "yesterday", 1, None, {}], []),
    ("tenant", ["shop", None, {}], []),
]


@pytest.mark.parametrize(("name", "good", "bad"), ENVELOPE_VALUES, ids=[case[0] for case in ENVELOPE_VALUES])
def test_fields_both_envelopes_have(name: str, good: list[Any], bad: list[Any]) -> None:
    for check, body in ((VALIDATOR.event, GOOD), (VALIDATOR.identify, {"anonymousId": "visitor-1"})):
        for value in good:
            assert refusal(check, body | {name: value}) is None
        for value in bad:
            error = refusal(check, body | {name: value})
            assert isinstance(error, BadRequest)
            assert error.code == "invalid_envelope"
            assert all(pointer.startswith(f"/{name}") for pointer in pointers(error))


def test_fields_only_one_envelope_has() -> None:
    visitor = {"anonymousId": "visitor-1"}
    values: list[Any] = [None, 1, [], "text"]
    for value in values:
        assert pointers(refusal(VALIDATOR.identify, visitor | {"traits": value})) == {"/traits"}
        assert refusal(VALIDATOR.event, GOOD | {"traits": value}) is None
        assert refusal(VALIDATOR.identify, visitor | {"dispatchId": value, "key": value, "data": value}) is None
        wrong = set() if isinstance(value, str) else {"/dispatchId"}
        assert pointers(refusal(VALIDATOR.event, GOOD | {"dispatchId": value})) == wrong
    assert refusal(VALIDATOR.identify, visitor | {"traits": {"email": None, "": []}}) is None


# The same result as the reference


# UTF-8 cannot encode lone surrogates, so no body has them.
TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 2**53 + 1, 2**64, 1e308, "", "\0", "😀", "\U0010ffff", "a\n", UUID, UUID + "\n"]),
    TEXT,
)
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
DEEP = st.sampled_from([1, 90]).map(lambda levels: json.loads('{"a":[' * levels + "]}" * levels))
FIELD_NAMES = sorted(set(" ".join(KNOWN_FIELDS.values()).replace(":", "").split()) | {"filters", "sorts", "type"})


def objects(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names) | TEXT, values, max_size=6)


FIELDS = ANY | TEXT | st.integers() | DEEP
LISTS = st.lists(objects(FIELD_NAMES, FIELDS) | ANY, max_size=4)
DATA = st.builds(
    lambda data, lists: data | lists,
    objects(FIELD_NAMES, FIELDS),
    st.dictionaries(st.sampled_from(["products", "filters", "sorts"]), LISTS, max_size=2),
)
CONTEXT = objects(["campaign", "page"], objects(["source", "medium", "name", "url"], LEAVES) | ANY)
SOMETIMES: dict[str, st.SearchStrategy[Any]] = {
    "userId": LEAVES,
    "sessionId": st.just(UUID) | LEAVES,
    "messageId": TEXT | st.just("m" * 129) | LEAVES,
    "dispatchId": LEAVES,
    "context": CONTEXT | ANY,
    "traits": ANY,
    "timestamp": LEAVES,
}
ANONYMOUS = TEXT | st.sampled_from(["a" * 512, "😀" * 512, "a" * 513, ""]) | LEAVES


def as_received(body: dict[str, Any]) -> dict[str, Any]:
    return parse_body(json.dumps(body, ensure_ascii=False).encode())


@pytest.mark.parametrize("key", KEYS)
@examples(25)
@given(data=DATA)
def test_data_is_judged_as_by_the_reference(key: str, data: dict[str, Any]) -> None:
    body = as_received({"key": key, "anonymousId": "a", "data": data})
    assert pointers(refusal(whole(VALIDATOR.event), body)) == REFERENCE.data(key, body)


@given(
    body=st.fixed_dictionaries(
        {}, optional={"key": st.sampled_from(KEYS) | LEAVES, "data": DATA | ANY, "anonymousId": ANONYMOUS, **SOMETIMES}
    )
)
def test_an_event_is_judged_as_by_the_reference(body: dict[str, Any]) -> None:
    body = as_received(body)
    wrong = REFERENCE.envelope(body)
    key = body.get("key")
    known = key if isinstance(key, str) and key in KEYS else None
    error = refusal(whole(VALIDATOR.event), body)
    if not wrong and known is None:
        assert isinstance(error, UnknownKey)
    else:
        assert pointers(error) == wrong | (REFERENCE.data(known, body) if known else set())
        assert error is None or error.code == ("invalid_envelope" if wrong else "invalid_data")


@given(body=st.fixed_dictionaries({}, optional={"anonymousId": ANONYMOUS, **SOMETIMES}))
def test_an_identify_request_is_judged_as_by_the_reference(body: dict[str, Any]) -> None:
    body = as_received(body)
    assert pointers(refusal(whole(VALIDATOR.identify), body)) == REFERENCE.identify(body)


# Hostile input


def test_faults_are_capped_and_the_envelopes_come_first() -> None:
    error = refusal(VALIDATOR.event, GOOD | {"key": "Cart Viewed", "data": {"products": [{"price": ""}] * 200}})
    assert error is not None
    assert len(error.errors) == MAX_VIOLATIONS
    assert error.detail.startswith("more than 50 faults")
    body = {"key": "Cart Viewed", "data": {"products": [{"price": ""}] * 200}}
    assert "/anonymousId" in pointers(refusal(VALIDATOR.event, body))


def test_a_very_large_body_gets_its_first_fault_only() -> None:
    body = GOOD | {"key": "Cart Viewed", "data": {"products": [{}] * 200_000 + [1] * 200_000}}
    error = refusal(VALIDATOR.event, body)
    assert error is not None
    assert error.errors == [SchemaViolation("/data/products/200000", "expected object, got number")]
    assert "there may be more" in error.detail


@pytest.mark.parametrize("lines", [40, 300])
def test_an_order_of_many_lines_with_all_their_fields_is_told_more_than_its_first_fault(lines: int) -> None:
    texts = ("product_id", "sku", "ean", "name", "category", "url", "image_url", "brand", "variant")
    line = {**dict.fromkeys(texts, "x"), "price": 1, "position": 1, "quantity": 1}
    products = [line | {"price": "1"}, line, line | {"name": None}, *[line] * (lines - 3)]
    error = refusal(VALIDATOR.event, GOOD | {"key": "Order Completed", "data": {"products": products, "total": "9"}})
    assert pointers(error) == {"/data/products/0/price", "/data/products/2/name", "/data/total"}
    body = {"key": "Order Completed", "context": [], "data": {"products": products, "coupon": []}}
    faults = {"/anonymousId", "/context", "/data/coupon", "/data/products/0/price", "/data/products/2/name"}
    assert pointers(refusal(VALIDATOR.event, body)) == faults


def test_the_first_values_of_a_request_are_explained_whole() -> None:
    budget = FaultBudget()
    body = GOOD | {"key": "Cart Viewed", "data": {"products": [{"price": ""}] * 50}}
    told = [
        len(error.errors) for _ in range(10) if (error := refusal(lambda body: VALIDATOR.event(body, budget), body))
    ]
    assert told == [50] * 4 + [1] * 6
    large = FaultBudget()
    assert not large.explains({"data": [0] * 100_000})
    assert large.explains(body), "a large body leaves the budget to others"


def test_each_name_and_each_wrong_type_counts_as_one_fault(tmp_path: Path) -> None:
    """jsonschema_rs takes a name of digits for an index."""
    write(tmp_path, "texts.json", schema("texts", "Texts", additionalProperties={"type": "string"}))
    error = refusal(Validator.load(tmp_path).event, {"key": "Texts", "anonymousId": "a", "data": {"12": 0, "a": []}})
    assert error is not None
    assert set(error.errors) == {
        SchemaViolation("/data/12", "expected string, got number"),
        SchemaViolation("/data/a", "expected string, got array"),
    }


def test_deep_data_of_a_shops_own_key_is_refused_without_its_faults(tmp_path: Path) -> None:
    write(
        tmp_path, "tree.json", schema("tree", "Tree", properties={"t": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}})
    )
    check = Validator.load(tmp_path).event
    data: Any = {"t": 1}
    for _ in range(100):
        data = {"t": data}
    error = refusal(check, {"key": "Tree", "anonymousId": "a", "data": data})
    assert error is not None
    assert (error.code, error.fault) == ("invalid_data", ("/data", "depth"))
    assert pointers(refusal(check, {"key": "Tree", "anonymousId": 1, "data": data})) == {"/anonymousId"}


def test_an_answer_does_not_repeat_long_values() -> None:
    long = "x" * 100_000
    for body in (
        GOOD | {"key": long},
        GOOD | {"anonymousId": long},
        GOOD | {"sessionId": long},
        GOOD | {"data": {"price": long}},
        GOOD | {"data": long},
        GOOD | {"data": {"price": {long: long}}},
    ):
        error = refusal(VALIDATOR.event, body)
        assert error is not None
        assert len(error.detail) < 400
        assert all(len(violation.message) <= 200 for violation in error.errors)


def test_deep_json_does_not_crash_the_process(tmp_path: Path) -> None:
    """Nor with a recursive schema. It runs in a separate process, because a crash would end the test process."""
    write(tmp_path, "tree.json", schema("tree", "Tree Grown", properties={"t": {"$ref": "#"}}))
    program = """
import sys
import tracemalloc
from pathlib import Path
from ingestd.api.errors import BadRequest
from ingestd.validation.validator import MAX_DEPTH, Validator, parse_body
validator = Validator.load(Path(sys.argv[1]))
for levels in (1, MAX_DEPTH - 1, MAX_DEPTH + 1, 990, 20_000, 500_000):
    for leaf in (b"{}", b"1"):
        try:
            data = b'{"t":' * (levels - 1) + leaf + b"}" * (levels - 1)
            validator.event(parse_body(b'{"key": "Tree Grown", "anonymousId": "a", "data":' + data + b"}"))
            print(levels, leaf.decode(), "valid")
        except BadRequest as error:
            print(levels, leaf.decode(), error.code)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    deep = [f"{levels} {leaf} invalid_json" for levels in (MAX_DEPTH + 1, 990, 20_000, 500_000) for leaf in ("{}", "1")]
    shallow = ["1 {} valid", "1 1 invalid_envelope", f"{MAX_DEPTH - 1} {{}} valid", f"{MAX_DEPTH - 1} 1 invalid_data"]
    assert done.stdout.splitlines() == shallow + deep


# A shop's own schemas


def schema(name: str, title: str, **rest: Any) -> dict[str, Any]:
    return {"$schema": DRAFT, "$id": f"urn:shop:schema:{name}", "title": title, "type": "object", **rest}


def write(directory: Path, name: str, content: Any) -> Path:
    file = directory / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def test_a_shop_adds_keys_that_use_definitions_and_one_another(tmp_path: Path) -> None:
    box = {"$schema": DRAFT, "$id": "urn:shop:definition:box", "properties": {"size": {"type": "integer"}}}
    write(tmp_path, "definitions/box.json", box)
    gift = schema(
        "gift",
        "Gift Wrapped",
        description="Sent when a gift is wrapped.",
        required=["item"],
        properties={"item": {"$ref": "urn:ingestd:definition:product"}, "box": {"$ref": "urn:shop:definition:box"}},
    )
    file = write(tmp_path, "gift.json", gift)
    write(tmp_path, "sent.json", schema("sent", "Gift Sent", allOf=[{"$ref": "urn:shop:schema:gift"}]))
    write(tmp_path, "notes.txt", "not a schema")
    validator = Validator.load(tmp_path)
    assert validator.keys == {*KEYS, "Gift Wrapped", "Gift Sent"}
    assert ("Gift Wrapped", "Sent when a gift is wrapped.", str(file), False) in validator.schemas
    for key in ("Gift Wrapped", "Gift Sent"):
        body = {"key": key, "anonymousId": "a"}
        assert refusal(validator.event, body | {"data": {"item": {"price": 1}, "box": {"size": 2.0}}}) is None
        error = refusal(validator.event, body | {"data": {"box": {"size": 2.5}}})
        assert error is not None
        assert error.code == "invalid_data"
        assert pointers(error) == {"/data/item", "/data/box/size"}
    assert refusal(validator.event, GOOD) is None


def test_the_documented_example_works(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "schemas.md").read_text(encoding="utf-8")
    write(tmp_path, "gift_wrapped.json", document.split("```json\n")[1].split("```")[0])
    validator = Validator.load(tmp_path)
    body = {"key": "Gift Wrapped", "anonymousId": "a"}
    assert refusal(validator.event, body | {"data": {"item": {"quantity": 2}, "card": "For you"}}) is None
    assert pointers(refusal(validator.event, body | {"data": {"card": 1}})) == {"/data/item", "/data/card"}


@pytest.mark.parametrize(
    ("rest", "data", "expected"),
    [
        ({"additionalProperties": False, "properties": {"a": {}}}, {"a": 1, "b/~": 2}, {"/data/b~1~0"}),
        ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"a": 1, "b": 2}, {"/data/b"}),
        ({"properties": {"a": {"enum": ["x" * 5000]}}}, {"a": 1}, {"/data/a"}),
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 5000 + "b"}, {"/data/a"}),
        ({"properties": {"a": {"type": ["integer", "string"]}}}, {"a": 1.5}, {"/data/a"}),
        ({"properties": {"a": {"minimum": 3}, "b": False}}, {"a": 1, "b": 1}, {"/data/a", "/data/b"}),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, {"a": 1}, {"/data/a"}),
        ({"propertyNames": {"maxLength": 3}}, {"long": 1}, {"/data"}),
        ({"additionalProperties": {"type": "string"}}, {"n" * 5000: 1}, {"/data"}),
    ],
)
def test_a_shop_may_be_stricter(tmp_path: Path, rest: Any, data: Any, expected: set[str]) -> None:
    write(tmp_path, "strict.json", schema("strict", "Strict", **rest))
    error = refusal(Validator.load(tmp_path).event, {"key": "Strict", "anonymousId": "a", "data": data})
    assert error is not None
    assert pointers(error) == expected
    assert all(0 < len(violation.message) <= 200 for violation in error.errors)


def broken() -> Iterator[Any]:
    good = schema("gift", "Gift Wrapped")

    def case(name: str, content: Any, message: str) -> Any:
        return pytest.param(content, message, id=name)

    yield case("no JSON", '{\n  "title": oops\n}', "gift.json: line 2, column 12: not JSON")
    yield case("NaN", '{"minimum": NaN}', "gift.json: not JSON: NaN")
    yield case("a huge number", '{"minimum": ' + "1" * 5000 + "}", "gift.json: not JSON")
    yield case("a byte order mark", "\ufeff{}", "gift.json: line 1, column 1: not JSON")
    yield case("too deep", '{"allOf":[' * 5000 + "]}" * 5000, "gift.json#: nested too deeply")
    yield case("no object", [good], "gift.json#: expected a JSON object")
    yield case("no $schema", {**good, "$schema": None}, "gift.json#/$schema: expected")
    yield case("another draft", {**good, "$schema": "http://json-schema.org/draft-07/schema#"}, "gift.json#/$schema: ")
    yield case("no $id", {k: v for k, v in good.items() if k != "$id"}, "gift.json#/$id: expected an absolute URI")
    yield case("relative $id", {**good, "$id": "gift.json"}, "gift.json#/$id: expected an absolute URI")
    yield case("fragment in $id", {**good, "$id": "urn:shop:gift#"}, "gift.json#/$id: expected an absolute URI")
    yield case("$id of no string", {**good, "$id": 1}, "gift.json#/$id: 1 is not of type 'string'")
    yield case("no title", {k: v for k, v in good.items() if k != "title"}, "gift.json#/title: expected the event key")
    yield case("empty title", {**good, "title": ""}, "gift.json#/title: expected the event key")
    yield case("blank at the end of the title", {**good, "title": "Gift "}, "gift.json#/title: expected the event key")
    yield case("long title", {**good, "title": "G" * 101}, "gift.json#/title: expected the event key")
    yield case("title of no string", {**good, "title": 5}, "gift.json#/title: 5 is not of type 'string'")
    yield case("no type", {k: v for k, v in good.items() if k != "type"}, 'gift.json#/type: expected "object"')
    yield case("type array", {**good, "type": "array"}, 'gift.json#/type: expected "object"')
    yield case("a built-in key", {**good, "title": "Order Completed"}, "gift.json#/title: .* built-in event key")
    yield case(
        "a built-in $id", {**good, "$id": "urn:ingestd:definition:order"}, "gift.json#/$id: .* definitions/order.json"
    )
    wrong = {**good, "properties": {"a/b": {"type": "text"}}}
    yield case("no JSON Schema", wrong, "gift.json#/properties/a~1b/type: expected array, .* or string")
    yield case("no dependency", {**good, "dependencies": {"a": 1}}, "gift.json#/dependencies/a: 1 is not valid")
    wrong = {**good, "properties": {"a": {"items": {"$ref": "urn:shop:schema:card"}}}}
    yield case("nowhere", wrong, "gift.json#/properties/a/items/$ref: .*urn:shop:schema:card")
    yield case("no such place", {**good, "$ref": "#/$defs/card"}, "gift.json#/$ref: .*#/$defs/card")
    yield case("no such anchor", {**good, "$ref": "#card"}, "gift.json#/$ref: .*#card")
    yield case("on the web", {**good, "$ref": "https://shop.example/card.json"}, "gift.json#/$ref: .*shop.example")
    yield case("no URI", {**good, "$ref": "http://[card"}, "gift.json#/$ref: ")
    yield case("no schema there", {**good, "$ref": "#/title"}, 'gift.json#/$ref: "#/title" is not a schema')
    wrong = {**good, "properties": {"a": {"$id": "urn:ingestd:definition:order"}}}
    yield case("an $id inside", wrong, "gift.json#/properties/a/$id: allowed at the top of a file only")
    wrong = {**good, "properties": {"a": {"pattern": "("}}}
    yield case("no pattern", wrong, r"gift.json#/properties/a/pattern: '\(' is not a 'regex'")
    wrong = {**good, "properties": {"a": {"pattern": r"(?P<n>a)(?P=n)"}}}
    yield case("a pattern of Python only", wrong, "gift.json#/properties/a/pattern: cannot be compiled")


@pytest.mark.parametrize(("content", "message"), list(broken()))
def test_a_broken_schema_stops_the_start_with_its_location(tmp_path: Path, content: Any, message: str) -> None:
    write(tmp_path, "gift.json", content)
    with pytest.raises(ConfigError, match=f"^{tmp_path}/{message.replace('$', '[$]')}") as caught:
        Validator.load(tmp_path)
    assert len(str(caught.value)) < 500


def test_names_that_look_like_keywords_are_not_references(tmp_path: Path) -> None:
    properties = {"$ref": {"const": {"$ref": "nowhere", "$id": "x"}}, "$id": {"type": "string"}}
    write(tmp_path, "gift.json", schema("gift", "Gift Wrapped", properties=properties, examples=[{"$ref": "nowhere"}]))
    assert "Gift Wrapped" in Validator.load(tmp_path).keys


def test_two_files_cannot_share_a_key_or_an_id(tmp_path: Path) -> None:
    write(tmp_path, "a.json", schema("a", "Gift Wrapped"))
    write(tmp_path, "b.json", schema("b", "Gift Wrapped"))
    with pytest.raises(ConfigError, match=r'b\.json#/title: "Gift Wrapped" is already the event key of .*a\.json'):
        Validator.load(tmp_path)
    write(tmp_path, "b.json", schema("a", "Gift Sent"))
    with pytest.raises(ConfigError, match=r"b\.json#/[$]id: urn:shop:schema:a is already the [$]id of .*a\.json"):
        Validator.load(tmp_path)


def test_an_unreadable_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing: the directory of schemas does not exist"):
        Validator.load(tmp_path / "missing")
    (tmp_path / "latin.json").write_bytes(b'{"title": "\xe9"}')
    with pytest.raises(ConfigError, match=r"latin\.json: not JSON: 'utf-8' codec"):
        Validator.load(tmp_path)
    (tmp_path / "latin.json").unlink()
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.json: cannot be read: Is a directory\Z"):
        Validator.load(tmp_path)


def test_schemas_that_refer_to_one_another_in_a_circle_are_harmless(tmp_path: Path) -> None:
    write(tmp_path, "a.json", schema("a", "A", **{"$ref": "urn:shop:schema:b"}))
    write(tmp_path, "b.json", schema("b", "B", **{"$ref": "urn:shop:schema:a"}, required=["x"]))
    validator = Validator.load(tmp_path)
    body = {"key": "A", "anonymousId": "a"}
    assert refusal(validator.event, body | {"data": {"x": 1}}) is None
    assert pointers(refusal(validator.event, body | {"data": {}})) == {"/data/x"}
