"""Text of callers is shown literally, cannot steer a terminal, and keeps columns aligned."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.support.terminal import aligned, cut, display_width, json_escaped, printable, table
from tests.support.terminal import HOSTILE


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_replaced(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert "\N{REPLACEMENT CHARACTER}" in shown
    assert not any(unicodedata.category(letter) in {"Cc", "Cf", "Zl", "Zp"} for letter in shown)


def test_ordinary_text_of_any_language_is_left_alone() -> None:
    for text in ("spring sale 50 %", "příliš žluťoučký", "東京セール", "مرحبا", "🎄", "e\u0301"):
        assert printable(text) == text


VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(HOSTILE), inner),
)


@given(VALUES)
def test_escaped_json_has_the_same_value_and_steers_no_terminal(value: Any) -> None:
    line = msgspec.json.encode(value)
    shown = json_escaped(line)
    assert shown.decode().isprintable()
    assert json.loads(shown) == value
    if line.decode().isprintable():
        assert shown == line


@pytest.mark.parametrize("text", ["\x7f", "\x80", "\x9b31m", "\u061c", "\u200b", "\u200e", "\u200f", "\u202a", "\u202e",
                                  "\u2066", "\u2069", "\ufeff", "\U000e0041"])  # fmt: skip
def test_invisible_characters_in_json_become_escapes(text: str) -> None:
    line = msgspec.json.encode({text: text})
    assert text.encode() in line
    assert json_escaped(line) == json.dumps({text: text}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("abcdef", 1, "…"),
        ("東京都", 6, "東京都"),
        ("東京都", 5, "東京…"),
        ("東京都", 4, "東…"),
        ("e\u0301te\u0301", 3, "e\u0301te\u0301"),
        ("e\u0301te\u0301", 2, "e\u0301…"),
        ("", 1, ""),
    ],
)
def test_a_name_is_cut_to_columns(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected
    assert display_width(cut(text, width)) <= width


@given(st.text(), st.integers(1, 40))
def test_a_cut_text_never_takes_more_columns(text: str, width: int) -> None:
    shown = cut(text, width)
    assert display_width(shown) <= width
    assert shown == text or text.startswith(shown.removesuffix("…"))


def test_numbers_are_to_the_right_and_all_else_to_the_left() -> None:
    assert aligned(["東", "1", "22"], [4, 3, 3], right=[1, 2]) == "東      1   22"
    assert aligned(["1", "ab"], [3, 4], right=[0]) == "  1  ab  "


def test_columns_of_a_table_are_as_wide_as_their_widest_cell_and_lines_end_with_their_text() -> None:
    rows = [["NAME", "COUNT", "REASON"], ["東京都", "7", "e\u0301te\u0301"], ["a", "12345678", ""]]
    assert [*table(rows, right=[1])] == [
        "NAME       COUNT  REASON",
        "東京都         7  e\u0301te\u0301",
        "a       12345678",
    ]
