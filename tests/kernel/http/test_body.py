"""Decoding of Content-Encoding, never beyond the limit."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.api.errors import BadRequest, TooLarge, UnsupportedEncoding
from ingestd.http.body import decode_body

LIMIT = 1000


@given(st.binary(max_size=LIMIT), st.sampled_from(["gzip", "x-gzip", "GZIP", " gzip "]), st.integers(0, 9))
def test_compressed_bodies_are_restored(body: bytes, encoding: str, level: int) -> None:
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


def test_a_bomb_is_not_decompressed() -> None:
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


@given(st.lists(st.binary(max_size=LIMIT // 4), min_size=1, max_size=6))
def test_the_members_of_a_body_are_joined(parts: list[bytes]) -> None:
    packed, body = b"".join(map(gzip.compress, parts)), b"".join(parts)
    if len(body) <= LIMIT:
        assert decode_body(packed, "gzip", LIMIT) == body
    else:
        with pytest.raises(TooLarge, match="larger than 1000 bytes"):
            decode_body(packed, "gzip", LIMIT)


@pytest.mark.parametrize("parts", [[b"", b"{}"], [b"{}", b""], [b"", b"", b"{", b"", b"}"], [b"", b""]])
def test_a_member_may_be_empty(parts: list[bytes]) -> None:
    assert decode_body(b"".join(map(gzip.compress, parts)), "gzip", LIMIT) == b"".join(parts)


@given(st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_the_limit_counts_all_members_together(first: int, second: int) -> None:
    packed = gzip.compress(b"x" * first) + gzip.compress(b"x" * second)
    if first + second <= LIMIT:
        assert decode_body(packed, "gzip", LIMIT) == b"x" * (first + second)
    else:
        with pytest.raises(TooLarge):
            decode_body(packed, "gzip", LIMIT)


def test_a_large_member_after_a_small_one_is_complete() -> None:
    body = random.Random(1).randbytes(1 << 20)
    assert (
        decode_body(gzip.compress(b"{") + gzip.compress(body) + gzip.compress(b"}"), "gzip", 2 << 20) == b"{%b}" % body
    )


def test_a_bomb_in_a_later_member_is_not_unpacked() -> None:
    packed = gzip.compress(b"{}") + gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode_body(packed, "gzip", 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_members_are_not_copied_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes passed to decoders are proportional to the body, regardless of the number of its members."""
    given = 0

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._decoder = zlib_decompressobj(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal given
            given += len(data)
            return self._decoder.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._decoder, name)

    zlib_decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    packed = gzip.compress(b"", mtime=0) * 200
    assert decode_body(packed, "gzip", LIMIT) == b""
    assert given < 16 * len(packed)


def test_a_body_of_too_many_members_is_refused() -> None:
    """Each member costs time, however small it is. A request without a key may take a millisecond."""
    assert decode_body(gzip.compress(b"", mtime=0) * 200, "gzip", LIMIT) == b""
    with pytest.raises(BadRequest, match="too many members") as error:
        decode_body(gzip.compress(b"", mtime=0) * 250, "gzip", LIMIT)
    assert error.value.code == "invalid_encoding"


@given(st.binary(max_size=LIMIT), st.binary(min_size=1, max_size=50).filter(lambda tail: tail[0] != 0x1F))
def test_a_body_that_goes_on_after_its_end_is_refused(body: bytes, tail: bytes) -> None:
    with pytest.raises(BadRequest, match="has bytes after its end") as error:
        decode_body(gzip.compress(body) + tail, "gzip", LIMIT)
    assert error.value.code == "invalid_encoding"


@pytest.mark.parametrize("tail", [b"\x00", bytes(512), b"\x1f\x00", b"\x1f\x8a\x08", b"\n"])
def test_padding_behind_the_last_member_is_refused(tail: bytes) -> None:
    for packed in (gzip.compress(b"{}"), gzip.compress(b"{") + gzip.compress(b"}")):
        with pytest.raises(BadRequest, match="has bytes after its end"):
            decode_body(packed + tail, "gzip", LIMIT)


@given(st.binary(max_size=LIMIT // 2), st.data())
def test_a_last_member_that_ends_too_early_is_refused(body: bytes, data: st.DataObject) -> None:
    packed = gzip.compress(body)
    cut = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(BadRequest, match="ends too early"):
        decode_body(packed + packed[:cut], "gzip", LIMIT)


def test_a_later_member_that_is_spoilt_is_refused() -> None:
    spoilt = gzip.compress(b"{}", mtime=0)[:-8] + bytes(8)
    with pytest.raises(BadRequest, match="not valid gzip"):
        decode_body(gzip.compress(b"{}") + spoilt, "gzip", LIMIT)


@pytest.mark.parametrize(
    "body",
    [b'{"key": "Page View"}', zlib.compress(b"{}"), gzip.compress(b"{}", mtime=0)[:-8] + bytes(8), b"\x1f\x8b\x07\x00"],
)
def test_a_body_that_is_not_gzip_is_refused(body: bytes) -> None:
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
