"""The fast server reads headers and bodies like Tornado, and equally for every division of the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from ingestd.http.server.body import Body, ChunkedBody, FixedBody
from ingestd.http.server.head_parser import Malformed, RequestHeaders, parse_head

NAMES = st.sampled_from(["Host", "host", "X-One", "x-ONE", "X-One-More", "One", "Content-Type", "a", "A"])
VALUES = st.text(st.characters(max_codepoint=0xFF, exclude_categories=["Cc"], include_characters="\t"), max_size=8)
LINES = st.lists(st.tuples(NAMES, VALUES.filter(lambda value: "\x7f" not in value)), max_size=6)


def headers_of(lines: list[tuple[str, str]]) -> tuple[RequestHeaders, HTTPHeaders]:
    text = "".join(f"{name}:{value}\r\n" for name, value in lines)
    _, ours = parse_head(f"GET / HTTP/1.1\r\n{text}\r\n".encode("latin-1"))
    return ours, HTTPHeaders.parse(text)


@given(LINES, st.lists(NAMES, max_size=4))
def test_headers_are_found_as_in_tornado_s(lines: list[tuple[str, str]], names: list[str]) -> None:
    ours, theirs = headers_of(lines)
    for name in [*names, "Ho", "x-one:", "X-One: 1\r\nA", "", "\u212a"]:
        assert ours.get(name) == theirs.get(name)
        assert ours.get(name, "none") == theirs.get(name, "none")
        assert (name in ours) == (name in theirs)
        if name in theirs:
            assert ours[name] == theirs[name]
        else:
            with pytest.raises(KeyError):
                ours[name]
    assert ours.line_count == len(lines)


@given(LINES)
def test_the_list_of_all_headers_equals_tornado_s(lines: list[tuple[str, str]]) -> None:
    ours, theirs = headers_of(lines)
    assert (list(ours.items()), len(ours)) == (list(theirs.items()), len(theirs))


def read(body: Body, parts: list[bytes]) -> tuple[bytes, bytes | None]:
    """The body and the bytes after its end; None instead of these if it has no end."""
    found = b""
    for at, part in enumerate(parts):
        found += body.feed(part)
        if body.malformed:
            return found, None
        if body.done:
            return found, body.rest + b"".join(parts[at + 1 :])
    return found, None


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(each % (len(data) + 1) for each in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


@st.composite
def chunked_bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A body, and its bytes on the wire."""
    chunks = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=5))
    extensions = st.sampled_from([b"", b";a", b' ; a="b;c"', b";" + b"a" * 70, b"\t;\xff"])
    digits = st.sampled_from([b"%x", b"%X", b"00%x"])
    sent = b"".join(draw(digits) % len(chunk) + draw(extensions) + b"\r\n" + chunk + b"\r\n" for chunk in chunks)
    trailers = draw(st.lists(st.sampled_from([b"X: y\r\n", b"Z:\r\n", b"Content-Length: 5\r\n"]), max_size=2))
    return b"".join(chunks), sent + b"0" + draw(extensions) + b"\r\n" + b"".join(trailers) + b"\r\n"


CUTS = st.lists(st.integers(0, 500), max_size=8)


@given(chunked_bodies(), st.binary(max_size=10), CUTS)
def test_a_body_in_chunks_is_read_to_its_end_and_no_further(
    body: tuple[bytes, bytes], behind: bytes, cuts: list[int]
) -> None:
    content, sent = body
    assert read(ChunkedBody(1000), cut(sent + behind, cuts)) == (content, behind)


@given(chunked_bodies(), st.integers(0, 500), st.sampled_from(list(b"\r\n\0 ;:0gx")), CUTS)
def test_a_spoilt_body_is_refused_however_it_is_divided(
    body: tuple[bytes, bytes], index: int, wrong: int, cuts: list[int]
) -> None:
    sent = bytearray(body[1])
    sent[index % len(sent)] = wrong
    assert read(ChunkedBody(1000), cut(bytes(sent), cuts)) == read(ChunkedBody(1000), [bytes(sent)])


@given(st.integers(1, 50), st.binary(min_size=50, max_size=60), CUTS)
def test_a_body_of_a_known_length_is_read_to_its_end_and_no_further(length: int, data: bytes, cuts: list[int]) -> None:
    assert read(FixedBody(length), cut(data, cuts)) == (data[:length], data[length:])


@pytest.mark.parametrize(
    "sent",
    [b"3e9\r\n", b"1\r\nx\r\n" * 1001, b"1;" + b"a" * 5000, b"1;" + b"a" * 3000 + b"\r\nx\r\n1;" + b"a" * 2000,
     b"0\r\nX: " + b"y" * 5000, b"0\r\n" + b"X: y\r\n" * 1000],
    ids=["a chunk", "the chunks", "an extension", "the extensions", "a trailer", "the trailers"],
)  # fmt: skip
def test_a_chunked_body_is_bounded(sent: bytes) -> None:
    body = ChunkedBody(1000)
    body.feed(sent)
    assert body.malformed


@pytest.mark.parametrize("sent", [b"\r\n\r\nx\r\n", b"\r\nx\r\n", b"1\nx\r\n", b"1\r\nxy\r\n", b"1\r\nx\n1\r\n"])
@pytest.mark.parametrize("before", [b"1\r\nx\r\n", b"1;a\r\nx\r\n", b"1\r\nx\r\n1\r\nx\r\n1;a\r\nx\r\n"])
def test_a_wrong_chunk_is_refused_behind_right_ones(before: bytes, sent: bytes) -> None:
    body = ChunkedBody(1000)
    assert set(body.feed(before + sent)) == {ord("x")}
    assert body.malformed


@pytest.mark.parametrize("piece", [777, 65_536])
def test_a_body_comes_in_1024_chunks_or_in_chunks_of_4_kib(piece: int) -> None:
    for size, count, right in ((1, 1023, True), (1, 1024, False), (4000, 1100, False), (4096, 5000, True)):
        sent = (b"%x\r\n%b\r\n" % (size, b"x" * size)) * count + b"0\r\n\r\n"
        body = ChunkedBody(2**26)
        read = 0
        for at in range(0, len(sent), piece):
            read += len(body.feed(sent[at : at + piece]))
            if body.malformed:
                break
        assert (body.done, body.malformed) == (right, not right)
        assert not right or read == size * count


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", b"GET / HTTP/1.1\r\nX: a\rb\r\n\r\n", b"\r\n\r\nGET / HTTP/1.1\r\n",
     b"GET / HTTP/1.1\nX: y\r\n\r\n", b"\nGET / HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_a_line_ends_with_both_its_characters(head: bytes) -> None:
    with pytest.raises(Malformed):
        parse_head(head)
