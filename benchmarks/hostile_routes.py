"""Hostile requests without a valid key to every route of the public listener, made from the daemon's table of routes.

Each is small: a head of 16 kB, and a body of at most 32 KiB, also when it is unpacked. It may take a millisecond of the
event loop.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ingestd.config import parse_config
from ingestd.hooks.loader import load_plugins
from ingestd.http.client_file import browser_client
from ingestd.http.routes import Operation, Routes

from .attacks import Keys
from .connection import Connection
from .hostile import loop_seconds
from .servers import Server

__all__ = ["MOST", "Row", "costs", "routes", "rows"]

MOST = 1.0
"""Milliseconds of the event loop that a request may take."""
_HEAD = 15_800
"""Bytes of a target or of a header, within `[http] max_header_size`."""
_BODY = 32 * 1024 - 100

_FEW, _MANY, _ATTEMPTS = 2, 20, 4
"""Requests at first, and in each further attempt. CPU time grows in steps of up to 4 ms."""
_SLOW = 3.0  # seconds for which a machine may be slow, with all requests of a route


@cache
def routes() -> Mapping[str, Operation]:
    """The table of routes of a daemon with the default configuration."""
    plugins = load_plugins(parse_config({}, source="defaults", base=Path.cwd()))
    return Routes(plugins.intakes, client=browser_client()).table


class Row(NamedTuple):
    """A request, and whether it may be answered 200."""

    name: str
    request: bytes
    is_answered: bool = False


def _up_to(size: int, text: str) -> str:
    return text * (size // len(text))


_TARGETS = {
    "fields without values": "?" + _up_to(_HEAD, "%=%&"),
    "fields": "?" + _up_to(_HEAD, "a=1&"),
    "escaped fields": "?" + _up_to(_HEAD, "a=%41&"),
    "a field of %": "?a=" + "%" * _HEAD,
    "99 fields of %": "?" + "&".join(["%" * 79 + "=" + "%" * 79] * 97),
    "write keys": "?" + _up_to(_HEAD, "writeKey=%41&"),
    "a long write key": "?writeKey=" + _up_to(_HEAD, "%41"),
    "versions": "?" + _up_to(_HEAD, "v=%30&"),
    "slashes": _up_to(_HEAD, "/"),
    "a longer path": "/" + _up_to(_HEAD, "a/"),
}
_HEADERS = {
    "Basic": "Authorization: Basic " + _up_to(_HEAD, "QUFB"),
    "Basic without an end": "Authorization: Basic " + _up_to(_HEAD, "Og==") + "%",
    "a long key": "Authorization: Bearer " + "k" * _HEAD,
    "a key behind blanks": "Authorization: Bearer" + " " * _HEAD + "k",
    "a wrong signature": "Authorization: Bearer {server}\r\nx-signature: " + "0" * 64,
    "a long signature": "Authorization: Bearer {server}\r\nx-signature: " + "0" * _HEAD,
    "tags": "If-None-Match: " + _up_to(_HEAD, 'W/"a",'),
    "quotation marks": "If-None-Match: " + '"' * _HEAD,
    "codings": "Accept-Encoding: " + _up_to(_HEAD, "gzip ;q=0."),
    "blanks in a coding": "Accept-Encoding: gzip" + " " * _HEAD + "x",
    "zeros in a coding": "Accept-Encoding: gzip;q=0." + "0" * _HEAD + "x",
    "an encoding": "Content-Encoding: " + _up_to(_HEAD, "gzip,"),
    "an origin": "Origin: " + "x" * _HEAD,
    "many origins": "\r\n".join(["Origin: https://shop.example"] * 90),
    "forwarded addresses": "X-Forwarded-For: " + _up_to(_HEAD, "10.0.0.1, "),
    "long addresses": "X-Forwarded-For: " + _up_to(_HEAD, "fe80:0000:0000:0000:0000:0000:0000:0001%eth0, "),
    "connection options": "Connection: " + _up_to(_HEAD, "a, ") + "keep-alive",
    "an agent": "User-Agent: " + _up_to(_HEAD, "Mozilla/5.0 (bot; "),
    "requested headers": "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
    + _up_to(_HEAD, "a, "),
    "95 headers": "\r\n".join(f"x-{number}: {'y' * 140}" for number in range(93)),
    "a header 95 times": "\r\n".join(["x-signature: " + "y" * 140] * 93),
}
_GUESS = b'"writeKey":"a-guess","batch":['
_BODIES = {
    "empty arrays": b'{"a":[' + b"[]," * ((_BODY - 10) // 3) + b"[]]}",
    "empty events": b"{" + _GUESS + b"{}," * ((_BODY - 40) // 3) + b"{}]}",
    "numbers": b"{" + _GUESS + b"0," * ((_BODY - 40) // 2) + b"0]}",
    "members": b"{" + _GUESS[:-9] + b"," + b",".join(b'"%05d":0' % number for number in range(3200)) + b"}",
    "write keys": b"{" + b'"writeKey":"a",' * ((_BODY - 40) // 15) + b'"a":0}',
    "a key in a message": b'{"batch":[{"a":[' + b"[]," * ((_BODY - 60) // 3) + b'[]],"writeKey":"a-guess"}]}',
    "a deep body": b'{"writeKey":"a","batch":' + b"[" * (_BODY // 2 - 30) + b"]" * (_BODY // 2 - 30) + b"}",
    "no end": b"{" + _GUESS + b"[0]," * ((_BODY - 40) // 4),
    "escapes": b'{"writeKey":"' + rb"\u0041" * 5000 + b'"}',
    "half of a surrogate pair": b'{"a":"' + rb"\u0041" * 5000 + rb'\ud800","writeKey":"a"}',
}  # fmt: skip


def rows(path: str, operation: Operation, keys: Keys) -> Iterator[Row]:
    """The hostile requests to a route."""
    usual = operation.methods[0]
    plain = path.replace("{", "").replace("}", "")
    alone = operation.answers_alone
    for method in dict.fromkeys(["GET", "HEAD", "OPTIONS", "POST", "PUT", "X" * 200, usual]):
        yield Row(f"{method[:7]}", _request(method, plain), alone)
    if plain != path:
        before, _, rest = path.partition("{")
        for text in ("%" * _HEAD, _up_to(_HEAD, "%41"), "a" * _HEAD, "%" * 500, _up_to(500, "%41")):
            yield Row(
                f"a part of {len(text)} {text[:3]}", _request(usual, before + text + rest.partition("}")[2]), alone
            )
    for name, end in _TARGETS.items():
        for method in (usual, "OPTIONS"):
            yield Row(f"{method} with {name}", _request(method, plain + end), alone)
        yield Row(f"{name} behind a host", _request(usual, f"http://{'h' * 200}:1{plain}{end[:-300]}"), alone)
    for name, line in _HEADERS.items():
        lines = line.replace("{server}", keys.server)
        yield Row(name, _request(usual, plain, lines), alone)
        yield Row(f"OPTIONS with {name}", _request("OPTIONS", plain, lines), alone)
    yield Row("a long host", _request(usual, plain, host="h" * _HEAD), alone)
    yield Row("an escaped host", _request(usual, plain, host=_up_to(_HEAD, "%41")), alone)
    yield Row(
        "lengths", _request(usual, plain, "Content-Length: " + _up_to(_HEAD, "2, ") + "2", framed=False) + b"{}", alone
    )
    for name, body in _BODIES.items():
        yield Row(f"a body of {name}", _request(usual, plain, body=body), alone)
        packed = gzip.compress(body)
        yield Row(f"a packed body of {name}", _request(usual, plain, "Content-Encoding: gzip", body=packed), alone)
    members = gzip.compress(b"") * 1500
    yield Row("1,500 gzip members", _request(usual, plain, "Content-Encoding: gzip", body=members), alone)
    chunks = b"1\r\n[\r\n" * 500 + b"0\r\n\r\n"
    yield Row("500 chunks", _request(usual, plain, "Transfer-Encoding: chunked", framed=False) + chunks, alone)
    signed = f"Authorization: Bearer {keys.server}\r\nx-signature: {'0' * 64}"
    yield Row("a wrongly signed body", _request(usual, plain, signed, body=_BODIES["numbers"][:8000] + b"]}"), alone)


def _request(
    method: str, target: str, *lines: str, body: bytes = b"{}", host: str = "shop", framed: bool = True
) -> bytes:
    length = [f"Content-Length: {len(body)}"] if framed else []
    head = "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, *length, "", ""])
    return head.encode() + (body if framed else b"")


def cost(server: Server, row: Row, idle: float, most: float = MOST) -> float:
    """Milliseconds of the event loop for a request, without the work of an idle daemon.

    `idle` is the part of the time in which an idle daemon works. A request that takes more than `most` is sent
    again and again, because another program may have emptied the caches of the processor.
    """
    connection = Connection(server.port)
    least = float("inf")
    for requests in (_FEW, *[_MANY] * _ATTEMPTS):
        begun, before = time.perf_counter(), loop_seconds(server.pid)
        for _ in range(requests):
            status = connection.ask(row.request)
            if status >= 500 or (status == 200 and not row.is_answered):
                raise AssertionError(f"{row.name}: answered {status}")
        worked, passed = loop_seconds(server.pid) - before, time.perf_counter() - begun
        least = min(least, max(0.0, worked - idle * passed) / requests * 1000)
        if least <= most:
            break
    connection.close()
    return least


def costs(
    server: Server, keys: Sequence[Keys], idle: float, *, most: float = MOST, only: str = "", share: int = 1
) -> Iterator[tuple[str, Sequence[tuple[float, str]]]]:
    """Each route whose path contains `only`, and its requests with their costs, the most expensive first.

    Each route has one of the `keys`, because a server key has a budget for wrong signatures. It gets one of `share`
    requests, and the next routes the others.
    """
    chosen = [(path, operation) for path, operation in routes().items() if only in path]
    for number, (path, operation) in enumerate(chosen):
        sent = [*rows(path, operation, keys[number % len(keys)])][number % share :: share]
        found = {row: cost(server, row, idle, most) for row in sent}
        too_costly = [row for row, taken in found.items() if taken > most]
        if too_costly:
            time.sleep(_SLOW)
            found |= {row: min(found[row], cost(server, row, idle, most)) for row in too_costly}
        yield path, sorted(((taken, row.name) for row, taken in found.items()), reverse=True)
