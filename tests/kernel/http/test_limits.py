"""Limits on connections, with a clock that tests set: slow or too many callers are refused and harm nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ingestd.api.options import Duration, Size
from ingestd.config import HttpOptions
from ingestd.http.app import BASE_PATH
from ingestd.http.server.connection import FastConnection
from tests.support.door import PAGE_VIEW, Door, MakeDoor, Slow, open_door

BODY = json.dumps(PAGE_VIEW).encode()
HEAD = b"POST %b/track HTTP/1.1\r\nHost: shop\r\n" % BASE_PATH.encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)

OPTIONS = HttpOptions(
    body_timeout=Duration(30),
    idle_timeout=Duration(75),
    max_connections=3,
    max_buffered=Size(100_000),
    max_body=Size(60_000),
)


@pytest.fixture
def door(each_http_server: str) -> MakeDoor:
    return partial(open_door, server=each_http_server)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Client:
    """A client that sends bytes when a test tells it to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(lines[0].split()[1]), headers, json.loads(body))

    async def is_closed(self) -> bool:
        """Whether the server closes the connection within ten seconds without sending more."""
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


@asynccontextmanager
async def client(public: Door) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", public.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


async def buffered(public: Door, least: int) -> None:
    """Wait until the server has read at least this number of bytes."""
    await until(lambda: public.connections.buffered >= least)


def assert_refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.body["status"], answer.body["code"]) == (status, status, code)
    assert answer.body["success"] is False
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"]


def refusals(public: Door) -> dict[str, float]:
    """The counts of refusals that are not 0, by reason."""
    return {
        sample.labels["reason"]: sample.value
        for metric in public.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "ingestd_http_refused_total" and sample.value
    }


async def test_late_headers_are_a_408(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as slow:
        public.at(0)
        await slow.send(HEAD)
        await buffered(public, len(HEAD))
        public.at(9)
        await slow.send(b"X: ")  # a byte now and then does not extend the time
        await buffered(public, len(HEAD) + 3)
        public.at(11)
        assert_refused(await slow.answer(), 408, "timeout")
        assert await slow.is_closed()
        assert refusals(public) == {"timeout": 1}
        assert public.connections.buffered == 0


async def test_a_late_body_is_a_408_and_an_invalid_event(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as slow:
        public.at(0)
        start = HEAD + b"Content-Length: 100\r\n\r\n{"
        await slow.send(start)
        await buffered(public, len(start))
        public.at(29)
        await slow.send(b" ")
        await buffered(public, len(start) + 1)
        public.at(31)
        assert_refused(await slow.answer(), 408, "timeout")
        assert await slow.is_closed()
        assert public.counted("invalid", key="") == 1
        assert await public.records() == []


async def test_each_request_of_a_connection_has_its_own_time_limit(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as steady:
        for now in range(0, 200, 9):
            public.at(now)
            await steady.send(WHOLE)
            assert (await steady.answer()).status == 200


async def test_an_idle_connection_is_closed_without_an_answer(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as fresh, client(public) as kept:
        public.at(0)
        await kept.send(WHOLE)
        await kept.answer()
        public.at(74)
        await kept.send(WHOLE)
        assert (await kept.answer()).status == 200
        public.at(76)
        assert await fresh.is_closed()
        await kept.send(WHOLE)
        assert (await kept.answer()).status == 200
        public.at(152)
        assert await kept.is_closed()
        assert refusals(public) == {}


async def test_the_server_s_own_work_has_no_time_limit(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow, options=OPTIONS) as public, client(public) as waiting:
        public.at(0)
        await waiting.send(WHOLE)
        await slow.arrived.wait()
        public.at(9000)
        slow.go.set()
        assert (await waiting.answer()).status == 200


async def test_the_connection_that_is_idle_longest_is_closed_for_a_new_one(tmp_path: Path, door: MakeDoor) -> None:
    async with (
        door(tmp_path, options=OPTIONS) as public,
        client(public) as first,
        client(public) as second,
        client(public) as third,
    ):
        for now, each in enumerate((second, third, first)):
            public.at(now)
            await each.send(WHOLE)
            await each.answer()
        public.at(10)
        async with client(public) as new:
            await new.send(WHOLE)
            assert (await new.answer()).status == 200
            assert await second.is_closed()
            for each in (first, third):
                await each.send(WHOLE)
                assert (await each.answer()).status == 200
        assert refusals(public) == {}


async def test_without_idle_connections_the_oldest_incomplete_request_is_refused_for_a_new_connection(
    tmp_path: Path, door: MakeDoor
) -> None:
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(door(tmp_path, options=OPTIONS))
        clients = []
        for second, start in enumerate([HEAD, HEAD + b"Content-Length: 9\r\n\r\n", HEAD]):
            public.at(second)
            clients.append(await stack.enter_async_context(client(public)))
            await clients[-1].send(start)
            await buffered(public, (second + 1) * len(HEAD))
        public.at(3)
        for number, expected in ((0, 200), (1, 200)):
            new = await stack.enter_async_context(client(public))
            await new.send(WHOLE)
            answer = await clients[number].answer()
            assert_refused(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "1"
            assert await clients[number].is_closed()
            assert (await new.answer()).status == expected
            await new.send(HEAD)  # the new connection has an incomplete request too, but not the oldest
            await buffered(public, 2 * len(HEAD))
        assert refusals(public) == {"too_many_connections": 2}
        await clients[2].send(WHOLE.removeprefix(HEAD))
        assert (await clients[2].answer()).status == 200


async def test_if_all_requests_are_complete_a_new_connection_gets_503(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(door(tmp_path, slow, options=OPTIONS))
        public.at(0)
        clients = [await stack.enter_async_context(client(public)) for _ in range(3)]
        for each in clients:
            await each.send(WHOLE)
        await until(lambda: len(public.ingest.active) == 3)
        public.at(10)
        new = await stack.enter_async_context(client(public))
        answer = await new.answer()
        assert_refused(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert await new.is_closed()
        assert refusals(public) == {"too_many_connections": 1}
        slow.go.set()
        for each in clients:
            assert (await each.answer()).status == 200


async def test_beyond_max_buffered_the_oldest_incomplete_request_gets_503(tmp_path: Path, door: MakeDoor) -> None:
    start = HEAD + b"Content-Length: 55000\r\n\r\n"
    async with door(tmp_path, options=OPTIONS) as public, client(public) as old, client(public) as new:
        public.at(0)
        await old.send(start + b" " * 50_000)
        await buffered(public, len(start) + 50_000)
        public.at(1)
        await new.send(start + b" " * (55_000 - len(BODY)))
        answer = await old.answer()
        assert_refused(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert refusals(public) == {"too_much_buffered": 1}
        assert public.counted("unavailable", key="") == 1
        await new.send(BODY)
        assert (await new.answer()).status == 200
        assert public.connections.buffered == 0


async def test_beside_single_events_that_503_comes_later_and_nothing_more_is_read(
    tmp_path: Path, door: MakeDoor
) -> None:
    """Its sender would send the same bytes again at once."""
    start = HEAD + b"Content-Length: 55000\r\n\r\n"
    async with door(tmp_path, options=OPTIONS) as public, AsyncExitStack() as stack:
        single, old, new = [await stack.enter_async_context(client(public)) for _ in range(3)]
        public.at(0)
        await old.send(start + b" " * 50_000)
        await buffered(public, len(start) + 50_000)
        public.at(1)
        await single.send(WHOLE)
        assert (await single.answer()).status == 200
        began = asyncio.get_running_loop().time()
        await new.send(start + b" " * (55_000 - len(BODY)))
        await buffered(public, 52_000)  # more than one connection has alone, and less than both have
        await until(lambda: sum(each.received > 1000 for each in public.connections._open) == 1)
        await old.send(b" " * (5_000 - len(BODY)) + BODY)
        await new.send(BODY)
        assert (await new.answer()).status == 200
        assert public.connections.buffered == 0
        assert_refused(await old.answer(), 503, "unavailable")
        assert asyncio.get_running_loop().time() - began > 0.9
        assert refusals(public) == {"too_much_buffered": 1}
        assert await old.is_closed()


async def test_a_body_beyond_its_limit_is_not_buffered(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as large:
        await large.send(HEAD + b"Content-Length: 800000\r\n\r\n" + b" " * 799_999)
        await asyncio.sleep(0)
        assert public.connections.buffered <= OPTIONS.max_body + 65_536
        await large.send(b" ")
        assert (await large.answer()).status == 413
        assert refusals(public) == {}
        await large.send(WHOLE)
        assert (await large.answer()).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(100)),
        b"X: 1\r\n" * 100,
        b"X: " + b"x" * 20_000,
        b"X" * 257 + b": 1\r\n",
    ],
)
async def test_headers_too_many_or_too_large_are_a_431(tmp_path: Path, door: MakeDoor, headers: bytes) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as wordy:
        await wordy.send(HEAD + headers + b"\r\n" + BODY)
        assert_refused(await wordy.answer(), 431, "headers_too_large")
        assert await wordy.is_closed()
        assert refusals(public) == {"headers_too_large": 1}


@pytest.mark.parametrize("start", [b"nonsense\r\n\r\n", HEAD + b"no colon\r\n\r\n", b"\x16\x03\x01\x00\r\n\r\n"])
async def test_bytes_that_are_not_http_are_a_400(tmp_path: Path, door: MakeDoor, start: bytes) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as strange:
        await strange.send(start)
        assert_refused(await strange.answer(), 400, "invalid_http")
        assert await strange.is_closed()
        assert refusals(public) == {"malformed": 1}


@pytest.mark.parametrize("chunk", [b"x\r\n", b"5\r\n12345678", b"1" * 100])
async def test_an_invalid_chunk_is_a_400_and_an_invalid_event(tmp_path: Path, door: MakeDoor, chunk: bytes) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as strange:
        await strange.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
        assert_refused(await strange.answer(), 400, "invalid_http")
        assert await strange.is_closed()
        assert refusals(public) == {"malformed": 1}
        assert public.counted("invalid", key="") == 1
        assert public.connections.buffered == 0


async def test_a_half_closed_connection_gets_all_its_answers(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow, options=OPTIONS) as public, client(public) as half_closed:
        await half_closed.send(WHOLE + WHOLE)
        half_closed.writer.write_eof()
        await slow.arrived.wait()
        slow.go.set()
        assert [(await half_closed.answer()).status for _ in range(2)] == [200, 200]
        assert await half_closed.is_closed()
        assert len(await public.records()) == 2


@pytest.mark.parametrize(
    "last", [WHOLE.replace(b"Host", b"Connection: close\r\nHost"), HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n"]
)
async def test_bytes_after_the_last_request_do_not_delay_the_end_of_the_connection(
    tmp_path: Path, door: MakeDoor, last: bytes
) -> None:
    async with asyncio.timeout(20) as patience:
        async with door(tmp_path, options=OPTIONS) as public, client(public) as endless:
            await endless.send(last + b"x" * 60_000)
            answer = await endless.answer()
            assert answer.headers["connection"] == "close"
            assert await endless.is_closed()
    assert not patience.expired()


async def test_the_server_library_has_no_lower_limit_for_bodies(tmp_path: Path, door: MakeDoor) -> None:
    options = HttpOptions(max_body=Size(150_000_000))
    async with door(tmp_path, options=options) as public, client(public) as large:
        await large.send(HEAD + b"Content-Length: 150000000\r\nExpect: 100-continue\r\n\r\n")
        assert (await large.reader.readline()).startswith(b"HTTP/1.1 100 ")


async def test_pipelined_requests_are_counted_and_bounded(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow, options=OPTIONS) as public, client(public) as eager:
        eager.writer.write(WHOLE * 20_000)
        await slow.arrived.wait()
        await asyncio.sleep(0.05)
        assert public.connections.buffered < 400_000
        slow.go.set()
        for _ in range(100):
            assert (await eager.answer()).status == 200


async def test_bytes_that_come_between_two_requests_are_bounded(tmp_path: Path) -> None:
    """All connections are answered in one turn of the loop, and all get more bytes before the next turn."""
    number, slow = 20, Slow()
    options = HttpOptions(max_connections=number, max_buffered=Size(100_000))
    async with open_door(tmp_path, slow, server="fast", options=options) as public, AsyncExitStack() as stack:
        for _ in range(number):
            await (await stack.enter_async_context(client(public))).send(WHOLE + b"P")
        await until(lambda: len(public.ingest.active) == number)

        def between() -> list[FastConnection]:
            found = [each for each in public.connections._open if each.phase == "answered"]
            return [each for each in found if isinstance(each, FastConnection)]

        slow.go.set()
        while len(between()) < number:  # noqa: ASYNC110 - it lasts one turn of the loop
            await asyncio.sleep(0)
        for connection in between():
            connection.buffer_updated(65_536)  # as asyncio does when bytes have arrived
        assert public.connections.buffered < 100_000 * 5 // 4 + 300_000 + 65_536
        await until(lambda: public.connections.buffered <= 100_000 + 300_000)
        assert refusals(public)["too_much_buffered"] >= number - 7


async def test_a_connection_that_has_gone_is_not_closed_for_a_new_one(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow, options=OPTIONS) as public:
        async with client(public) as gone:
            public.at(0)
            await gone.send(WHOLE)
            await slow.arrived.wait()
            gone.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            gone.writer.transport.abort()
        await until(lambda: public.metrics.registry.get_sample_value("ingestd_http_connections") == 0)
        slow.go.set()
        await until(lambda: not public.ingest.active)
        public.at(10)
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await (await stack.enter_async_context(client(public))).send(HEAD)
            await buffered(public, 3 * len(HEAD))
            async with client(public) as new:  # none has been half sent for long
                await new.send(WHOLE)
                assert_refused(await new.answer(), 503, "unavailable")


async def test_the_answer_has_the_id_of_the_record(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, options=OPTIONS) as public, client(public) as caller:
        await caller.send(WHOLE)
        answer = await caller.answer()
        assert [record["id"] for record in await public.records()] == [answer.headers["x-request-id"]]
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"].split(", ")
