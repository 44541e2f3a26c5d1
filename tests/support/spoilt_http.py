"""Random streams of valid, unusual and wrong HTTP requests. The same seed makes the same stream."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from .daemon import BASE

__all__ = ["pieces", "spoilt_stream"]

_BODY = json.dumps({"key": "Page View", "anonymousId": "visitor", "data": {"title": "x" * 40}}).encode()
_TARGET = f"{BASE}/track".encode()

_METHODS = [
    b"GET",
    b"HEAD",
    b"OPTIONS",
    b"PUT",
    b"post",
    b"CONNECT",
    b"PRI",
    b"P\xd6ST",
    b"PO ST",
    b"",
    b"M!#$%&'*+-.^_`|~",
]
_TARGETS = [
    b"/", b"*", b"/" + b"x" * 700, b"http://shop.example" + _TARGET, b"http://[", _TARGET + b"?a=b", _TARGET + b"#x",
    b"\xff",
    b"shop:443", b"/%00", b"/\0", b"/ /", b"", b"//", b"/\x7f", b"/" + _TARGET, b"//shop" + _TARGET, b"http:" + _TARGET,
    b"HTTPS://shop.example:443" + _TARGET, b"http://me@shop" + _TARGET, b"http://" + _TARGET, b"ftp://shop" + _TARGET,
    b"http://[::1]" + _TARGET, _TARGET + b"?caf\xe9", _TARGET + b"?\x9b", _TARGET + b"?a=b#c",
]  # fmt: skip
_VERSIONS = [
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"http/1.1",
    b"HTTP/1.10",
    b"HTTP/1",
    b"HTTPS/1.1",
    b"",
]
_HEADERS = [
    b"X-One: 1", b"X-One: ", b"X-One:", b"X-One:\t \t", b"X-\xe9: 1", b"X-One: caf\xe9", b"X One: 1", b"X-One : 1",
    b": 1", b"X-One",
    b"X: a\r\n b", b"X: a\r\n\tb", b" X: a", b"X: a\0b", b"X: a\x01b", b"X: a\x7fb", b"X: a\rb", b"X: a\r",
    b"X: a\nY: b",
    b"Connection: close", b"Connection: keep-alive", b"Connection: Close", b"Connection: close, x", b"Connection: x",
    b"connection: Keep-Alive, x", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
    b"Connection: keep-alive\r\nConnection: close",
    b"Expect: 100-continue", b"Expect: 100-Continue", b"Expect: 200-ok", b"Host: another", b"Host: a, b",
    b"Host: a/b", b"Host:",
    b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Encoding: identity", b"Trailer: X", b"TE: trailers",
    b"Authorization: Basic eA==", b"Origin: https://shop.example", b"X: " + b"x" * 900, b"Y: " + b"y" * 5000,
    b"\r\n".join(b"X-%d: x" % number for number in range(25)),
]  # fmt: skip
_LENGTHS = [
    b"0", b"1", b"+5", b"-5", b"0x5", b"5 5", b"5,5", b"5, 5", b"5,6", b"5,", b"", b"five", b"5.0", b"\xb2",
    b"9" * 12, b"9" * 30,
    b"9" * 5000, b"0" * 30 + b"5", b"5\r\nContent-Length: 5", b"5\r\nContent-Length: 6", b"3000", b"30000",
]  # fmt: skip
_CODINGS = [
    b"gzip", b"gzip, chunked", b"chunked, gzip", b"chunked, chunked", b"identity", b"", b"chunked;q=1", b"xchunked",
    b"Chunked",
    b"\tchunked ", b"chunked\r\nTransfer-Encoding: chunked", b"chunked\r\nContent-Length: 5",
    b"chunked\r\nTransfer-Encoding: gzip",
]  # fmt: skip
_SIZES = [
    b"%X", b"000%x", b"%x ", b" %x", b"%x;a", b"%x;a=b", b'%x ; a="b"', b"%x;\xff", b"%x;" + b"a" * 3000, b"%x\t",
    b"0x%x", b"-%x",
    b"+%x", b"%x_0", b"", b"g", b"f" * 20, b"0" * 70 + b"%x", b"%x\r", b"%x;a\rb", b"%x;a\nb", b"%x;\0",
]  # fmt: skip
_TRAILERS = [
    b"X: y\r\n",
    b"X: y\r\nZ: z\r\n",
    b"no trailer\r\n",
    b" X: y\r\n",
    b"X : y\r\n",
    b"X: y\n",
    b"X: " + b"y" * 5000 + b"\r\n",
    b"\n",
    b"\r",
]
_BYTES = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"\xff",
    b"\x7f",
    b"0",
    b"POST / HTTP/1.1\r\n",
]


def spoilt_stream(chance: random.Random) -> bytes:
    """Some requests, most of them valid. In one stream of five some bytes are changed."""
    stream = b"".join(_between(chance) + _request(chance) for _ in range(chance.choice([1, 1, 2, 3, 5])))
    if chance.random() < 0.2:
        for _ in range(chance.choice([1, 1, 2, 4])):
            stream = _changed(chance, stream)
    return stream[: chance.randrange(len(stream))] if chance.random() < 0.1 else stream


def pieces(chance: random.Random, stream: bytes) -> Iterator[bytes]:
    """The stream in at most a few hundred pieces of any size."""
    sizes = chance.choice([[1, 2, 3], [1, 10, 100], [50, 500], [1000, 20_000]])
    least = len(stream) // 300
    at = 0
    while at < len(stream):
        size = least + chance.choice(sizes)
        yield stream[at : at + size]
        at += size


def _between(chance: random.Random) -> bytes:
    return chance.choice([b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" "]) if chance.random() < 0.04 else b""


def _request(chance: random.Random) -> bytes:
    method = _seldom(chance, b"POST", _METHODS)
    target = _seldom(chance, _TARGET, _TARGETS)
    version = chance.choice(_VERSIONS) if chance.random() < 0.06 else b"HTTP/1.1"
    headers = [b"Host: shop"] if chance.random() < 0.98 else []
    headers += [chance.choice(_HEADERS) for _ in range(chance.choice([0, 0, 0, 1, 2]))]
    framing, body = _framed(chance)
    headers += framing
    chance.shuffle(headers)
    return b"\r\n".join([b" ".join([method, target, version]), *headers, b"", body])


def _framed(chance: random.Random) -> tuple[list[bytes], bytes]:
    """The headers with the length of the body, and the body."""
    kind = chance.choice(["length"] * 3 + ["chunks"] * 2 + ["odd length", "odd coding", "none", "large"])
    if kind == "none":
        return [], chance.choice([b"", b"", _BODY])
    if kind == "odd length":
        return [b"Content-Length: " + chance.choice(_LENGTHS)], chance.choice([b"", b"x" * 5, _BODY])
    if kind == "odd coding":
        return [b"Transfer-Encoding: " + chance.choice(_CODINGS)], _chunks(chance, _BODY)
    body = _BODY.ljust(chance.choice([2000, 2001, 20_000, 40_000])) if kind == "large" else _BODY
    if kind == "chunks" or (kind == "large" and chance.random() < 0.5):
        return [b"Transfer-Encoding: chunked"], _chunks(chance, body)
    return [b"Content-Length: %d" % len(body)], body


def _chunks(chance: random.Random, body: bytes) -> bytes:
    parts = []
    at = 0
    while at < len(body):
        part = body[at : at + chance.choice([1, 7, 50, 300, 3000]) + len(body) // 50]
        at += len(part)
        size = _seldom(chance, b"%x", _SIZES, 0.02).replace(b"%x", b"%x" % len(part)).replace(b"%X", b"%X" % len(part))
        parts.append(size + b"\r\n" + part + _seldom(chance, b"\r\n", [b"", b"\n", b"\r", b"x\r\n", b"\r\n\r\n"], 0.01))
    trailers = chance.choice(_TRAILERS) if chance.random() < 0.1 else b""
    return b"".join([*parts, _seldom(chance, b"0", [b"00", b"0;a", b"0 ", b"-0"], 0.05), b"\r\n", trailers, b"\r\n"])


def _seldom(chance: random.Random, usual: bytes, others: Sequence[bytes], share: float = 0.06) -> bytes:
    return chance.choice(others) if chance.random() < share else usual


def _changed(chance: random.Random, stream: bytes) -> bytes:
    at = chance.randrange(len(stream) + 1)
    size = chance.choice([0, 0, 1, 1, 2, 30])
    instead = chance.choice([b"", chance.choice(_BYTES), chance.choice(_BYTES), chance.randbytes(1)])
    return stream[:at] + instead + stream[at + size :]
