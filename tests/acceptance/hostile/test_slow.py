"""Slow clients are cut off at the timeouts, and do not slow other clients until then."""

from __future__ import annotations

import contextlib
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.rawhttp import Client, assert_refused, counting, event, head, outcomes, post, quiet

HEADER_TIMEOUT, BODY_TIMEOUT, IDLE_TIMEOUT = 1.0, 1.2, 1.0
# The daemon checks its timeouts at intervals, and a busy machine is late.
PATIENCE = 10.0

SLOW_CLIENTS = 300
PACE = 0.2  # seconds between two bytes of a client

# The factor by which three hundred slow clients may slow a request. In practice it is below 1.1.
MOST_SLOWER = 4.0


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, http_server: str) -> Shop:
    timeouts = {"header_timeout": HEADER_TIMEOUT, "body_timeout": BODY_TIMEOUT, "idle_timeout": IDLE_TIMEOUT}
    options = "\n".join(f'{name} = "{seconds * 1000:.0f}ms"' for name, seconds in timeouts.items())
    return Shop(tmp_path_factory.mktemp("slow"), {"http": f'server = "{http_server}"\n{options}'})


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
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
        for client in clients.values():
            client.close()

    def _begin(self, number: int) -> Client:
        client = Client(self._port)
        request = self._requests[number % 2]
        client.send(request if number % 2 else request[:100])
        return client

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def typical_time(client: Client, request: bytes) -> float:
    """The median time of a request and its answer, in seconds."""
    times = []
    for _ in range(150):
        begun = time.perf_counter()
        client.send(request)
        assert client.reply().status == 200
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def test_three_hundred_slow_clients_do_not_slow_others(shop: Shop, daemon: Daemon) -> None:
    request = post(shop.public.id, event())
    before = outcomes(daemon)["accepted"]
    drips = Drips(daemon.port, shop.public.id)
    with Client(daemon.port) as client:
        alone = typical_time(client, request)
        begun = time.monotonic()
        drips.start()
        try:
            wait_until(lambda: drips.open == SLOW_CLIENTS)
            beside = [typical_time(client, request)]
            # Each slow client is cut off at least once and connects again, while the other client continues.
            while len(drips.replies) < SLOW_CLIENTS:
                assert drips.is_alive()
                assert time.monotonic() - begun < PATIENCE, "slow clients are not cut off"
                beside.append(typical_time(client, request))
        finally:
            drips.stop()
    assert statistics.median(beside) < MOST_SLOWER * alone
    for reply in drips.replies:
        assert_refused(reply, 408, "timeout")
    assert outcomes(daemon)["accepted"] - before == 150 * (1 + len(beside))
    quiet(daemon)
