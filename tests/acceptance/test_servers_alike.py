"""Both HTTP servers before the same daemon: every request has the same answer, and every header the same value."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import UUID

import pytest

from benchmarks import hostile_routes
from benchmarks.attacks import Keys
from tests.acceptance import test_errors as errors
from tests.acceptance.hostile import test_bodies as bodies
from tests.acceptance.hostile import test_malformed as malformed
from tests.support.daemon import BASE, PATIENCE, Shop, sign
from tests.support.rawhttp import chunked, event, head, post

AT_ONCE = 100  # a refusal may be held back for a second
VARIES = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|date: [^\r]*")
"""Ids of records and sessions, and the time."""

Answers = list[tuple[bytes, ...]]
"""Of a connection: status, sorted headers and body of each."""


class Site:
    """Two daemons whose keys are the same."""

    def __init__(self, folder: Path, stack: ExitStack, options: str) -> None:
        shops = []
        for server in ("fast", "tornado"):
            (folder / server).mkdir()
            shops.append(Shop(folder / server, {"http": f'server = "{server}"\n{options}'}))
        self.shop = shops[0]
        self.keys = errors.keys_of(self.shop)
        shutil.copy(self.shop.database, shops[1].database)
        self.daemons = [stack.enter_context(shop.serve()) for shop in shops]
        for daemon in self.daemons:  # simultaneous first events of a visitor have different answers
            assert daemon.post("/track", event(), self.shop.public.id).status == 200

    def compare(self, streams: Iterable[bytes], *, half_close: bool = True) -> list[Answers]:
        """Sends each of the streams to both daemons on a connection of its own, and returns the answers."""
        sent = list(streams)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            found = [
                list(threads.map(lambda stream, port=daemon.port: answers(port, stream, half_close), sent))
                for daemon in self.daemons
            ]
        for stream, fast, tornado in zip(sent, *found, strict=True):
            assert fast == tornado, stream[:2000]
        return found[0]


def answers(port: int, stream: bytes, half_close: bool) -> Answers:
    """All answers until the daemon closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        with suppress(ConnectionError):  # the daemon may have closed the connection; its answer can be read
            sock.sendall(stream)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while part := sock.recv(1 << 16):
                received += part
    found = []
    for answer in re.split(rb"(?<![^\n}])(?=HTTP/1\.1 \d)", received)[1:]:
        start, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = start.split(b"\r\n")
        named = (line.partition(b": ") for line in lines)
        headers = sorted(name.lower() + b": " + value for name, _, value in named)
        if not status.startswith(b"HTTP/1.1 100 "):  # not needed if the body came with the head (RFC 9110, 10.1.1)
            found.append(tuple(VARIES.sub(b"", part) for part in (status, *headers, body)))
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path_factory.mktemp("alike"), stack, f'max_body = "{errors.MAX_BODY}B"')


def test_wrong_requests(site: Site) -> None:
    shop = errors.Site(site.shop, site.daemons[0], site.keys)
    streams = []
    for case in errors.CASES:
        path, body, headers = shop.request(case)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        streams.append(request("POST", path, *lines, body=body))
    found = site.compare(streams)
    assert all(len(each) == 1 for each in found)


def test_other_methods_and_paths(site: Site) -> None:
    key = f"Authorization: Bearer {site.shop.public.id}"
    for methods, paths in (
        (["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"], [BASE + path for path in errors.PATHS.values()]),
        (["GET", "POST", "OPTIONS", "PUT", "HEAD"], errors.UNKNOWN_PATHS),
        (["GET", "HEAD", "POST", "OPTIONS"], [f"{BASE}/client.js", f"{BASE}/client.mjs", f"{BASE}/client.js?v=1"]),
    ):
        site.compare(request(method, path, key, body=event()) for method in methods for path in paths)


def test_hostile_requests_to_every_route(site: Site) -> None:
    ids = (str(UUID(int=number, version=4)) for number in range(1, 10_000))  # wrong signatures have a budget for a key
    site.compare(
        row.request
        for path, operation in hostile_routes.routes().items()
        for row in hostile_routes.rows(path, operation, Keys("", next(ids)))
    )


def test_bodies(site: Site) -> None:
    key, server = site.shop.public.id, site.shop.server
    texts = [*bodies.WRONGLY_ENCODED.values(), *(deep[:19_000] for deep in bodies.DEEP.values()), event()]
    packed = [*bodies.NOT_GZIP.values(), bodies.PACKED, bodies.PACKED + bodies.PACKED, bodies.bomb(1 << 24)]
    plain = [(body, ()) for body in texts] + [(body, ("Content-Encoding: gzip",)) for body in packed]
    plain += [
        (bodies.PACKED, (f"Content-Encoding: {name}",))
        for name in ("br", "deflate", "gzip, gzip", "x-gzip", "GZIP", "*")
    ]
    streams = []
    for body, lines in plain:
        streams += [post(key, body, *lines, path=path) for path in ("/track", "/identify/public")]
        streams.append(
            post(server.id, body, f"x-signature: {sign(server.secret, body)}", *lines, path="/customer-events")
        )
        streams.append(
            head(key, "Transfer-Encoding: chunked", *lines) + chunked(*(body[:9000], body[9000:]) if body else ())
        )
    batch = json.dumps({"events": [json.loads(event()), {}, json.loads(event(key="No"))]}).encode()
    streams += [
        post(key, batch, path="/batch"),
        post(key, gzip.compress(batch), "Content-Encoding: gzip", path="/batch"),
    ]
    site.compare(streams)


def test_malformed_requests(site: Site) -> None:
    whole = post(site.shop.public.id, event())
    tables: dict[Callable[[bytes], bytes], Iterable[bytes]] = {
        lambda line: line + b"\r\nHost: shop\r\n\r\n" + whole: malformed.REQUEST_LINES.values(),
        lambda line: (
            whole.replace(b"Host: shop\r\n", b"Host: shop\r\n" + line + b"\r\n") + whole
        ): malformed.HEADERS.values(),
        lambda lines: whole.replace(b"Host: shop\r\n", lines) + whole: malformed.HOSTS.values(),
        lambda target: whole.replace(malformed.TARGET, target, 1) + whole: malformed.TARGETS.values(),
    }
    streams = [make(each) for make, table in tables.items() for each in table]
    key = site.shop.public.id
    streams += [head(key, lines) + b"0\r\n\r\n" + whole for lines in malformed.LENGTHS.values()]
    streams += [head(key, "Transfer-Encoding: chunked") + body + whole for body in malformed.CHUNKS.values()]
    streams += [
        post(key, event(), *(f"X-{number}: x" for number in range(101))) + whole,
        post(key, event(), "X: " + "x" * 20_000) + whole,
        head(key, "Content-Length: " + "9" * 10_000),
    ]
    found = site.compare(streams, half_close=False)
    assert {len(each) for each in found} == {1}


def test_unusual_requests(site: Site) -> None:
    key = site.shop.public.id
    whole = post(key, event())
    streams = malformed.unusual(key)
    streams += [whole.replace(b"Host: shop", line + b"\r\nHost: shop") for line in (
        b"Connection: close", b"Connection: keep-alive", b"Connection: Keep-Alive", b"Connection: upgrade",
        b"Authorization: Bearer another", b"Content-Encoding: gzip\r\nContent-Encoding: gzip",
    )]  # fmt: skip
    streams += [
        stream.replace(b"HTTP/1.1", b"HTTP/1.0")
        for stream in (
            whole,
            whole.replace(b"Host", b"Connection: keep-alive\r\nHost"),
            whole.replace(b"Host", b"Connection: close\r\nHost"),
        )
    ]
    streams += [stream + whole for stream in streams]
    streams += [whole * 30, whole[:-5], whole + whole[:100], whole + b"\0\r\n\r\n" + whole]
    site.compare(streams)


@pytest.mark.parametrize(
    "options",
    ["", f'allowed_origins = {json.dumps(errors.ALLOWED)}\nallowed_headers = ["X-Shop-Version"]'],
    ids=["any", "certain"],
)
def test_pages_of_other_origins(tmp_path: Path, options: str) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, options)
        streams = []
        for origin in [*errors.ALLOWED, "https://evil.example", "http://shop.example", "null", ""]:
            for method, path in (
                ("POST", "/track"),
                ("GET", "/track"),
                ("OPTIONS", "/track"),
                ("OPTIONS", "/nothing"),
                ("GET", "/client.js"),
            ):
                for key in (site.shop.public.id, "wrong"):
                    lines = [
                        f"Origin: {origin}",
                        "Access-Control-Request-Method: POST",
                        "Access-Control-Request-Headers: a,content-type",
                    ]
                    streams.append(request(method, BASE + path, f"Authorization: Bearer {key}", *lines, body=event()))
        site.compare(streams)


def request(method: str, path: str, *lines: str, body: bytes = b"") -> bytes:
    start = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: shop", *lines, f"Content-Length: {len(body)}", "", ""])
    return start.encode("latin-1") + body
