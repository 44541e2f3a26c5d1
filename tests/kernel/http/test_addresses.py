"""No address can take all connections: each has a bound, and beyond it a connection of that address is closed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from ingestd.api.options import Network
from ingestd.config import HttpOptions
from ingestd.http.client_address import Peers
from ingestd.http.client_connection import Client, Phase
from ingestd.http.connection_limits import Admitted, Connections, Evictable
from ingestd.observability.metrics import Metrics
from tests.kernel.http.test_limits import HEAD, WHOLE, assert_refused, refusals, until
from tests.kernel.http.test_limits import Client as Caller
from tests.support.door import Door, MakeDoor

BOUND = 3
OPTIONS = HttpOptions(max_connections=8, max_connections_per_address=BOUND)


@asynccontextmanager
async def caller(public: Door, address: str = "127.0.0.1") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", public.port, local_addr=(address, 0))
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


async def callers(stack: AsyncExitStack, public: Door, count: int, address: str, start: bytes = b"") -> list[Caller]:
    """Open `count` connections one after the other. With `HEAD` as `start`, each has sent half a request."""
    made = []
    for _ in range(count):
        made.append(await stack.enter_async_context(caller(public, address)))
        await made[-1].send(start)
        if start == HEAD:
            port = made[-1].writer.get_extra_info("sockname")[1]
            await until(partial(has_half_sent, public, port))
    return made


def has_half_sent(public: Door, port: int) -> bool:
    """Whether half a request has arrived from this port."""
    for client in public.connections._open:
        if client.phase in {"headers", "body"} and client.descriptor() >= 0:
            with socket.socket(fileno=os.dup(client.descriptor())) as sock, suppress(OSError):
                if sock.getpeername()[1] == port:
                    return True
    return False


async def test_an_address_at_its_bound_loses_one_of_its_own_connections(tmp_path: Path, door: MakeDoor) -> None:
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(door(tmp_path, options=OPTIONS))
        public.at(0)
        [bystander] = await callers(stack, public, 1, "127.0.0.2")
        await bystander.send(WHOLE)
        assert (await bystander.answer()).status == 200
        public.at(1)
        own = await callers(stack, public, BOUND, "127.0.0.3", HEAD)
        new = (await callers(stack, public, 1, "127.0.0.3"))[0]
        assert_refused(await new.answer(), 503, "unavailable")  # no request has been incomplete for long
        assert await new.is_closed()
        public.at(2)
        for each in own[:2]:
            new = (await callers(stack, public, 1, "127.0.0.3"))[0]
            assert_refused(await each.answer(), 503, "unavailable")
            await new.send(WHOLE)
            assert (await new.answer()).status == 200
        assert refusals(public) == {"too_many_of_address": 3}
        for each in (bystander, own[2]):
            await each.send(WHOLE if each is bystander else WHOLE.removeprefix(HEAD))
            assert (await each.answer()).status == 200


async def test_idle_connections_are_closed_before_connections_with_incomplete_requests(
    tmp_path: Path, door: MakeDoor
) -> None:
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(door(tmp_path, options=OPTIONS))
        public.at(0)
        first = await callers(stack, public, 1, "127.0.0.3", HEAD)
        idle = []
        for seconds in (1, 2):
            public.at(seconds)
            idle += await callers(stack, public, 1, "127.0.0.3", WHOLE)
            assert (await idle[-1].answer()).status == 200
        public.at(3)
        for each in idle:
            [new] = await callers(stack, public, 1, "127.0.0.3", HEAD)
            assert await each.is_closed()
        assert refusals(public) == {}
        for each in (*first, new):
            await each.send(WHOLE.removeprefix(HEAD))
            assert (await each.answer()).status == 200


async def test_without_a_free_connection_the_address_with_most_loses_one(tmp_path: Path, door: MakeDoor) -> None:
    async with AsyncExitStack() as stack:
        options = HttpOptions(max_connections=6, max_connections_per_address=100)
        public = await stack.enter_async_context(door(tmp_path, options=options))
        public.at(0)
        bystanders = [(await callers(stack, public, 1, f"127.0.0.{number}", HEAD))[0] for number in (2, 3)]
        public.at(1)
        many = await callers(stack, public, 4, "127.0.0.4", HEAD)
        public.at(2)
        for number, gone in enumerate(many[:3]):
            [new] = await callers(stack, public, 1, f"127.0.0.{10 + number}")
            assert_refused(await gone.answer(), 503, "unavailable")
            await new.send(WHOLE)
            assert (await new.answer()).status == 200
        assert refusals(public) == {"too_many_connections": 3}
        for each in (*bystanders, many[3]):
            await each.send(WHOLE.removeprefix(HEAD))
            assert (await each.answer()).status == 200


async def test_trusted_proxies_are_not_bounded(tmp_path: Path, door: MakeDoor) -> None:
    options = HttpOptions(max_connections_per_address=1, trusted_proxies=(Network("127.0.0.5/32"),))
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(door(tmp_path, options=options))
        public.at(0)
        for each in await callers(stack, public, 5, "127.0.0.5", HEAD):
            await each.send(WHOLE.removeprefix(HEAD))
            assert (await each.answer()).status == 200
        await callers(stack, public, 1, "127.0.0.6", HEAD)
        [second] = await callers(stack, public, 1, "127.0.0.6")
        assert_refused(await second.answer(), 503, "unavailable")


async def test_a_reload_changes_the_bound_and_open_connections_count(tmp_path: Path, door: MakeDoor) -> None:
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(door(tmp_path, options=OPTIONS))
        public.at(0)
        await callers(stack, public, BOUND, "127.0.0.3", HEAD)
        public.connections.apply_options(HttpOptions(max_connections=8, max_connections_per_address=BOUND + 1))
        [new] = await callers(stack, public, 1, "127.0.0.3", HEAD)
        await new.send(WHOLE.removeprefix(HEAD))
        assert (await new.answer()).status == 200
        new.writer.close()
        await until(lambda: public.metrics.registry.get_sample_value("ingestd_http_connections") == BOUND)
        [another] = await callers(stack, public, 1, "127.0.0.3", HEAD)
        await another.send(WHOLE.removeprefix(HEAD))
        assert (await another.answer()).status == 200


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::1%eth1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ],
)
def test_connections_of_one_ipv6_network_are_counted_together(one: str, other: str, same: bool) -> None:
    peers = Peers([])
    assert (peers.origin(one) == peers.origin(other)) is same


def test_trusted_proxies_and_unix_sockets_have_no_bound() -> None:
    peers = Peers(["10.0.0.0/8", "2001:db8::/32"])
    assert peers.origin("0.0.0.0") is peers.origin("10.1.2.3") is peers.origin("2001:db8::1") is None


class Silent(Client):
    """A connection without input and output."""

    def __init__(self, connections: Connections, origin: str | None, phase: Phase, since: float) -> None:
        super().__init__(connections, Admitted("", origin))
        self.phase, self.since = phase, since

    def descriptor(self) -> int:
        return -1

    def respond(self, status: int, headers: HTTPHeaders, body: bytes) -> None: ...

    def answer(self, data: bytes) -> None: ...

    def send_raw(self, answer: bytes) -> None: ...

    def drop_rest(self) -> None: ...

    def close_after_flush(self) -> None:
        self.close()

    def close(self) -> None:
        self.connections.move(self, "closed")

    def stop_reading(self) -> None:
        raise AssertionError


CROWD = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.sampled_from(["request", "headers", "body", "answer", "end"]),
        st.integers(0, 10),
    ),
    max_size=40,
)


@given(crowd=CROWD)
def test_the_next_connection_to_close_is_of_the_address_with_most_and_idle_if_possible(
    crowd: list[tuple[str | None, Phase, int]],
) -> None:
    asyncio.run(close_one_after_the_other(crowd))


async def close_one_after_the_other(crowd: list[tuple[str | None, Phase, int]]) -> None:
    connections = Connections(HttpOptions(), Metrics(), lambda refused: b"")
    clients = [Silent(connections, *each) for each in crowd]
    evictable = Evictable(clients, 5)
    while (next_one := evictable.next()) is not None:
        assert isinstance(next_one, Silent)
        waiting = [each for each in clients if each.phase not in {"answer", "closed"} and each.since <= 5]

        def rank(client: Client) -> tuple[int, bool, float]:
            count = sum(each.phase != "closed" and each.origin == client.origin for each in clients)
            return -(count if client.origin is not None else 1), client.phase in {"headers", "body"}, client.since

        assert rank(next_one) == min(map(rank, waiting))
        next_one.close()
    assert not [each for each in clients if each.phase not in {"answer", "closed"} and each.since <= 5]
