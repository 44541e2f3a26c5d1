"""The objects of a request are freed as soon as possible, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.events import Event
from ingestd.plugins.stores.sqlite.pending import Pending
from tests.support.door import PAGE_VIEW, MakeDoor
from tests.support.journals import until
from tests.support.sqlite_lock import locked


@contextmanager
def collected() -> Iterator[list[str]]:
    """The types of ingestd's new objects that only the garbage collector could free.

    Objects of an earlier test do not count: a thread that ends late may keep them until now.
    """
    found: list[str] = []
    gc.collect()
    others = [*filter(_is_ours, gc.get_objects())]  # the list keeps them alive
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(each).__name__ for each in filter(_is_ours, gc.garbage)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        del others


def _is_ours(each: object) -> bool:
    return str(type(each).__module__).startswith("ingestd")


def count_of(kind: type) -> Callable[[], int]:
    """A function that returns the number of new objects of this type."""
    others = [each for each in gc.get_objects() if isinstance(each, kind)]  # the list keeps them alive
    return lambda: sum(isinstance(each, kind) for each in gc.get_objects()) - len(others)


BATCH = {"events": [{**PAGE_VIEW, "anonymousId": f"visitor-{number % 3}"} for number in range(9)]}
IDENTIFY = {"anonymousId": "visitor", "userId": "user", "traits": {"name": "Ada"}}
BAD = {**PAGE_VIEW, "anonymousId": 1}
MESSAGE = {**PAGE_VIEW, "messageId": "m-1"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/track", PAGE_VIEW, 200),
        ("/track", MESSAGE, 200),
        ("/track", BAD, 400),
        ("/track", {**PAGE_VIEW, "key": "No Such Key"}, 404),
        ("/identify/public", IDENTIFY, 200),
        ("/batch", BATCH, 200),
        ("/batch", {"events": [MESSAGE, BAD, MESSAGE, {**IDENTIFY, "type": "identify"}, PAGE_VIEW]}, 200),
        ("/batch", {"events": []}, 400),
        ("/nowhere", {}, 404),
    ],
)
async def test_a_request_is_freed_with_its_answer(
    tmp_path: Path, door: MakeDoor, path: str, body: dict[str, Any], status: int
) -> None:
    async with door(tmp_path) as public:
        await public.post(body, path)
        with collected() as found:
            for _ in range(3):
                assert (await public.post(body, path)).code == status
            await asyncio.sleep(0.05)  # until the connections have ended too
        assert found == []


@pytest.mark.parametrize("unfinished", [False, True])
async def test_a_reset_connection_is_freed_with_its_requests(
    tmp_path: Path, door: MakeDoor, *, unfinished: bool
) -> None:
    request = b"POST /api/v1/analytics/track HTTP/1.1\r\nHost: shop\r\nContent-Length: 2\r\n\r\n[]"
    async with door(tmp_path) as public:
        with collected() as found:
            reader, writer = await asyncio.open_connection("127.0.0.1", public.port, limit=1024)
            writer.write(request[:-1] if unfinished else 10_000 * request)
            await asyncio.sleep(0.2)  # the answers fill all buffers
            del reader
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: not public.ingest.active)
            await asyncio.sleep(0.05)
        assert found == []


STARTED = b"POST /api/v1/analytics/track HTTP/1.1\r\nHost: shop\r\n"
SENT = {
    "nothing": b"",
    "a part of the head": STARTED,
    "a part of the body": STARTED + b"Content-Length: 2\r\n\r\n[",
    "a part of a chunk": STARTED + b"Transfer-Encoding: chunked\r\n\r\n5\r\n[",
    "a request and a part of a head": STARTED + b"Content-Length: 2\r\n\r\n[]" + STARTED,
    "a malformed head": b"nonsense\r\n\r\n",
    "a malformed chunk": STARTED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[",
    "too large a head": STARTED + b"X: " + b"x" * 60_000,
}


@pytest.mark.parametrize("end", ["the client resets", "the client closes", "the client finishes", "time is over"])
async def test_a_connection_that_ends_during_a_request_is_freed(tmp_path: Path, door: MakeDoor, end: str) -> None:
    async with door(tmp_path) as public:
        public.at(0)
        with collected() as found:
            for each in SENT.values():
                sock = socket.create_connection(("127.0.0.1", public.port))
                sock.sendall(each)
                await asyncio.sleep(0.02)
                if end == "time is over":
                    public.at(1000)
                elif end == "the client resets":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif end == "the client finishes":
                    with suppress(OSError):  # the daemon may have closed the connection
                        sock.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.02)
                sock.close()
            await asyncio.sleep(0.1)
        assert found == []


async def test_an_event_is_freed_before_its_record_is_durable(tmp_path: Path, door: MakeDoor) -> None:
    events = count_of(Event)
    async with door(tmp_path) as public:
        await public.post()  # so that the state of the visitor is in memory
        with locked(tmp_path / "ingestd.db"):
            posts = [asyncio.ensure_future(public.post()) for _ in range(8)]
            waiting = partial(public.metrics.registry.get_sample_value, "ingestd_waiting_events")
            await until(lambda: waiting() == len(posts))
            assert events() == 0
        assert [answer.code for answer in await asyncio.gather(*posts)] == [200] * len(posts)


@pytest.mark.parametrize(("path", "body"), [("/track", PAGE_VIEW), ("/batch", BATCH)])
async def test_a_committed_transaction_is_freed_before_the_next_commit(
    tmp_path: Path, door: MakeDoor, path: str, body: dict[str, Any]
) -> None:
    pending = count_of(Pending)
    async with door(tmp_path) as public:
        assert (await public.post(body, path)).code == 200
        assert pending() == 0
