"""`parse_body` compared with the grammar of RFC 8259: both accept the same texts."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest
from ingestd.validation.validator import MAX_DEPTH, parse_body
from tests.support.strict_json import NotJson, read_json

# The grammar


def parsed(body: bytes) -> str | None:
    """The parsed body as text, which distinguishes 1 from 1.0 and 0.0 from -0.0; None if it is refused."""
    try:
        return repr(parse_body(body))
    except BadRequest:
        return None


def by_the_grammar(body: bytes) -> str | None:
    """The body read by RFC 8259 and our bounds: an object, no number beyond a double, a bounded number of digits."""
    try:
        value = read_json(body)
    except NotJson:
        return None
    return repr(value) if isinstance(value, dict) else None


SPACE = st.text(" \t\n\r", max_size=2)
NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(-(10**400), 10**400).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
ESCAPES = st.sampled_from(
    [r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t", r"\u0000", r"\u00E9", r"\uD83D\uDE00"]
)
STRINGS = st.lists(
    st.one_of(st.characters(exclude_categories=["Cs"], exclude_characters='"\\', min_codepoint=0x20), ESCAPES),
    max_size=8,
).map(lambda parts: f'"{"".join(parts)}"')
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))


def _array(space: str, values: list[str]) -> str:
    return f"[{space}{f'{space},{space}'.join(values)}{space}]"


def _object(space: str, members: list[tuple[str, str]]) -> str:
    return f"{{{space}{f'{space},'.join(f'{name}{space}:{space}{value}' for name, value in members)}{space}}}"


def members_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # Few different names, so that some occur twice.
    names = st.one_of(STRINGS, st.sampled_from(['"a"', '"b"', r'"\u0061"']))
    return st.builds(_object, SPACE, st.lists(st.tuples(names, values), max_size=5))


VALUES = st.recursive(
    SCALARS,
    lambda below: st.one_of(st.builds(_array, SPACE, st.lists(below, max_size=4)), members_of(below)),
    max_leaves=12,
)
OBJECTS = st.builds(lambda space, text: space + text + space, SPACE, members_of(VALUES))


@given(OBJECTS)
def test_every_object_of_the_grammar_is_read_correctly(text: str) -> None:
    body = text.encode()
    try:
        expected = repr(read_json(body))
    except NotJson:  # a number beyond a double
        with pytest.raises(BadRequest, match="out of range"):
            parse_body(body)
    else:
        assert parsed(body) == expected


PIECES = [
    *'{}[],:"\\-+.eE0159 \t\n\r\0\x0b\x1f\x7f/*#\'`',
    "true", "false", "null", "NaN", "Infinity", "-Infinity", "True", "None", "undefined", "nan", "inf", "0x1F", "1_0",
    "00", "01", "1.", ".5", "-", "1e", "1e+", "1e5", "1E-5", "-0", "-0.0", "1e999", "-1e999", "1e-999", '"a"', '"a":',
    '"a":1', "'a'", r'"\u00e9"', r'"\ud83d\ude00"', r'"\ud800"', r'"\udc00"', r'"\ud800\u0041"', r'"\ude00\ud83d"',
    r'"\u12"', r'"\x41"', r'"\0"', '"\n"', '"\t"', '"\0"', '"\u2028\ufeff\U0001f600"', "//", "/**/", "# comment",
    ",]", ",}", "[]", "{}", "[1]", '{"b":2}', "\ufeff", "\u00a0", "\u2028", "\uff11", "\u0663",
]  # fmt: skip


def damaged(pieces: list[str], text: str, at: int) -> bytes:
    at %= len(text) + 1
    return (text[:at] + "".join(pieces) + text[at:]).encode()


@given(st.builds(damaged, st.lists(st.sampled_from(PIECES), max_size=3), OBJECTS, st.integers(0, 500)))
def test_exactly_the_texts_outside_the_grammar_are_refused(body: bytes) -> None:
    assert parsed(body) == by_the_grammar(body)


@given(st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: ("{" + "".join(pieces) + "}").encode()))
@example(b'{"a":1,}')
@example(b'{"a":1,"a":2}')
@example(b'{"a" : 1}\x00')
@example(b"{'a':1}")
def test_texts_of_pieces_of_json_are_read_as_the_grammar_reads_them(body: bytes) -> None:
    assert parsed(body) == by_the_grammar(body)


@given(OBJECTS, st.integers(0, 500), st.binary(min_size=1, max_size=3), st.integers(0, 3))
def test_bytes_that_are_not_characters_are_refused(text: str, at: int, raw: bytes, gone: int) -> None:
    body = text.encode()
    at %= len(body) + 1
    body = body[:at] + raw + body[at + gone :]
    assert parsed(body) == by_the_grammar(body)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_no_other_encoding_and_no_byte_order_mark(encoding: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_body('{"a": 1}'.encode(encoding))
    assert caught.value.code == "invalid_json"


# Text

HIGH, LOW = st.integers(0xD800, 0xDBFF), st.integers(0xDC00, 0xDFFF)


@st.composite
def lone_surrogates(draw: st.DrawFn) -> tuple[str, int]:
    """A string with an escape of half a character, and the position of the escape."""
    before = draw(st.text('ab\\"é😀', max_size=4).map(json.dumps))[1:-1]
    half = f"\\u{draw(st.one_of(HIGH, LOW)):04x}"
    after = draw(st.sampled_from(["", "x", " ", r"\n", r"\\", r"\\udc00", r"\u0041", "udc00", r"\"", "é"]))
    return f'"{before}{half}{after}"', len(f'"{before}'.encode())


@given(lone_surrogates(), st.booleans())
def test_an_escape_of_half_a_character_is_refused_with_its_position(lone: tuple[str, int], as_name: bool) -> None:
    string, at = lone
    start, end = ("{", ": 1}") if as_name else ('{"a": ', "}")
    with pytest.raises(BadRequest, match=rf"not JSON: .*surrogate.* \(byte {len(start) + at}\)") as caught:
        parse_body((start + string + end).encode())
    assert caught.value.code == "invalid_json"


@given(HIGH, LOW, st.sampled_from(["%04x", "%04X"]))
def test_a_pair_of_escapes_is_one_character(high: int, low: int, form: str) -> None:
    text = f'{{"a": "\\u{form % high}\\u{form % low}"}}'
    assert parse_body(text.encode()) == {"a": chr(0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00)}


@given(
    st.sampled_from([r'{"a": "\\ud800', r'{"a": "x', r'{"\ud83d\ude00', '{"a": "é', r'{"a": "\ud83d\ude00", "b": [1'])
)
def test_the_error_of_a_body_that_ends_too_early_says_so(text: str) -> None:
    with pytest.raises(BadRequest, match="truncated"):
        parse_body(text.encode())


# Numbers


@given(st.integers(-(10**4000), 10**4000))
def test_integers_of_any_size_are_kept_to_the_digit(number: int) -> None:
    value = parse_body(f'{{"n": {number}}}'.encode())["n"]
    assert type(value) is int
    assert value == number
    assert msgspec.json.encode(value) == str(number).encode()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_make_the_round_trip(number: float) -> None:
    again = parse_body(msgspec.json.encode(parse_body(f'{{"n": {number!r}}}'.encode())))["n"]
    assert (again, math.copysign(1, again), type(again)) == (number, math.copysign(1, number), float)


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,40})\.[0-9]{1,60}([eE][+-]?[0-9]{1,2})?", fullmatch=True))
def test_decimals_become_the_nearest_float(text: str) -> None:
    assert parse_body(f'{{"n": {text}}}'.encode())["n"] == float(text)


# Depth


@given(st.text("[{", min_size=1, max_size=MAX_DEPTH + 20), st.integers(0, 3))
def test_two_hundred_levels_pass_and_no_more(levels: str, wide: int) -> None:
    text = "1"
    for level in reversed(levels):
        text = f"[{'[],' * wide}{text}]" if level == "[" else f'{{"a": {text}}}'
    body = f'{{"a": {text}}}'.encode()
    if len(levels) < MAX_DEPTH:
        assert parse_body(body) == json.loads(body)
    else:
        with pytest.raises(BadRequest, match="200 levels"):
            parse_body(body)


def test_the_reference_agrees_with_the_standard() -> None:
    """The reference itself must be right: it reads the examples of RFC 8259, section 13, and difficult texts."""
    for text in (
        '{"Image": {"Width": 800, "Animated": false, "IDs": [116, 943], "Thumbnail": null}}',
        '[{"precision": "zip", "Latitude": 37.7668, "Longitude": -122.3959}]',
        '"Hello world!"', "42", "true", " [ ] ", "-0.5e-7", r'"\uD834\uDD1E\/"', '{"a": 1, "a": 2}',
    ):  # fmt: skip
        assert read_json(text.encode()) == json.loads(text)
    for text in (
        "",
        "NaN",
        "[1,]",
        "01",
        "+1",
        "1.",
        ".1",
        "'a'",
        "\ufeff1",
        "[1] 2",
        "{1: 2}",
        '"\t"',
        r'"\ud800"',
        "tru",
        "1e999",
    ):
        with pytest.raises(NotJson):
            read_json(text.encode())
