"""Slow clients are cut off at the timeouts, and do not slow other clients until then."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.hostile import loop_seconds
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.forked import short_times
from tests.support.rawhttp import Client, assert_refused, counting, event, head, outcomes, post, quiet

HEADER_TIMEOUT, BODY_TIMEOUT, IDLE_TIMEOUT = 1.0, 1.2, 3.0
# The daemon checks its timeouts at intervals, and a busy machine is late.
PATIENCE = 30.0

SLOW_CLIENTS = 300
PACE = 0.2  # seconds between two bytes of a client

REQUESTS = 300  # of another client, in one measurement

# The work of the daemon's loop beside slow clients, in requests without them. In practice half of it.
MOST_FOR_REQUEST, MOST_FOR_CONNECTION, MOST_FOR_BYTE = 2.0, 1.5, 0.25


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, each_http_server: str) -> Shop:
    timeouts = {"body_timeout": BODY_TIMEOUT, "idle_timeout": IDLE_TIMEOUT}
    options = "\n".join(f'{name} = "{seconds * 1000:.0f}ms"' for name, seconds in timeouts.items())
    return Shop(tmp_path_factory.mktemp("slow"), {"http": f'server = "{each_http_server}"\n{options}'})


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with short_times(http_head=HEADER_TIMEOUT), shop.serve() as running:
        yield running


def drip(client: Client, data: bytes, deadline: float) -> None:
    """Sends a byte at a time until the daemon sends something or closes the connection."""
    for at in range(len(data)):
        client.send(data[at : at + 1])
        if _says(client.socket, PACE):
            return
        assert time.monotonic() < deadline, "a slow client is not cut off"
    raise AssertionError("all of it was taken")


def _says(sock: socket.socket, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(seconds))


@pytest.mark.parametrize("before", [0, 2])
def test_headers_a_byte_at_a_time_are_cut_off(shop: Shop, daemon: Daemon, before: int) -> None:
    with counting(daemon, accepted=before), Client(daemon.port) as client:
        for _ in range(before):
            client.send(post(shop.public.id, event()))
            assert client.reply().status == 200
        begun = time.monotonic()
        drip(client, post(shop.public.id, event()), begun + PATIENCE)
        assert time.monotonic() - begun >= HEADER_TIMEOUT * 0.7
        [reply] = client.end()
    assert_refused(reply, 408, "timeout")


def test_a_body_a_byte_at_a_time_is_cut_off(shop: Shop, daemon: Daemon) -> None:
    with counting(daemon, invalid=2):
        for line, body in (
            ("Content-Length: 500", event().ljust(500)),
            ("Transfer-Encoding: chunked", b"1\r\n \r\n" * 99),
        ):
            with Client(daemon.port) as client:
                begun = time.monotonic()
                client.send(head(shop.public.id, line))
                drip(client, body, begun + PATIENCE)
                assert time.monotonic() - begun >= BODY_TIMEOUT * 0.7
                [reply] = client.end()
                assert_refused(reply, 408, "timeout")


def test_headers_that_stop_are_cut_off(daemon: Daemon) -> None:
    starts = [b"P", b"POST /", b"\x16\x03\x01", b"\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n", b"\0" * 1000]
    with contextlib.ExitStack() as stack, counting(daemon):
        clients = [stack.enter_context(Client(daemon.port)) for _ in starts]
        for client, start in zip(clients, starts, strict=True):
            client.send(start)
        for client in clients:
            [reply] = client.end()
            assert_refused(reply, 408, "timeout")


def test_an_idle_connection_is_closed_without_a_word(shop: Shop, daemon: Daemon) -> None:
    with Client(daemon.port) as fresh, Client(daemon.port) as used:
        used.send(post(shop.public.id, event()))
        assert used.reply().status == 200
        assert fresh.end() == []
        assert used.end() == []


def test_a_connection_in_use_is_not_closed_by_timeouts(shop: Shop, daemon: Daemon) -> None:
    with Client(daemon.port) as client:
        begun = time.monotonic()
        while time.monotonic() - begun < 2 * max(IDLE_TIMEOUT, BODY_TIMEOUT):
            client.send(post(shop.public.id, event()))
            assert client.reply().status == 200
            time.sleep(IDLE_TIMEOUT / 4)


class Drips(threading.Thread):
    """Three hundred clients, half slow with headers and half with bodies. They connect again when they are cut off."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__()
        self.replies: list[Reply] = []
        self.open = 0
        self.connected = self.sent = 0
        """The number of connections so far, and of bytes that were sent one by one."""
        self._port = port
        self._requests = [head(key, "X: " + "x" * 5000), head(key, "Content-Length: 5000")]
        self._stopping = threading.Event()

    def run(self) -> None:
        clients = {number: self._begin(number) for number in range(SLOW_CLIENTS)}
        self.open = SLOW_CLIENTS
        while not self._stopping.wait(PACE):
            for number, client in clients.items():
                if _says(client.socket, 0):
                    self.replies += client.end()
                    client.close()
                    clients[number] = self._begin(number)
                else:
                    client.send(b"x")
                    self.sent += 1
        for client in clients.values():
            client.close()

    def _begin(self, number: int) -> Client:
        client = Client(self._port)
        self.connected += 1
        request = self._requests[number % 2]
        client.send(request if number % 2 else request[:100])
        return client

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def work(shop: Shop, daemon: Daemon) -> float:
    """The CPU time of the daemon's loop for three hundred requests, in seconds.

    Neither other programs of the machine nor the test's own threads change it.
    """
    request = post(shop.public.id, event())
    before = loop_seconds(daemon.pid)
    with Client(daemon.port) as client:
        for _ in range(REQUESTS):
            client.send(request)
            assert client.reply().status == 200
    return loop_seconds(daemon.pid) - before


def test_three_hundred_slow_clients_do_not_slow_others(shop: Shop, daemon: Daemon) -> None:
    """The loop has little work for a slow client, and no more work than usual for others beside three hundred."""
    before = outcomes(daemon)["accepted"]
    drips = Drips(daemon.port, shop.public.id)
    alone = work(shop, daemon)
    worked, rounds = loop_seconds(daemon.pid), 0
    begun = time.monotonic()
    drips.start()
    try:
        wait_until(lambda: drips.open == SLOW_CLIENTS)
        # Each slow client is cut off at least once and connects again, while the other client continues.
        while not rounds or len(drips.replies) < SLOW_CLIENTS:
            assert drips.is_alive()
            assert time.monotonic() - begun < PATIENCE, "slow clients are not cut off"
            work(shop, daemon)
            rounds += 1
    finally:
        drips.stop()
    worked = loop_seconds(daemon.pid) - worked
    usual = (alone + work(shop, daemon)) / 2 / REQUESTS
    most = MOST_FOR_REQUEST * REQUESTS * rounds + MOST_FOR_CONNECTION * drips.connected + MOST_FOR_BYTE * drips.sent
    assert worked < most * usual
    for reply in drips.replies:
        assert_refused(reply, 408, "timeout")
    assert outcomes(daemon)["accepted"] - before == REQUESTS * (2 + rounds)
    quiet(daemon)
