"""The daemon's memory under hostile requests: its peak during each attack, and the rest after it.

One `ingestd serve` with default limits gets all attacks in turn, for each pair of HTTP server and store. An attacker
has the public key, because a shop's pages contain it. `--only` selects attacks, `--scale` makes all of them smaller.
Exits 1 if the daemon ever took more memory than the bound. Redis' memory does not count.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .servers import CONFIG, Server, create_key, ingestd, pairs, parser_of_pairs, store_url
from .soak import MIB

__all__ = ["ATTACKS", "BOUND", "Attack", "Row", "Target", "attack"]

BOUND = 300 * 10**6
"""Bytes that the daemon may take under any requests."""

_LARGEST = MIB - 1024  # bytes of the largest accepted body
_REST = 3.0  # seconds after an attack, until its connections are closed
_LONG_REST = 35.0  # seconds after all attacks, until free memory is returned to the system
_BESIDE = 64  # connections that send large bodies at the same time
_SILENCE = 2.0  # seconds for which an attacker's idle connection stays open


_addresses = itertools.cycle(f"127.0.1.{number}" for number in range(1, 100))


def config(server: str, store: str) -> str:
    return CONFIG.replace("[http]\n", f'[http]\nserver = "{server}"\n').replace("sqlite:ingestd.db", store)


class Target(NamedTuple):
    port: int
    key: str

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from one address after the other, so that the bound for one address does not stop the attack."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(next(_addresses), 0))

    def head(self, path: str, length: int, *lines: str) -> bytes:
        own = [f"POST /api/v1/analytics{path} HTTP/1.1", "Host: shop", f"Authorization: Bearer {self.key}"]
        return "\r\n".join([*own, *lines, f"Content-Length: {length}", "", ""]).encode()

    def post(self, path: str, body: bytes, *lines: str) -> bytes:
        return self.head(path, len(body), *lines) + body

    def packed(self, path: str, body: bytes) -> bytes:
        return self.post(path, gzip.compress(body, 9), "Content-Encoding: gzip")


async def _answered(target: Target, requests: Sequence[bytes]) -> None:
    """Send requests on one connection, each after the answer to the one before."""
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await target.connect()
        try:
            for request in requests:
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        finally:
            writer.close()


async def _unread(target: Target, data: bytes) -> None:
    """Send data as far as the daemon takes it, and read no answer."""
    with suppress(OSError, TimeoutError):
        _, writer = await target.connect()
        try:
            async with asyncio.timeout(_SILENCE):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(_SILENCE)
        finally:
            writer.transport.abort()


def _event(data: str, **fields: str) -> bytes:
    members = "".join(f', "{name}": {json.dumps(value)}' for name, value in fields.items())
    visitor = "" if "anonymousId" in fields else ', "anonymousId": "a stranger"'
    return f'{{"key": "Page View"{visitor}{members}, "data": {data}}}'.encode()


def _wide(number: int = 0, size: int = _LARGEST) -> str:
    """An object of very many members, with different names for each number."""
    members = ",".join(f'"m{number}-{each}":1' for each in range(size // 16))
    return f"{{{members}}}"


def _empty_lists(size: int = _LARGEST) -> str:
    """A list of empty lists, which takes twenty times as much in Python as in the text."""
    lists = ",".join(["[]"] * (size // 3 - 10))
    return f'{{"a":[{lists}]}}'


def _nested_lists(size: int = _LARGEST) -> str:
    nested = ",".join(["[" * 150 + "]" * 150] * (size // 301 - 1))
    return f'{{"a":[{nested}]}}'


async def wide_objects(target: Target, scale: float) -> None:
    requests = [target.post("/track", _event(_wide(number))) for number in range(4)]
    await asyncio.gather(*(_answered(target, requests) for _ in range(max(1, int(_BESIDE * scale)))))


async def empty_lists(target: Target, scale: float) -> None:
    requests = [target.post("/track", _event(value())) for value in (_empty_lists, _nested_lists)]
    await asyncio.gather(*(_answered(target, requests) for _ in range(max(1, int(_BESIDE * scale)))))


async def packed_lists(target: Target, scale: float) -> None:
    """A thousand connections send 2 kB each that unpack to a megabyte, of new visitors every time."""
    packed = [target.packed("/track", _event(_nested_lists(), anonymousId=f"packed {number}")) for number in range(64)]
    count = max(1, int(400 * scale))
    await asyncio.gather(*(_answered(target, [packed[number % 64]]) for number in range(count)))


async def packed_batches(target: Target, scale: float) -> None:
    """Compressed batches of four events of nearly a megabyte each."""
    events = [
        _event(_nested_lists(), anonymousId=f"packed {number}", messageId=f"packed {number}").decode()
        for number in range(4)
    ]
    packed = target.packed("/batch", f'{{"events": [{",".join(events)}]}}'.encode())
    await asyncio.gather(*(_answered(target, [packed]) for _ in range(max(1, int(100 * scale)))))


async def wide_traits(target: Target, scale: float) -> None:
    """720,000 traits of one user, and large profiles of many visitors."""
    one, many = [], []
    for number in range(max(1, int(24 * scale))):
        traits = ",".join(f'"t{number}-{each}": "v"' for each in range(30_000))
        body = f'{{"anonymousId": "wide", "userId": "u", "traits": {{{traits}}}}}'.encode()
        one.append(target.post("/identify/public", body))
    for number in range(max(1, int(200 * scale))):
        body = f'{{"anonymousId": "wide {number}", "traits": {_wide(number)}}}'.encode()
        many.append(target.post("/identify/public", body))
    await asyncio.gather(_answered(target, one), *(_answered(target, many[start::8]) for start in range(8)))


async def long_ids(target: Target, scale: float) -> None:
    """Compressed requests, each with another id of nearly a megabyte, which takes four times as much in Python."""
    filling = "x" * (_LARGEST - 500) + "\N{GRINNING FACE}"

    def requests(start: int) -> Iterator[bytes]:
        for number in range(start, max(8, int(600 * scale)), 8):
            user = f"{number}-{filling}"
            body = json.dumps({"anonymousId": f"long {number}", "userId": user, "traits": {}}).encode()
            yield target.packed("/identify/public", body)
            yield target.packed("/track", _event('{"a": 1}', anonymousId=f"long {number}", dispatchId=user))
            yield target.packed("/track", _event('{"a": 1}', anonymousId=f"long {number}", userId=user))
            order = json.dumps({"order_id": user, "total": 1})
            yield target.packed(
                "/track", _event(order, anonymousId=f"long {number}").replace(b"Page View", b"Order Completed")
            )

    await asyncio.gather(*(_answered(target, [*requests(start)]) for start in range(8)))


async def many_visitors(target: Target, scale: float) -> None:
    """Compressed batches of events of a thousand new visitors each."""

    def requests(start: int) -> Iterator[bytes]:
        for number in range(start, max(4, int(250 * scale)), 4):
            events = [_event("{}", anonymousId=f"many {number} {each}").decode() for each in range(1000)]
            yield target.packed("/batch", f'{{"events": [{",".join(events)}]}}'.encode())

    await asyncio.gather(*(_answered(target, [*requests(start)]) for start in range(4)))


async def long_journeys(target: Target, scale: float) -> None:
    """Orders of a user with many visitors. Each visitor has as many campaigns as are kept, with the longest names."""
    visitors = [f"travelling {number}" for number in range(max(4, int(100 * scale)))]
    text = "x" * 245 + "\N{GRINNING FACE}"

    def requests(visitor: str) -> Iterator[bytes]:
        yield target.packed("/identify/public", json.dumps({"anonymousId": visitor, "userId": "traveller"}).encode())
        events = []
        for number in range(200):
            names = ("source", "medium", "name", "term", "content")
            campaign = dict.fromkeys(names, f"{number} {visitor[-2:]} {text}")
            events.append({"key": "Page View", "anonymousId": visitor, "data": {}, "context": {"campaign": campaign}})
        yield target.packed("/batch", json.dumps({"events": events}).encode())

    await asyncio.gather(
        *(_answered(target, [*itertools.chain(*map(requests, visitors[start::4]))]) for start in range(4))
    )
    orders = [
        {"key": "Order Completed", "anonymousId": visitor, "data": {"order_id": f"{visitor} {number}", "total": 1}}
        for visitor in visitors
        for number in range(5)
    ]
    await _answered(target, [target.packed("/batch", json.dumps({"events": orders}).encode())])


async def swelling_numbers(target: Target, scale: float) -> None:
    """Numbers that are four times as long without an exponent."""
    numbers = ",".join(["1e15"] * (_LARGEST // 5 - 20))
    requests = [target.packed("/track", _event(f'{{"a":[{numbers}]}}'))] * 4
    await asyncio.gather(*(_answered(target, requests) for _ in range(max(1, int(_BESIDE * scale)))))


async def small_pieces(target: Target, scale: float) -> None:
    """Bodies in pieces of two bytes."""

    async def send() -> None:
        with suppress(OSError):
            _, writer = await target.connect()
            writer.write(target.head("/track", _LARGEST))
            for _ in range(3000):
                writer.write(b"  ")
                await writer.drain()
                await asyncio.sleep(0)
            writer.transport.abort()

    await asyncio.gather(*(send() for _ in range(max(1, int(100 * scale)))))


async def many_headers(target: Target, scale: float) -> None:
    """Heads of many small headers with different names, and no body after them."""
    heads = (
        target.head("/track", 10, *(f"{number}-{each}:" for each in range(90)))
        for number in range(max(1, int(4000 * scale)))
    )
    await asyncio.gather(*(_unread(target, head) for head in heads))


async def long_names(target: Target, scale: float) -> None:
    """Headers with the longest names, different in each request."""
    requests = [
        target.post("/track", _event("{}"), *(f"{number}-{each}-{'x' * 240}: 1" for each in range(55)))
        for number in range(max(1, int(100 * scale)))
    ]
    await _answered(target, requests)


async def unread_answers(target: Target, scale: float) -> None:
    """Thousands of connections that send requests without reading an answer."""
    data = target.post("/track", _event("[1]")) * 2000
    await asyncio.gather(*(_unread(target, data) for _ in range(max(1, int(3000 * scale)))))


async def unfinished_bodies(target: Target, scale: float) -> None:
    data = target.head("/track", _LARGEST) + b" " * (_LARGEST - 1)
    await asyncio.gather(*(_unread(target, data) for _ in range(max(1, int(3000 * scale)))))


async def unfinished_heads(target: Target, scale: float) -> None:
    data = target.head("/track", 1, *(f"X-{number}: {'x' * 150}" for number in range(90)))[:-2]
    await asyncio.gather(*(_unread(target, data) for _ in range(max(1, int(4000 * scale)))))


async def held_behind(target: Target, scale: float) -> None:
    """More data behind a request in progress, as much as the daemon reads."""
    data = target.post("/track", _event(_empty_lists())) + b"x" * MIB
    await asyncio.gather(*(_unread(target, data) for _ in range(max(1, int(1000 * scale)))))


Attack = Callable[[Target, float], Coroutine[Any, Any, None]]
ATTACKS: Mapping[str, Attack] = {
    each.__name__.replace("_", " "): each
    for each in (
        wide_objects,
        empty_lists,
        packed_lists,
        packed_batches,
        wide_traits,
        long_ids,
        many_visitors,
        long_journeys,
        swelling_numbers,
        small_pieces,
        many_headers,
        long_names,
        unread_answers,
        unfinished_bodies,
        unfinished_heads,
        held_behind,
    )
}


class Row(NamedTuple):
    name: str
    peak: int
    """The highest memory so far, in bytes."""
    after: int
    seconds: float


def attack(server: Server, key: str, name: str, *, scale: float = 1.0, rest: float = _REST) -> Row:
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # start a new measurement of the peak
    begun = time.monotonic()
    asyncio.run(ATTACKS[name](Target(server.port, key), scale))
    seconds = time.monotonic() - begun
    time.sleep(rest)
    return _row(name, server, seconds)


def _row(name: str, server: Server, seconds: float) -> Row:
    return Row(name, server.memory("VmHWM"), server.memory(), seconds)


def _session(config_text: str, names: Sequence[str], scale: float) -> Iterator[Row]:
    """All attacks on one daemon. The first row is its memory before the attacks, the last row its memory after."""
    with tempfile.TemporaryDirectory(prefix="ingestd-hostile-") as name:
        folder = Path(name)
        (folder / "ingestd.toml").write_text(config_text)
        key = create_key(folder)
        with ingestd(folder, config_text) as server:
            yield _row("at the start", server, 0.0)
            for each in names:
                yield attack(server, key, each, scale=scale)
            time.sleep(_LONG_REST)
            yield _row("at the end", server, _LONG_REST)


def main() -> int:
    parser = parser_of_pairs(__doc__)
    parser.add_argument("--only", action="append", choices=[*ATTACKS], help="repeatable (default: all)")
    parser.add_argument("--scale", type=float, default=0.25, help="default 0.25; 1 takes some ten minutes for a pair")
    parser.add_argument("--bound", type=float, default=BOUND / 10**6, metavar="MB", help=f"default {BOUND // 10**6}")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    most = 0
    for server, store in pairs(arguments):
        print(f"{server} server, {store}\n  {'MB':<20} {'peak':>8} {'after':>8} {'seconds':>8}")
        with store_url(store) as url:
            for row in _session(config(server, url), arguments.only or [*ATTACKS], arguments.scale):
                most = max(most, row.peak)
                print(f"  {row.name:<20} {row.peak / 1e6:8.0f} {row.after / 1e6:8.0f} {row.seconds:8.1f}", flush=True)
    return 0 if most <= arguments.bound * 10**6 else 1


if __name__ == "__main__":
    sys.exit(main())
