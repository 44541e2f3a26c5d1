"""Plain decimals that came as text are numbers where the schema of the key expects one, and nowhere else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest
from ingestd.validation.fault_budget import FaultBudget
from ingestd.validation.validator import Validator

VALIDATOR = Validator.load()
ORDER = {
    "order_id": "17", "coupon": "10", "currency": "EUR", "total": 75.34, "revenue": 64.9, "tax": 12, "note": "5",
    "products": [{"product_id": "1", "sku": "2", "price": 19.9, "quantity": 2, "position": 1, "size": "42"}],
}  # fmt: skip


def event(data: Any, key: str = "Order Completed") -> dict[str, Any]:
    return {"key": key, "anonymousId": "v", "data": data}


def as_texts(value: Any) -> Any:
    """The value with its numbers as text."""
    if isinstance(value, dict):
        return {name: as_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_texts(each) for each in value]
    return value if isinstance(value, str) else json.dumps(value)


def test_every_number_of_an_order_may_be_text() -> None:
    body = event(as_texts(ORDER))
    assert VALIDATOR.event_with_texts(body) == 6
    assert body == event(ORDER)
    assert type(body["data"]["products"][0]["quantity"]) is int


def test_a_valid_event_stays_as_it_is() -> None:
    body = event({**ORDER, "products": []})
    assert VALIDATOR.event_with_texts(body) == 0
    assert body == event({**ORDER, "products": []})


@pytest.mark.parametrize(
    "text",
    [
        "19,90", "1.234,50", "1,234.50", "1 234", "$5", "5 EUR", "1e3", "0x1f", "", " ", " 5", "5 ", "5\n", "+5", ".5",
        "5.", "05", "--5", "-", "1.2.3", "NaN", "Infinity", "\u0661\u0662", "\uff11", "1_000", "5%", "null", "true",
        "9" * 5000, "9" * 400 + ".5",
    ],
)  # fmt: skip
def test_any_other_text_is_refused_with_its_place(text: str) -> None:
    for data, pointer in (
        ({"total": text}, "/data/total"),
        ({"products": [{"price": text}]}, "/data/products/0/price"),
    ):
        with pytest.raises(BadRequest) as refused:
            VALIDATOR.event_with_texts(event({**data, "tax": "2"}))
        assert {error.pointer for error in refused.value.errors} == {pointer, "/data/tax"}


@pytest.mark.parametrize("items", [1, 60, 2000])
def test_a_text_that_would_be_a_number_never_hides_another_fault(items: int) -> None:
    """Of many faults the first ones are told, and of a large event only one."""
    body = event({"currency": 7, "products": [{"price": "5", "quantity": "2"}] * items})
    with pytest.raises(BadRequest, match="/data/currency") as refused:
        VALIDATOR.event_with_texts(body)
    assert refused.value.errors[0].pointer == "/data/currency"
    assert body["data"]["products"][0]["price"] == "5"


def test_an_event_with_too_many_texts_is_refused_as_ever() -> None:
    """It would take too long, and no order has so many."""
    assert VALIDATOR.event_with_texts(event({"products": [{"price": "5"}] * 9_000})) == 9_000
    for data in ({"products": [{"price": "5"}] * 10_000}, {"total": "5", "products": [{"price": "x"}] * 21}):
        body = event(copy.deepcopy(data))
        with pytest.raises(BadRequest):
            VALIDATOR.event_with_texts(body)
        assert body["data"] == data


@given(st.decimals(allow_nan=False, allow_infinity=False, places=None) | st.integers(-(10**40), 10**40))
def test_a_text_is_the_json_number_of_the_same_characters(number: Any) -> None:
    text = f"{number:f}" if not isinstance(number, int) else str(number)
    body = event({"total": text})
    try:
        expected = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return
    assert VALIDATOR.event_with_texts(body) == 1
    assert body["data"]["total"] == expected
    assert type(body["data"]["total"]) is type(expected)


def test_a_place_without_a_number_of_the_schema_keeps_its_text() -> None:
    body = event({"promotion_id": "1", "position": "2"}, "Promotion Viewed")
    assert VALIDATOR.event_with_texts(body) == 0
    body = event({"filters": [{"type": "size", "value": "42"}], "products": [{"price": "5"}]}, "Product List Filtered")
    assert VALIDATOR.event_with_texts(body) == 1
    assert body["data"]["filters"][0]["value"] == "42"


@pytest.mark.parametrize(
    "data", [None, [], "5", {"products": "5"}, {"products": ["5"]}, {"products": [[{"price": "5"}]]}]
)
def test_data_of_a_wrong_shape_is_refused_as_ever(data: Any) -> None:
    with pytest.raises(BadRequest) as strict:
        VALIDATOR.event(event(copy.deepcopy(data)))
    with pytest.raises(BadRequest) as with_texts:
        VALIDATOR.event_with_texts(event(data))
    assert strict.value.errors == with_texts.value.errors


OWN = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://shop.example/schemas/gift.json",
    "title": "Gift Wrapped",
    "type": "object",
    "properties": {
        "product": {"$ref": "urn:ingestd:definition:product"},
        "fee": {"$ref": "#/$defs/a~1b%20c"},
        "weight": {"$ref": "#weight"},
        "layers": {"type": "integer", "minimum": 1},
        "optional": {"type": ["number", "null"]},
        "either": {"type": ["number", "string"]},
        "any": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "both": {"allOf": [{"type": "number"}, {"minimum": 0}]},
        "text": {"oneOf": [{"type": "number"}, {"type": "string", "pattern": "^x"}]},
        "box": {"$ref": "#"},
        "pair": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]},
        "prices": {"type": "object", "additionalProperties": {"type": "number"}},
        "matched": {"type": "object", "patternProperties": {"^p": {"type": "number"}}},
        "conditional": {"if": {"type": "object"}, "else": {"type": "number"}},
    },
    "$defs": {"a/b c": {"type": "number"}, "w": {"$anchor": "weight", "type": "number"}},
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Validator:
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "gift.json").write_text(json.dumps(OWN))
    other = {
        **OWN,
        "$id": "https://shop.example/schemas/other.json",
        "title": "Other",
        "properties": {"a": {"$ref": "gift.json"}},
    }
    (folder / "other.json").write_text(json.dumps(other))
    return Validator.load(Path(folder))


@pytest.mark.parametrize(
    "data",
    [
        {"product": {"price": 5, "sku": "7"}}, {"fee": 1.5}, {"weight": 2}, {"layers": 3}, {"optional": 4}, {"any": 5},
        {"both": 6}, {"box": {"box": {"fee": 7}, "fee": 8}}, {"pair": [1, 2]}, {"prices": {"a": 1, "b": 2.5}},
        {"matched": {"p1": 1, "q": "stays"}}, {"conditional": 5},
    ],
    ids=lambda data: next(iter(data)),
)  # fmt: skip
def test_the_schemas_of_a_shop_have_places_too(own: Validator, data: dict[str, Any]) -> None:
    for key, whole in (("Gift Wrapped", data), ("Other", {"a": data})):
        body = event(as_texts(whole), key)
        assert own.event_with_texts(body) > 0
        assert body["data"] == whole


@pytest.mark.parametrize("data", [{"layers": "0"}, {"layers": "1.5"}, {"both": "-1"}, {"text": "5"}])
def test_a_number_that_the_schema_does_not_take_is_refused(own: Validator, data: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="/data/"):
        own.event_with_texts(event(data, "Gift Wrapped"))


def test_a_text_where_the_schema_takes_either_stays(own: Validator) -> None:
    body = event({"either": "5", "fee": "6"}, "Gift Wrapped")
    assert own.event_with_texts(body) == 1
    assert body["data"] == {"either": "5", "fee": 6}


def test_texts_behind_many_values_of_refused_events_stay() -> None:
    budget = FaultBudget()
    faulty = event({"products": [{"price": "1"}] * 3000 + [0]})
    for _ in range(3):
        assert VALIDATOR.event_with_texts(event({"products": [{"price": "1"}] * 6000}), budget) == 6000
    for _ in range(4):
        with pytest.raises(BadRequest):
            VALIDATOR.event_with_texts(copy.deepcopy(faulty), budget)
    with pytest.raises(BadRequest):
        VALIDATOR.event_with_texts(event({"total": "1"}), budget)
    assert VALIDATOR.event_with_texts(event({"total": "1"})) == 1


def test_a_text_of_many_digits_stays() -> None:
    assert VALIDATOR.event_with_texts(event({"total": "1" * 100})) == 1
    with pytest.raises(BadRequest):
        VALIDATOR.event_with_texts(event({"total": "1" * 101}))
