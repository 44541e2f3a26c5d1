"""One bad event of a batch is told apart from the others, whatever is wrong with its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.errors import BadRequest
from ingestd.event_boundaries import split_batch
from ingestd.validation import MAX_EVENTS, parse_batch, parse_body

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.sampled_from('a\\"[]{},:\n\u00e9\U0001f600')),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('e"[]{},:')), inner, max_size=3)
    ),
    max_leaves=15,
)
GOOD = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)

HALVES = [rb"\ud83d", rb"\ude00", rb"\uD83D\uD83D", rb"\ude00\ud83d", rb"\ud83d\n", rb"\udbff\udbff\udfff"]
ESCAPES = [rb"\x41", rb"\u12", rb"\u{1f600}", rb"\'", rb"\0", b"\\\xff"]
BYTES = [
    b"\xff",
    b"\xe2\x82",
    b"\xc0\xaf",
    b"\xed\xa0\xbd",
    b"Kaffee \xfc",
    b"\0",
    b"\n",
    b"\x1f",
    b"\xf8\x88\x80\x80\x80",
]
STRINGS = st.tuples(
    st.sampled_from([b"", b"Kaffee ", rb"\\", rb"\"", b"]}", b"[{", b","]),
    st.sampled_from([*HALVES, *ESCAPES, *BYTES]),
    st.sampled_from([b"", b" cut", rb"\\", rb"\"", b"]}", b"[{", b","]),
).map(lambda parts: b'"' + b"".join(parts) + b'"')
WORDS = [
    b"undefined", b"NaN", b"-Infinity", b"True", b"None", b"nil", b"tru", b"1e400", b"-1e999", b"01", b"+1", b"1.",
    b".5", b"0x10", b"1_000", b"9" * 5000, b"'x'", b"`x`", b"x y", b"1 2", b"/* x */ 1", b"1;", b"[1,]", b'{"a":1,}',
    b"{a:1}", b"[,]", b'{"a" 1}', b'{"a":}', b"{1:2}", b'"a" "b"', b"[1}", b"{]", b"\xef\xbb\xbf1", b"\0", b"\x0c1",
]  # fmt: skip
DEEP = [b"[" * 300 + b"]" * 300, b"[" * 100_000 + b"]" * 100_000, b'{"a":[' * 20_000 + b"1" + b"]}" * 20_000]
AROUND = [b'{"key": "Page View", "data": {"name": %s, "price": 1}}', b"%s", b'[1, {"x": %s}]']
SPOILT = st.tuples(st.sampled_from(AROUND), st.one_of(STRINGS, st.sampled_from(WORDS), st.sampled_from(DEEP))).map(
    lambda parts: parts[0] % parts[1]
)


def joined(events: list[bytes], before: bytes = b"", after: bytes = b"") -> bytes:
    return b'{%s"events" : [ %s ]%s}\n' % (before, b" ,\n".join(events), after)


@given(
    st.lists(GOOD, max_size=4),
    st.lists(GOOD, max_size=4),
    SPOILT,
    st.sampled_from([b"", b'"sentAt": "now", ', b'"a": {"b": [[[[[[{}]]]]]], "events": [1]}, "c": "events", ']),
    st.sampled_from([b"", b', "z": [{}]']),
)
@example([], [], rb'{"a": "\ud83d"}', b"", b"")
def test_one_spoilt_event_leaves_the_others_as_they_are(
    first: list[Any], last: list[Any], spoilt: bytes, before: bytes, after: bytes
) -> None:
    encoded = [[json.dumps(each).encode() for each in some] for some in (first, last)]
    events = parse_batch(joined([*encoded[0], spoilt, *encoded[1]], before, after))
    assert len(events) == len(first) + 1 + len(last)
    bodies = [bytes(event) for event in events]
    assert [parse_body(body) for body in bodies[: len(first)]] == first
    assert [parse_body(body) for body in bodies[len(first) + 1 :]] == last
    with pytest.raises(BadRequest) as refused:
        parse_body(bodies[len(first)])
    assert refused.value.code in {"invalid_json", "not_an_object"}
    assert refused.value.detail


@given(st.lists(VALUES, max_size=6), st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.booleans())
def test_the_events_of_any_batch_are_found_where_the_decoder_finds_them(
    events: list[Any], others: dict[str, Any], ascii: bool
) -> None:
    others.pop("events", None)
    body = json.dumps({**others, "events": events}, ensure_ascii=ascii).encode()
    split = split_batch(body, MAX_EVENTS)
    assert split is not None
    assert [json.loads(event) for event in split.events] == events
    assert json.loads(split.envelope) == {**others, "events": []}


@pytest.mark.parametrize(
    "body",
    [
        b'{"events": [{}, {]}',
        b'{"events": [{}, {"a": "x}]}',
        b'{"events": [{}, {"a": "x\\"}]}',
        b'{"events": [{}, {"a": [1}]}',
        b'{"events": [{}, {}}]}',
        b'{"events": [{}, tru]',
        b'{"events": [{}, tru',
        b'{"events": [{}, tru]} x',
        b'{"events": [{}, tru], "x": nope}',
        b'{"events": [{}, tru], x}',
        b'{x "events": [{}, tru]}',
        b'{"events": [tru], "events": [tru]}',
        b'["events", [tru]]',
        b'{"x": {"events": [tru]}}',
        b'{"events": {"a": tru}}',
        b'{"events" [tru]}',
        b'\xef\xbb\xbf{"events": [tru]}',
        b'{"events": [{}, ' + b'{"a":["x":' * 100_000 + b"]}" * 100_000 + b"]}",
    ],
)
def test_where_it_cannot_be_told_what_is_an_event_all_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_batch(body)
    assert refused.value.code in {"invalid_json", "not_an_object", "invalid_envelope"}


def test_an_event_that_is_missing_between_commas_is_a_bad_one() -> None:
    assert [*map(bytes, parse_batch(b'{"events": [{"a": 1}, , {"b": 2},]}'))] == [b'{"a": 1}', b"", b'{"b": 2}', b""]


def test_a_thousand_events_are_the_most_also_where_one_is_spoilt() -> None:
    assert len(parse_batch(joined([b"tru"] * MAX_EVENTS))) == MAX_EVENTS
    for events in ([b"tru"] * (MAX_EVENTS + 1), [b""] * 1_000_000):
        with pytest.raises(BadRequest, match="expected 1 to 1000 events, got more"):
            parse_batch(joined(events))


def parse_all(body: bytes) -> None:
    for event in parse_batch(body):
        parse_body(bytes(event))


@pytest.mark.parametrize(
    "junk",
    [
        b"[", b"{", b"[{", b"[1{2", b"[]", b"[[]", b"]", b'"', b'""', b'"\\', b'{"', b'{"a":', b'{"a":"', b"[[[[[[]",
        b"\\", b'{"a":{"b":"c', b'[{}[]]{[]}{[[[[[1]]]]]}', b"x" * 1000 + b"[", b'"x"{',
    ],
)  # fmt: skip
def test_a_megabyte_of_junk_is_read_a_few_times_at_most(junk: bytes) -> None:
    """By its length squared it would take hours."""
    many = junk * (1_000_000 // len(junk))
    for body in (b'{"events": [' + many, b'{"events": [{}, ' + many + b"]}", b"{" + many, many):
        split_batch(body, MAX_EVENTS)
        with pytest.raises(BadRequest):
            parse_all(body)
