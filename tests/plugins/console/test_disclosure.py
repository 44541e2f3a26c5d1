"""What the operators' page shows of callers' data: at the level "shape" never a value, and no name of a caller."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest, SchemaViolation
from ingestd.plugins.console.disclosure import Disclosure
from ingestd.validation.faults import is_value_free
from ingestd.validation.validator import Validator

VALIDATOR = Validator.load(None)
SHAPE = Disclosure("shape", VALIDATOR.sources, VALIDATOR.keys)

secrets = st.integers(10**8, 10**9).map(lambda number: f"secret-{number}")
names = st.sampled_from(["price", "products", "email", "page", "url", "context", "data", "currency"])
values = st.recursive(
    st.none() | st.booleans() | secrets | st.integers(10**8, 10**9) | st.floats(1e8, 1e9, allow_nan=False),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(names | secrets, inner, max_size=6),
    max_leaves=30,
)


@given(values)
def test_a_shape_has_no_value_and_no_name_of_a_caller(value: Any) -> None:
    shown = json.dumps(SHAPE.shape(value))
    assert not re.search("secret|[0-9]{3}", shown)  # all texts and numbers that are sent have such a part


def test_a_shape_has_the_declared_names_and_the_types() -> None:
    sent = {"price": 1.5, "sku": "x", "coupon": None, "mine": 1, "yours": 2, "products": [{"price": True}] * 5}
    assert SHAPE.shape(sent) == {
        "price": "number", "sku": "string", "coupon": "null", "(undeclared)": "2 members",
        "products": [{"price": "boolean"}] * 3 + ["2 more"],
    }  # fmt: skip


@given(st.dictionaries(st.sampled_from(["id", "type", "anonymousId", "userId", "messageId", "data", "extra"]), values))
def test_the_shape_of_a_record_has_only_what_the_daemon_gives(record: dict[str, Any]) -> None:
    given_by_daemon = {name: value for name, value in record.items() if name in {"id", "type"}}
    shown = SHAPE.record(record)
    assert shown.keys() == record.keys()
    assert given_by_daemon.items() <= shown.items()
    assert "secret" not in json.dumps({name: shown[name] for name in shown if name not in given_by_daemon})


@pytest.mark.parametrize(("key", "shown"), [("Order Completed", "Order Completed"), ("My own", "string")])
def test_only_a_known_key_is_shown(key: str, shown: str) -> None:
    assert SHAPE.record({"key": key}) == {"key": shown}


@pytest.mark.parametrize(
    ("pointer", "shown"),
    [
        ("", ""), ("/data/price", "/data/price"), ("/data/products/12/price", "/data/products/*/price"),
        ("/data/bob@example.com", "/data/(undeclared)"), ("/data/4111111111111111", "/data/*"),
        ("/data/a~1b/0", "/data/(undeclared)/*"),
    ],
)  # fmt: skip
def test_a_pointer_has_only_declared_names(pointer: str, shown: str) -> None:
    assert SHAPE.pointer(pointer) == shown


def test_a_problem_has_no_detail_and_no_message_that_may_quote() -> None:
    errors = [
        SchemaViolation("/data/price", "expected number, got string"),
        SchemaViolation("/userId", 'the user "bob" is blocked'),
        SchemaViolation("/data/products", "expected a string of the form ^bob$"),
    ]
    shown = SHAPE.problem(BadRequest("/userId: bob is blocked", code="blocked", errors=errors))
    assert "bob" not in json.dumps(shown)
    assert shown == {
        "title": "Bad Request", "status": 400, "code": "blocked",
        "errors": [
            {"pointer": "/data/price", "message": "expected number, got string"},
            {"pointer": "/userId", "message": "(not shown)"},
            {"pointer": "/data/products", "message": "(not shown)"},
        ],
    }  # fmt: skip


@given(
    st.fixed_dictionaries(
        {"key": st.sampled_from(sorted(VALIDATOR.keys)), "data": values, "anonymousId": values},
        optional={"userId": values, "context": values, "sessionId": values, "messageId": values},
    )
)
def test_messages_of_the_schemas_are_shown_except_for_patterns(body: dict[str, Any]) -> None:
    try:
        VALIDATOR.event(body)
    except BadRequest as refused:
        for error in refused.errors:
            assert is_value_free(error.message) is not error.message.startswith("expected a string of the form")


def test_a_pseudonym_stands_for_one_visitor_until_the_daemon_restarts() -> None:
    other = Disclosure("shape", VALIDATOR.sources, VALIDATOR.keys)
    assert SHAPE.pseudonym("ann") == SHAPE.pseudonym("ann")
    assert len({SHAPE.pseudonym("ann"), SHAPE.pseudonym("bob"), other.pseudonym("ann")}) == 3
    assert other == SHAPE
    assert Disclosure("all", VALIDATOR.sources, VALIDATOR.keys) != other
