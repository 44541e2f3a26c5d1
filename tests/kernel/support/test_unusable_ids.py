"""Unusable ids: the words of `[ids] unusable`, and no id that a shop would assign."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.support.unusable_ids import UNUSABLE, UnusableIds

DEFAULT = UnusableIds()
AROUND = st.text(st.sampled_from(" \t\n\r\v\f\x85\xa0\u2003\u2028\u200b\u3000\ufeff\"'"), max_size=4)


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """A word of the list in any case, surrounded by characters that do not count."""
    word = draw(st.sampled_from(UNUSABLE))
    cased = "".join(draw(st.sampled_from([letter, letter.upper()])) for letter in word)
    return draw(AROUND) + cased + draw(AROUND)


@given(spellings())
def test_any_spelling_of_a_word_is_unusable(text: str) -> None:
    assert text in DEFAULT


@given(AROUND)
def test_a_blank_text_is_always_unusable(text: str) -> None:
    assert text in DEFAULT
    assert text in UnusableIds([])


@pytest.mark.parametrize(
    "text",
    [
        "undefined", "null", "NaN", "[object Object]", "[object Undefined]", "-Infinity", "None", "nan", "NULL",
        "Array", "<nil>", "%!s(<nil>)", "%!d(<nil>)", "nil", "(null)", "\\N", "Optional(nil)", "Optional.empty",
        "System.Object", "DBNull", "true", "False", "0", "0.0", "-0", "-1", "guest", "Anonymous", "n/a", '"null"',
        "'undefined'", "00000000-0000-0000-0000-000000000000", "00000000000000000000000000000000", "",
        "{00000000-0000-0000-0000-000000000000}", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "\ufeffnull",
    ],
)  # fmt: skip
def test_null_values_of_many_languages_are_unusable(text: str) -> None:
    assert text in DEFAULT


@given(st.uuids().filter(lambda each: each not in {uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)}), AROUND)
def test_a_uuid_is_an_id(each: uuid.UUID, around: str) -> None:
    assert f"{around}{each}{around}" not in DEFAULT
    assert each.hex not in DEFAULT


@given(st.integers(1, 10**30))
def test_a_positive_number_is_an_id(number: int) -> None:
    assert str(number) not in DEFAULT


@pytest.mark.parametrize(
    "text",
    [
        "u-0", "1", "00", "001", "Nils", "nil.null@shop.example", "guest-17", "anonymous_3f2a", "undefined-1", "nulla",
        "Jean None", "trueman", "na", "NA", "Nat", "Void", "id", "no", "O0", "GA1.2.0.0", "0|abc", "Infinity Ltd",
        "x" * 512, "{}", "[]", "\0",
    ],
)  # fmt: skip
def test_an_id_that_only_resembles_a_word_is_an_id(text: str) -> None:
    assert text not in DEFAULT


@given(st.lists(st.text(max_size=20), max_size=5), st.text(max_size=20))
def test_a_configured_list_replaces_the_default(words: list[str], text: str) -> None:
    own = UnusableIds(words)
    assert all(word in own for word in words)
    assert "undefined" in own or "undefined" not in {word.casefold() for word in words}


def test_the_default_has_each_word_once_in_the_form_it_is_compared_in() -> None:
    assert len({*UNUSABLE}) == len(UNUSABLE)
    assert [word for word in UNUSABLE if word != word.strip().casefold()] == []
