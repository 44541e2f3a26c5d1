"""An invalid event of a batch is separated from the others, whatever its bytes are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest
from ingestd.validation.batch_parser import MAX_EVENTS, BatchParser
from ingestd.validation.event_boundaries import SplitBatch, split_batch
from ingestd.validation.validator import parse_body

ROOT = Path(__file__).parents[3]
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
PIECES = [rb"\"", b'"events"', b'"events":[', b"[[[[[", b"]]]]]", b'{"a":[{"b":[["\\\\"]]}]}', b'[[[["]"]]]]']
"""Of any body: escapes, names, and containers with more levels than the patterns have."""
AROUND = [b'{"key": "Page View", "data": {"name": %s, "price": 1}}', b"%s", b'[1, {"x": %s}]']
SPOILT = st.tuples(st.sampled_from(AROUND), st.one_of(STRINGS, st.sampled_from(WORDS), st.sampled_from(DEEP))).map(
    lambda parts: parts[0] % parts[1]
)


def parse_batch(body: bytes) -> Sequence[msgspec.Raw]:
    return asyncio.run(BatchParser().parse(body)).events


def split(body: bytes, step: int = 32 * 1024) -> SplitBatch | None:
    return asyncio.run(split_batch(body, MAX_EVENTS, step=step))


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
def test_one_spoilt_event_does_not_change_the_others(
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
def test_boundaries_of_events_agree_with_the_decoder(events: list[Any], others: dict[str, Any], ascii: bool) -> None:
    others.pop("events", None)
    body = json.dumps({**others, "events": events}, ensure_ascii=ascii).encode()
    found = split(body)
    assert found is not None
    assert [json.loads(event) for event in found.events] == events
    assert json.loads(found.envelope) == {**others, "events": []}


@given(
    st.lists(st.one_of(GOOD.map(lambda event: json.dumps(event).encode()), SPOILT), min_size=1, max_size=4),
    st.sampled_from([b"", b'"a": {"b": [[[[[[{}]]]]]], "events": [1]}, "c": "events", "events" : 1, ']),
    st.binary(max_size=3),
    st.integers(2, 100),
)
def test_the_size_of_a_step_changes_nothing(events: list[bytes], before: bytes, after: bytes, step: int) -> None:
    body = joined([event for event in events if len(event) < 5000] or [b"1"], before) + after
    assert split(body, step) == split(body)
    cut = body[: len(body) * step // 100]
    assert split(cut, step) == split(cut)


class Unclear(Exception):
    """The body ends too soon, or a bracket closes nothing."""


def behind_value(body: bytes, at: int) -> int:
    """The index behind the string, container or other character at `at`, read one by one."""
    depth = 0
    while at < len(body):
        if body[at] in b'"':
            at += 1
            while body[at : at + 1] not in {b'"', b""}:
                at += 2 if body[at] in b"\\" else 1
            if at >= len(body):
                break
        depth += (body[at] in b"[{") - (body[at] in b"]}")
        at += 1
        if depth <= 0:
            return at
    raise Unclear


def slowly_split(body: bytes) -> SplitBatch:
    """What `split` finds, one character after the other."""
    at = re.match(rb"[ \t\n\r]*\{|", body).end()  # type: ignore[union-attr]  # it matches anything
    if at == 0:
        raise Unclear
    while (opened := re.compile(rb'"events"[ \t\n\r]*:[ \t\n\r]*\[').match(body, at)) is None:
        if body[at : at + 1] in {b"]", b"}"}:
            raise Unclear
        at = behind_value(body, at)
    start = begin = at = opened.end()
    events = []
    while body[at : at + 1] != b"]":
        if body[at : at + 1] == b"}":
            raise Unclear
        if body[at : at + 1] == b",":
            events.append(body[begin:at])
            begin = at + 1
        at = behind_value(body, at)
    events = [event.strip(b" \t\n\r") for event in [*events, body[begin:at]]]
    return SplitBatch(body[:start] + body[at:], [] if events == [b""] else events)


@given(
    st.sampled_from([b'{"events":[', b'{"a": [], "events" : [{}, ', b'{"events', b" {", b""]),
    st.lists(st.sampled_from([*b'""\\[]{},: x\xff\n']).map(lambda code: bytes([code])) | st.sampled_from(PIECES)).map(
        b"".join
    ),
    st.sampled_from([b"]}", b'"]}', b"}]}", b""]),
    st.integers(2, 40),
)
def test_boundaries_in_any_bytes_agree_with_those_of_a_slow_reader(
    before: bytes, middle: bytes, after: bytes, step: int
) -> None:
    body = before + middle + after
    try:
        expected = slowly_split(body)
    except Unclear:
        expected = None
    assert split(body) == split(body, step) == expected


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
def test_all_events_are_refused_if_their_boundaries_are_unclear(body: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_batch(body)
    assert refused.value.code in {"invalid_json", "not_an_object", "invalid_envelope"}


def test_a_missing_event_between_commas_is_an_invalid_event() -> None:
    assert [*map(bytes, parse_batch(b'{"events": [{"a": 1}, , {"b": 2},]}'))] == [b'{"a": 1}', b"", b'{"b": 2}', b""]


def test_the_limit_of_a_thousand_events_includes_spoilt_ones() -> None:
    assert len(parse_batch(joined([b"tru"] * MAX_EVENTS))) == MAX_EVENTS
    for events in ([b"tru"] * (MAX_EVENTS + 1), [b""] * 1_000_000):
        with pytest.raises(BadRequest, match="expected 1 to 1000 events, got more"):
            parse_batch(joined(events))


def turns_of_parsing(body: bytes) -> list[float]:
    """The processor time of each turn of the event loop, in seconds."""
    parsing, turns = BatchParser().parse(body), list[float]()
    while True:
        before = time.thread_time()
        try:
            parsing.send(None)
        except (StopIteration, BadRequest):
            return turns
        finally:
            turns.append(time.thread_time() - before)


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
def test_junk_of_any_length_is_read_a_few_times_at_most(junk: bytes) -> None:
    """Reading it in quadratic time would take many minutes."""
    many = junk * (250_000 // len(junk))
    for body in (b'{"events": [' + many, b'{"events": [{}, ' + many + b"]}", b"{" + many, many):
        split(body)
        with pytest.raises(BadRequest):
            parse_all(body)


@pytest.mark.parametrize(
    ("before", "junk"),
    [
        (b'{"events": [{}, "\\ud800", ', b'{"a":"'),
        (b'{"x": [', b"[[[[[]]]]]"),
        (b'{"events": [{"a": "', b'["x"'),
        (b'{"events": [', b'"' + b"\\n" * 20_000 + b'"'),
    ],
)
def test_other_tasks_run_while_four_megabytes_are_read(before: bytes, junk: bytes) -> None:
    turns = turns_of_parsing(before + junk * ((4 * 2**20 - 100) // len(junk)))
    assert max(turns) < sum(turns) / 4


async def test_faulty_batches_are_read_one_at_a_time_and_good_ones_at_once() -> None:
    parser, done = BatchParser(), list[str]()

    async def parse(name: str, body: bytes) -> None:
        with contextlib.suppress(BadRequest):
            await parser.parse(body)
        done.append(name)

    bodies = {"large": b'{"events": [' + b'{"a":"' * 200_000, "small": b'{"events": [tru]}', "good": b'{"events": [1]}'}
    await asyncio.gather(*[parse(name, body) for name, body in bodies.items()])
    assert done == ["good", "large", "small"]


def test_no_pattern_of_the_product_repeats_a_group_in_a_way_that_debian_s_python_gets_wrong() -> None:
    """A group that repeats possessively ends with an empty alternative (`_nested`)."""
    pattern = re.compile(r"(?<![|(])\)(?:[*+?]|\{[0-9,]+\})\+")
    sources = [
        path for folder in ("ingestd", "plugins", "testing", "clients/python") for path in (ROOT / folder).rglob("*.py")
    ]
    assert [path for path in sources if pattern.search(path.read_text())] == []
