"""The catalogue of members stays small and printable, whatever callers have sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.plugins.tools.contracts.catalogue import Catalogue, masked

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def test_names_that_callers_choose_are_bounded() -> None:
    found = Catalogue()
    deep: Any = 1
    for _ in range(100):
        deep = {"n": deep}
    for number in range(3_000):
        found.see("key", number, {f"m{number}": number, "n" * 500: deep})
        found.see(f"key {number}", number, {})
    (facts,) = [each for each in found.facts() if each["key"] == "key"]
    assert (len(facts["members"]), facts["events"]) == (2_000, 3_000)
    assert facts["membersLeftOut"] > 0
    assert all(len(each["pointer"]) < 300 for each in facts["members"])
    assert len([*found.facts()]) == 1_000
    assert [*found.lines()][-1] == "2001 events of further keys are left out"


def test_names_that_are_values_are_one_member() -> None:
    found = Catalogue(["key", "Code 12345"])
    for key in ("Code 12345", "Viewed 48123", "Called ann@shop.example"):
        found.see(key, 0, {})
    assert [*found.keys] == ["Code 12345", "*"]
    found = Catalogue()
    people = (
        "ann@shop.example",
        "ann%40shop.example",
        "+49301234567",
        "0f3d2c1a-aaaa-4bbb-8ccc-0123456789ab",
        "user_81723",
        "4711",
        "",
    )
    found.see("key", 0, {"by": {each: {"count": 1} for each in people}, "utm_source": 1, "address_2": 2, "größe": 3})
    (facts,) = found.facts()
    assert [each["pointer"] for each in facts["members"]] == [
        "/data/address_2", "/data/by", "/data/by/*", "/data/by/*/count", "/data/größe", "/data/utm_source",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["Ⅷ²½", "नमस्ते", "ไม่ได้", "🇩🇪", "e\u0301", "Ⓐ①", "١٢"])
def test_no_sign_of_any_script_is_shown(text: str) -> None:
    assert {*masked(text)} <= {"a", "9"}


@given(JSON)
def test_any_data_is_counted_and_no_letter_or_digit_of_it_is_shown(data: Any) -> None:
    found = Catalogue()
    found.see("key", 0, data)
    for line in found.lines():
        assert line.isprintable()
    assert {*filter(str.isalnum, masked(data))} <= {"a", "9"} | {*"truefalse"}
