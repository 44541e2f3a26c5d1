"""Requests of strangers, each made to cost the daemon as much as one of its kind can, at the default limits."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["ATTACKS", "Attack", "Keys"]

BASE_PATH = "/api/v1/analytics"
_MAX_BODY = 2**20
_MAX_BATCH = 4 * 2**20
_MAX_REWRITTEN = 64 * 1024


@dataclass(frozen=True)
class Keys:
    """What a stranger may know."""

    public: str
    server: str
    """The id of a server key, without its secret."""


@dataclass(frozen=True)
class Attack:
    """`make` returns a whole request; the lines are headers that it must have: whose it says it is, and its address."""

    name: str
    make: Callable[[Keys, str], bytes]


def post(path: str, body: bytes, *lines: str, framed: bool = True) -> bytes:
    length = [f"Content-Length: {len(body)}"] if framed else ["Transfer-Encoding: chunked"]
    head = [f"POST {BASE_PATH}{path} HTTP/1.1", "Host: shop", *lines, *length, "", ""]
    return "\r\n".join(head).encode() + body


def wrongly_signed(name: str, body: bytes, *lines: str, path: str = "/customer-events") -> Attack:
    """With the id of a server key, and a signature that is none of its."""

    def make(keys: Keys, client: str) -> bytes:
        return post(path, body, f"Authorization: Bearer {keys.server}", f"x-signature: {'0' * 64}", client, *lines)

    return Attack(name, make)


def unknown(name: str, body: bytes, *lines: str, path: str = "/track", framed: bool = True) -> Attack:
    """With a key that is none."""

    def make(keys: Keys, client: str) -> bytes:
        return post(path, body, "Authorization: Bearer a-guess-at-a-key", client, *lines, framed=framed)

    return Attack(name, make)


def filled(unit: bytes, size: int, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """As many of these, each ending with a comma, as the size has room for."""
    count = (size - len(before) - len(after)) // len(unit)
    return before + (unit * count)[:-1] + after


def _random(size: int) -> bytes:
    """What compresses to three quarters: that takes the longest to decompress."""
    return bytes(random.Random(1).choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=size))


_INDICES = b"{" + b",".join(b'"%d":0' % number for number in range(7000, 0, -1)) + b"}"
_ONE_BYTE_CHUNKS = b"1\r\n[\r\n" * (_MAX_BODY - 1) + b"0\r\n\r\n"
_MEMBERS = gzip.compress(b"") * (_MAX_BODY // len(gzip.compress(b"")))
_FORWARDED = "X-Forwarded-For: " + ", ".join(["10.0.0.1"] * 1500)
_GZIP = "Content-Encoding: gzip"

ATTACKS: Sequence[Attack] = (
    wrongly_signed("64 KiB of numbers", filled(b"0,", _MAX_REWRITTEN)),
    wrongly_signed("64 KiB of objects", filled(b'{"":0},', _MAX_REWRITTEN)),
    wrongly_signed("64 KiB of array indices", _INDICES),
    wrongly_signed("240 kB of numbers, compressed", gzip.compress(filled(b"0,", 240_000)), _GZIP),
    wrongly_signed("1 MiB", filled(b"0,", _MAX_BODY)),
    wrongly_signed("1 MiB of zeros, compressed", gzip.compress(bytes(_MAX_BODY)), _GZIP),
    wrongly_signed("1 MiB of text, compressed", gzip.compress(_random(_MAX_BODY)), _GZIP),
    wrongly_signed("1 MiB of empty gzip members", _MEMBERS, _GZIP),
    wrongly_signed("a batch of 4 MiB", filled(b"0,", _MAX_BATCH), path="/customer-events/batch"),
    wrongly_signed(
        "a batch of 4 MiB of zeros, compressed", gzip.compress(bytes(_MAX_BATCH)), _GZIP, path="/customer-events/batch"
    ),
    unknown("1 MiB and no such key", filled(b"0,", _MAX_BODY)),
    unknown("a batch of 4 MiB and no such key", filled(b"0,", _MAX_BATCH), path="/batch"),
    unknown("1 MiB in chunks of a byte", _ONE_BYTE_CHUNKS, framed=False),
    unknown("98 headers", b"{}", *[f"x-{number}: {'y' * 140}" for number in range(94)]),
    unknown("1,500 forwarded addresses", b"{}", _FORWARDED),
    unknown("x-signature 90 times", b"{}", *["x-signature: 0"] * 90, path="/customer-events"),
    unknown("no such path", filled(b"0,", _MAX_BODY), path="/elsewhere"),
)
