"""Content-Encoding undone, and never more of it than the limit."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import BadRequest, TooLarge, UnsupportedEncoding
from ingestd.http.body import decode_body

LIMIT = 1000


@given(st.binary(max_size=LIMIT), st.sampled_from(["gzip", "x-gzip", "GZIP", " gzip "]), st.integers(0, 9))
def test_what_was_compressed_comes_out_again(body: bytes, encoding: str, level: int) -> None:
    assert decode_body(gzip.compress(body, level), encoding, LIMIT) == body


@given(st.binary(max_size=2 * LIMIT), st.sampled_from(["", "identity", "Identity", " "]))
def test_no_encoding_leaves_the_body_alone(body: bytes, encoding: str) -> None:
    assert decode_body(body, encoding, LIMIT) is body  # its size was bounded on arrival


@given(st.integers(0, LIMIT + 2))
def test_the_limit_is_inclusive(size: int) -> None:
    packed = gzip.compress(b"x" * size)
    if size <= LIMIT:
        assert decode_body(packed, "gzip", LIMIT) == b"x" * size
    else:
        with pytest.raises(TooLarge, match="larger than 1000 bytes"):
            decode_body(packed, "gzip", LIMIT)


def test_a_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    assert len(bomb) < 1 << 20
    with pytest.raises(TooLarge):
        decode_body(bomb, "gzip", 1 << 20)


@given(st.binary(max_size=LIMIT), st.data())
def test_a_body_that_ends_too_early_is_refused(body: bytes, data: st.DataObject) -> None:
    packed = gzip.compress(body)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(BadRequest, match="ends too early") as error:
        decode_body(packed[:cut], "gzip", LIMIT)
    assert error.value.code == "invalid_encoding"


@given(st.binary(max_size=LIMIT), st.binary(min_size=1, max_size=50))
def test_a_body_that_goes_on_after_its_end_is_refused(body: bytes, tail: bytes) -> None:
    with pytest.raises(BadRequest, match="goes on after its end") as error:
        decode_body(gzip.compress(body) + tail, "gzip", LIMIT)
    assert error.value.code == "invalid_encoding"


def test_two_members_are_not_one_body() -> None:
    with pytest.raises(BadRequest, match="goes on after its end"):
        decode_body(gzip.compress(b"{}") + gzip.compress(b"{}"), "gzip", LIMIT)


@pytest.mark.parametrize(
    "body",
    [b'{"key": "Page View"}', zlib.compress(b"{}"), gzip.compress(b"{}", mtime=0)[:-8] + bytes(8), b"\x1f\x8b\x07\x00"],
)
def test_what_is_not_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not valid gzip") as error:
        decode_body(body, "gzip", LIMIT)
    assert error.value.code == "invalid_encoding"


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "gzip, gzip", "gzip;q=1", "*", "\x00"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding):
        decode_body(b"{}", encoding, LIMIT)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_raises_nothing_else(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_body(b"\x1f\x8b\x08" + body, "gzip", LIMIT)
