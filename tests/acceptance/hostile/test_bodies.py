"""Bodies with a wrong encoding, a decompression bomb or endless nesting; and numbers that must be stored as sent."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from tests.support.daemon import Daemon, Key, Reply, Shop, sign
from tests.support.rawhttp import assert_refused, counting, event, memory

PATHS = ("/track", "/identify/public", "/customer-events")
DEPTH = 100_000
LARGEST = 1 << 20
HUGE = 256 * LARGEST

# The memory that one body of a megabyte may take while it is decoded, parsed and checked.
MOST_FOR_ONE_BODY = 64 * 2**20


def send(shop: Shop, daemon: Daemon, path: str, body: bytes, **headers: str) -> Reply:
    """Sends a compressed body with the credential of the path. A signature is over the uncompressed body."""
    if path != "/customer-events":
        return daemon.post(path, body, shop.public.id, **headers)
    content = body
    if "Content_Encoding" in headers:
        try:
            content = zlib.decompressobj(31).decompress(body, LARGEST)
        except zlib.error:
            content = b""
    return daemon.post(path, body, shop.server.id, x_signature=sign(shop.server.secret, content), **headers)


def send_each(shop: Shop, daemon: Daemon, path: str, bodies: Mapping[str, bytes], **headers: str) -> dict[str, Reply]:
    """Sends all of them at the same time, because a refusal may be held back for a second."""
    with ThreadPoolExecutor(100) as threads:
        replies = threads.map(lambda body: send(shop, daemon, path, body, **headers), bodies.values())
        return dict(zip(bodies, replies, strict=True))


@cache
def bomb(size: int, layers: int = 1) -> bytes:
    """`size` spaces, compressed once per layer. Each layer is a thousandth of the size of its content."""
    if layers > 1:
        return gzip.compress(bomb(size, layers - 1), 9)
    packer = zlib.compressobj(9, wbits=31)
    block = b" " * (1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


# Encodings

TEXT = '{"key": "Page View", "anonymousId": "visitor", "data": {"title": "Pâtes"}}'
WRONGLY_ENCODED = {
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16LE": TEXT.encode("utf-16-le"),
    "UTF-16BE": TEXT.encode("utf-16-be"),
    "UTF-32": TEXT.encode("utf-32"),
    "UTF-7": TEXT.encode("utf-7").replace(b'"', b"+ACI-"),
    "ISO 8859-1": TEXT.encode("latin-1"),
    "EBCDIC": TEXT.encode("cp500"),
    "BOM": TEXT.encode("utf-8-sig"),
    "BOM inside": TEXT.replace("{", "\ufeff{", 2).encode(),
    "CESU-8": TEXT.encode().replace("â".encode(), b"\xed\xa0\xbd\xed\xb8\x80"),
    "lone surrogate": TEXT.encode().replace("â".encode(), b"\xed\xa0\xbd"),
    "lone surrogate, escaped": TEXT.encode().replace("â".encode(), rb"\ud83d"),
    "overlong": TEXT.encode().replace("â".encode(), b"\xc0\xaf"),
    "beyond Unicode": TEXT.encode().replace("â".encode(), b"\xf4\x90\x80\x80"),
    "cut in a character": TEXT.encode()[: TEXT.index("â") + 1],
    "NUL": TEXT.encode().replace("â".encode(), b"\0"),
    "NUL at the end": TEXT.encode() + b"\0",
}


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_not_json_in_utf_8_are_refused(shop: Shop, daemon: Daemon, path: str) -> None:
    with counting(daemon, invalid=len(WRONGLY_ENCODED)):
        for name, reply in send_each(shop, daemon, path, WRONGLY_ENCODED).items():
            assert reply.json()["code"] == "invalid_json", name
            assert_refused(reply, 400, "invalid_json", closes=False)


# Gzip

PACKED = gzip.compress(event({"title": "x" * 500}))
NOT_GZIP = {
    "plain": event(),
    "nothing": b"",
    "zlib": zlib.compress(event()),
    "deflate": zlib.compress(event(), wbits=-15),
    "another magic": b"PK" + PACKED[2:],
    "another method": PACKED[:2] + b"\x07" + PACKED[3:],
    "reserved flags": PACKED[:3] + b"\xff" + PACKED[4:],
    "wrong checksum": PACKED[:-8] + bytes(4) + PACKED[-4:],
    "wrong length": PACKED[:-4] + bytes(4),
    "bytes behind it": PACKED + b"\0",
    "half of another behind it": PACKED + PACKED[: len(PACKED) // 2],
    "noise": PACKED[:20] + bytes(range(256)),
    **{f"the first {size} bytes": PACKED[:size] for size in (1, 2, 3, 9, 10, 11, 30, len(PACKED) - 8, len(PACKED) - 1)},
}


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_not_whole_gzip_members_are_refused(shop: Shop, daemon: Daemon, path: str) -> None:
    with counting(daemon, invalid=len(NOT_GZIP)):
        for name, reply in send_each(shop, daemon, path, NOT_GZIP, Content_Encoding="gzip").items():
            assert reply.json()["code"] == "invalid_encoding", name
            assert_refused(reply, 400, "invalid_encoding", closes=False)


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd", "compress", "gzip, gzip", "gzip, br", "*"])
def test_other_encodings_are_not_supported(shop: Shop, daemon: Daemon, encoding: str) -> None:
    for path in PATHS:
        reply = send(shop, daemon, path, PACKED, Content_Encoding=encoding)
        assert_refused(reply, 415, "unsupported_encoding", closes=False)


@pytest.mark.parametrize("path", PATHS)
def test_a_bomb_is_not_decompressed(shop: Shop, daemon: Daemon, path: str) -> None:
    before = memory(daemon.pid, "VmHWM")
    with counting(daemon, too_large=2):
        for size in (2 * LARGEST, HUGE):
            reply = send(shop, daemon, path, bomb(size), Content_Encoding="gzip")
            assert_refused(reply, 413, "too_large", closes=False)
    assert memory(daemon.pid, "VmHWM") < before + MOST_FOR_ONE_BODY


def test_a_bomb_in_a_bomb_is_decompressed_once_at_most(shop: Shop, daemon: Daemon) -> None:
    nested = bomb(HUGE, layers=2)
    assert len(nested) < HUGE // 100_000
    for encoding, status, code in (
        ("gzip", 400, "invalid_json"),
        ("x-gzip", 400, "invalid_json"),
        ("gzip, gzip", 415, "unsupported_encoding"),
    ):
        reply = daemon.post("/track", nested, shop.public.id, Content_Encoding=encoding)
        assert_refused(reply, status, code, closes=False)


def test_a_body_without_a_key_is_not_decompressed(daemon: Daemon) -> None:
    for key in (None, "another"):
        reply = daemon.post("/track", bomb(HUGE), key, Content_Encoding="gzip")
        assert reply.status == 401


# Depth

DEEP = {
    "arrays": b"[" * DEPTH + b"]" * DEPTH,
    "objects": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "both": b'[{"a":' * (DEPTH // 2) + b"1" + b"}]" * (DEPTH // 2),
    "arrays without end": b"[" * DEPTH,
    "objects without end": b'{"a":' * DEPTH,
    "arrays that begin": b"[1," * DEPTH,
    "objects under an empty name": b'{"":' * DEPTH + b"{}" + b"}" * DEPTH,
}


@pytest.mark.parametrize("path", PATHS)
def test_bodies_nested_a_hundred_thousand_deep_are_refused(shop: Shop, daemon: Daemon, path: str) -> None:
    start = b'{"key": "Page View", "anonymousId": "visitor", '
    bodies, packed = {}, {}
    for name, deep in DEEP.items():
        bodies[name] = deep
        bodies[f"{name} in data"] = start + b'"data": ' + deep + b"}"
        bodies[f"{name} in the context"] = start + b'"data": {}, "context": ' + deep + b"}"
        packed[name] = gzip.compress(bodies[f"{name} in data"])
    with counting(daemon, invalid=len(bodies) + len(packed)):
        replies = send_each(shop, daemon, path, bodies) | {
            f"{name}, compressed": reply
            for name, reply in send_each(shop, daemon, path, packed, Content_Encoding="gzip").items()
        }
        for name, reply in replies.items():
            assert reply.json()["code"] == "invalid_json", name
            assert_refused(reply, 400, "invalid_json", closes=False)
    assert len(replies) == 4 * len(DEEP)


def test_a_deep_body_with_a_wrong_signature_is_refused_for_its_signature(shop: Shop, daemon: Daemon) -> None:
    with counting(daemon, unauthorized=len(DEEP)):
        for deep in DEEP.values():
            reply = daemon.post("/customer-events", deep[:250_000], shop.server.id, x_signature="0" * 64)
            assert_refused(reply, 401, "invalid_signature", closes=False)


def test_two_hundred_levels_pass_and_one_more_does_not(shop: Shop, daemon: Daemon) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for levels, status in ((198, 200), (199, 400)):  # beside the levels of the body and of data
            value = opening * levels + "1" * (opening != "[") + closing * levels
            body = f'{{"key": "Page View", "anonymousId": "deep", "data": {{"value": {value}}}}}'
            assert daemon.post("/track", body.encode(), shop.public.id).status == status


def test_a_body_of_half_a_million_faults_takes_neither_memory_nor_time(shop: Shop, daemon: Daemon) -> None:
    before = memory(daemon.pid, "VmHWM")
    data = b'{"products": [' + b"1," * 500_000 + b"1]}"
    body = b'{"key": "Order Completed", "anonymousId": "visitor", "data": ' + data + b"}"
    with counting(daemon, invalid=3):
        for path in PATHS[:1] * 3:
            assert_refused(send(shop, daemon, path, body), 400, "invalid_data", closes=False)
    assert memory(daemon.pid, "VmHWM") < before + MOST_FOR_ONE_BODY


# Numbers and text, from the body to the exported record

NUMBERS = {
    "2^53 + 1": "9007199254740993",
    "2^63 - 1": "9223372036854775807",
    "2^64": "18446744073709551616",
    "-2^63 - 1": "-9223372036854775809",
    "40 digits": "1234567890123456789012345678901234567890",
    "4,000 digits": "7" * 4000,
    "a price": "19.99",
    "a tenth": "0.1",
    "17 digits": "0.30000000000000004",
    "the least": "5e-324",
    "the most": "1.7976931348623157e308",
    "a million": "1e6",
    "minus zero": "-0.0",
}
TEXTS = ["Pâtes", "\U0001f600", "\0\x7f\u2028\ufeff\uffff", '"\\/', "e\u0301", "\U0010ffff"]


def exported(shop: Shop, visitor: str) -> list[Any]:
    return [record["data"] for record in shop.stored() if record.get("anonymousId") == visitor]


def test_numbers_come_out_as_they_were_sent(shop: Shop, daemon: Daemon) -> None:
    members = ", ".join(f'"{name}": {number}' for name, number in NUMBERS.items())
    body = f'{{"key": "Page View", "anonymousId": "numbers", "data": {{{members}}}}}'
    assert daemon.post("/track", body.encode(), shop.public.id).status == 200
    assert daemon.post_signed(body.encode(), shop.server).status == 200
    found = exported(shop, "numbers")
    assert len(found) == 2
    for data in found:
        # As text: in Python 1 == 1.0 and 0.0 == -0.0.
        assert {name: repr(value) for name, value in data.items()} == {
            name: repr(json.loads(number)) for name, number in NUMBERS.items()
        }


def test_texts_come_out_as_they_were_sent(shop: Shop, daemon: Daemon) -> None:
    for escaped in (True, False):
        data = {text: text for text in TEXTS}
        body = json.dumps({"key": "Page View", "anonymousId": "texts", "data": data}, ensure_ascii=escaped)
        assert daemon.post("/track", body.encode(), shop.public.id).status == 200
    assert exported(shop, "texts") == [data, data]


def test_the_last_of_two_members_with_one_name_counts(shop: Shop, daemon: Daemon) -> None:
    body = b'{"key": "No", "anonymousId": 1, "data": {"a": 1, "a": 2}, "key": "Page View", "anonymousId": "twice"}'
    assert daemon.post("/track", body, shop.public.id).status == 200
    assert exported(shop, "twice") == [{"a": 2}]


def test_numbers_that_no_reader_could_hold_are_refused(shop: Shop, daemon: Daemon) -> None:
    numbers = ("1e400", "-1e400", "9" * 5000, "NaN", "Infinity", "-Infinity", "0x10", "1_000", "01", "+1", ".5")
    start = b'{"key": "Page View", "anonymousId": "visitor", "data": {"value": '
    for reply in send_each(shop, daemon, "/track", {each: start + each.encode() + b"}}" for each in numbers}).values():
        assert_refused(reply, 400, "invalid_json", closes=False)


def test_a_signature_is_not_valid_for_another_reading_of_the_body(shop: Shop, daemon: Daemon) -> None:
    key = Key(shop.server.id, shop.server.secret)
    for body in WRONGLY_ENCODED.values():
        reply = daemon.post("/customer-events", body, key.id, x_signature=sign(key.secret, TEXT.encode()))
        assert_refused(reply, 401, "invalid_signature", closes=False)
