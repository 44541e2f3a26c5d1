"""Hostile requests, one of each kind, each as expensive for the daemon as the default limits allow."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from .servers import BASE_PATH

__all__ = ["ATTACKED_ORDER", "ATTACKS", "Attack", "Keys", "post"]

_MAX_BODY = 2**20
_MAX_BATCH = 4 * 2**20
_MAX_REWRITTEN = 64 * 1024

ATTACKED_ORDER = "an-order-of-the-shop"
"""Attackers send and refund an order of this id. It costs more if the shop has signed the order."""


@dataclass(frozen=True)
class Keys:
    """The keys that an attacker may know."""

    public: str
    server: str
    """The id of a server key. Its secret stays unknown."""


@dataclass(frozen=True)
class Attack:
    """A kind of request. `make` returns a whole request. Its second argument is a header with the client's address."""

    name: str
    make: Callable[[Keys, str], bytes]
    statuses: frozenset[int] = frozenset({401})
    """The expected answers. With another answer the request is not the intended attack."""
    public: bool = False
    """Whether the request has a public key."""


def post(target: str, body: bytes, *lines: str, framed: bool = True) -> bytes:
    """A whole request. `lines` are headers."""
    length = [f"Content-Length: {len(body)}"] if framed else ["Transfer-Encoding: chunked"]
    head = [f"POST {target} HTTP/1.1", "Host: shop", *lines, *length, "", ""]
    return "\r\n".join(head).encode() + body


def wrongly_signed(
    name: str,
    body: bytes,
    *lines: str,
    path: str = "/customer-events",
    statuses: frozenset[int] = frozenset({401, 429}),
) -> Attack:
    """An attack with the id of a server key and a wrong signature."""

    def make(keys: Keys, client: str) -> bytes:
        signed = f"Authorization: Bearer {keys.server}", f"x-signature: {'0' * 64}"
        return post(BASE_PATH + path, body, *signed, client, *lines)

    return Attack(name, make, statuses)


def unknown(
    name: str, body: bytes, *lines: str, path: str = "/track", framed: bool = True, status: int = 401
) -> Attack:
    """An attack with an unknown key."""

    def make(keys: Keys, client: str) -> bytes:
        return post(BASE_PATH + path, body, "Authorization: Bearer a-guess-at-a-key", client, *lines, framed=framed)

    return Attack(name, make, frozenset({status}))


def in_body(name: str, path: str, body: bytes) -> Attack:
    """An attack with an unknown key in the body, where SDKs of browsers have it."""

    def make(keys: Keys, client: str) -> bytes:
        return post(path, body, client)

    return Attack(name, make)


def public(name: str, path: str, body: Callable[[str], bytes], *lines: str, status: int = 200) -> Attack:
    """An attack with the public key. `body` gets a text that differs in each request."""
    numbers = itertools.count()

    def make(keys: Keys, client: str) -> bytes:
        unique = f"{os.getpid()}-{next(numbers)}"
        return post(BASE_PATH + path, body(unique), f"Authorization: Bearer {keys.public}", client, *lines)

    return Attack(name, make, frozenset({status}), public=True)


def filled(unit: bytes, size: int, before: bytes = b"[", after: bytes = b"]") -> bytes:
    """Repetitions of `unit`, which ends with a comma, up to the size."""
    count = (size - len(before) - len(after)) // len(unit)
    return before + (unit * count)[:-1] + after


def _random(size: int) -> bytes:
    """Text that compresses to three quarters. It takes the longest to decompress."""
    return base64.b64encode(random.Random(1).randbytes(size))[:size]


@cache
def _members(size: int) -> bytes:
    """Different members of an object, as many as fit into the size."""
    names = itertools.product(string.ascii_letters + string.digits, repeat=3)
    return b",".join(b'"%b":0' % "".join(name).encode() for name in itertools.islice(names, size // 8))


def _wide(unique: str, key: str = "Page View") -> bytes:
    start = f'{{"key": "{key}", "anonymousId": "stranger-{unique}", "data": {{'.encode()
    return start + _members(_MAX_BODY - 150) + b"}}"


def _traits(unique: str) -> bytes:
    start = f'{{"type": "identify", "anonymousId": "stranger-{unique}", "traits": {{'.encode()
    return start + _members(_MAX_BODY - 150) + b"}}"


def _identify(visitor: str, user: str) -> bytes:
    return json.dumps({"anonymousId": visitor, "userId": user, "traits": {"plan": "gold"}}).encode()


def _order(key: str, unique: str) -> bytes:
    data = {"order_id": ATTACKED_ORDER, "revenue": 9000, "refund_id": unique}
    return json.dumps({"key": key, "anonymousId": f"stranger-{unique}", "data": data}).encode()


def _faults(unique: str) -> bytes:
    start = f'{{"key": "Order Completed", "anonymousId": "stranger-{unique}", "data": {{"products": '.encode()
    return start + filled(b"1,", _MAX_BODY - 150) + b"}}"


def _batch(*bodies: bytes) -> bytes:
    return b'{"events":[' + b",".join(bodies) + b"]}"


@cache
def _full_batch(unit: bytes) -> bytes:
    return filled(unit, _MAX_BATCH, b'{"events":[', b"]}")


@cache
def _pages() -> bytes:
    """Many events in few bytes. A flood of these waits for its turn."""
    event = {"key": "Page View", "anonymousId": "stranger", "data": {}}
    return gzip.compress(json.dumps({"events": [event] * 1000}).encode())


def _sdk_pages(keys: Keys, client: str) -> bytes:
    messages = [{"type": "page", "anonymousId": "stranger"}] * 2500
    body = gzip.compress(json.dumps({"writeKey": keys.public, "batch": messages}).encode())
    return post("/v1/batch", body, client, _GZIP)


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(16 * _MAX_BODY))


_INDICES = b"{" + b",".join(b'"%d":0' % number for number in range(7000, 0, -1)) + b"}"
_ONE_BYTE_CHUNKS = b"1\r\n[\r\n" * (_MAX_BODY - 1) + b"0\r\n\r\n"
_MOST_CHUNKS = b"1000\r\n%b\r\n" % (b"0," * 2048) * 1024 + b"0\r\n\r\n"
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
    wrongly_signed("1 MiB of empty gzip members", _MEMBERS, _GZIP, statuses=frozenset({400, 429})),
    wrongly_signed("a batch of 4 MiB", filled(b"0,", _MAX_BATCH), path="/customer-events/batch"),
    wrongly_signed(
        "a batch of 4 MiB of zeros, compressed", gzip.compress(bytes(_MAX_BATCH)), _GZIP, path="/customer-events/batch"
    ),
    unknown("1 MiB and no such key", filled(b"0,", _MAX_BODY)),
    unknown("a batch of 4 MiB and no such key", filled(b"0,", _MAX_BATCH), path="/batch"),
    in_body("a message of an SDK of 1 MiB", "/v1/track", b'{"writeKey":"a-guess",' + _members(_MAX_BODY - 30) + b"}"),
    in_body("a message of an SDK of 32 KiB", "/v1/track", b'{"writeKey":"a-guess",' + _members(32_000) + b"}"),
    in_body(
        "a batch of an SDK of 512 KiB", "/v1/batch", filled(b"{},", 524_000, b'{"writeKey":"a-guess","batch":[', b"]}")
    ),
    in_body(
        "a batch of an SDK that is not JSON", "/v1/batch", filled(b"[0],", 524_000, b'{"writeKey":"a-guess","batch":[')
    ),
    unknown("1 MiB in chunks of a byte", _ONE_BYTE_CHUNKS, framed=False, status=400),
    unknown("a batch of 4 MiB in 1,024 chunks", _MOST_CHUNKS, path="/batch", framed=False),
    unknown("a body of 16 MiB", bytes(16 * _MAX_BODY), status=413),
    unknown("a batch of 64 MiB", bytes(16 * _MAX_BATCH), path="/batch", status=413),
    unknown("a batch that is 1 MiB too large", bytes(_MAX_BATCH + _MAX_BODY), path="/batch", status=413),
    unknown("98 headers", b"{}", *[f"x-{number}: {'y' * 140}" for number in range(94)]),
    unknown("1,500 forwarded addresses", b"{}", _FORWARDED),
    unknown("x-signature 90 times", b"{}", *["x-signature: 0"] * 90, path="/customer-events"),
    unknown("no such path", filled(b"0,", _MAX_BODY), path="/elsewhere", status=404),
    public("a bomb", "/track", lambda _: _bomb(), _GZIP, status=413),
    public("an object of 130,000 members", "/track", _wide),
    public("130,000 traits", "/identify/public", _traits, status=400),
    public("half a million traits in a batch", "/batch", lambda unique: _batch(*[_traits(unique)] * 4)),
    public("half a million faults", "/track", _faults, status=400),
    public("a visitor linked again and again", "/identify/public", lambda unique: _identify("relinked", unique)),
    public("visitors linked to one user", "/identify/public", lambda unique: _identify(unique, "victim")),
    public("an order of the shop", "/track", lambda unique: _order("Order Completed", unique)),
    public("a refund of the shop's order", "/track", lambda unique: _order("Order Refunded", unique)),
    public("1 MiB and no such event", "/track", lambda unique: _wide(unique, "No such key"), status=404),
    public("a batch of 1,000 page views", "/batch", lambda _: _pages(), _GZIP),
    Attack("a batch of an SDK of 2,500 pages", _sdk_pages, frozenset({200}), public=True),
    public("a batch of 1,000 that are no events", "/batch", lambda _: _batch(*[b"{}"] * 1000)),
    public("a batch of a million that are no events", "/batch", lambda _: _full_batch(b"{},"), status=400),
    public("a batch without an end", "/batch", lambda _: _full_batch(b"[0],")[:-2], status=400),
    public("a batch of deep lists", "/batch", lambda _: _full_batch(b"[" * 100 + b"]" * 100 + b","), status=400),
)
