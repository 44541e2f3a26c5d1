"""Too many connections and too many unfinished bytes: the daemon closes idle and old connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.rawhttp import Client, assert_refused, counting, event, head, memory, post, quiet

MAX_CONNECTIONS = 20
MAX_BODY, MAX_BUFFERED = 100_000, 1_000_000
CLOCK = 0.25  # seconds in which the daemon cannot tell which connection was first


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, each_http_server: str) -> Shop:
    options = f'max_connections = {MAX_CONNECTIONS}\nmax_body = "{MAX_BODY}B"\nmax_buffered = "{MAX_BUFFERED}B"'
    return Shop(tmp_path_factory.mktemp("crowd"), {"http": f'server = "{each_http_server}"\n{options}'})


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


@pytest.fixture(autouse=True)
def alone(daemon: Daemon) -> Iterator[None]:
    """Waits until the connections of earlier tests have gone."""
    quiet(daemon)
    yield
    quiet(daemon)


@contextlib.contextmanager
def crowd(daemon: Daemon, count: int, start: bytes = b"") -> Iterator[list[Client]]:
    """Connects `count` clients that have sent `start`, and waits until the daemon has seen them."""
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(stack.enter_context(Client(daemon.port)))
            clients[-1].send(start)
            wait_until(lambda: daemon.metric("ingestd_http_connections") == len(clients))
        yield clients


def retried(shop: Shop, daemon: Daemon) -> Reply:
    """Sends until the answer is not 503, as a client does."""
    replies: list[Reply] = []

    def served() -> bool:
        replies.append(daemon.post("/track", event(), shop.public.id))
        return replies[-1].status != 503

    wait_until(served)
    return replies[-1]


def test_the_connection_that_is_idle_longest_makes_room(shop: Shop, daemon: Daemon) -> None:
    with crowd(daemon, MAX_CONNECTIONS) as clients:
        for client in clients[1:] + clients[:1]:  # so the second is idle longest
            client.send(post(shop.public.id, event()))
            assert client.reply().status == 200
        assert retried(shop, daemon).status == 200
        assert clients[1].end() == []
        for client in (clients[0], *clients[2:]):
            client.send(post(shop.public.id, event()))
            assert client.reply().status == 200


def test_clients_that_send_nothing_cannot_lock_others_out(shop: Shop, daemon: Daemon) -> None:
    with crowd(daemon, MAX_CONNECTIONS):
        for _ in range(5):
            assert retried(shop, daemon).status == 200


def test_unfinished_requests_cannot_lock_others_out(shop: Shop, daemon: Daemon) -> None:
    start = head(shop.public.id, f"Content-Length: {len(event())}")
    with crowd(daemon, MAX_CONNECTIONS, start) as clients:
        # Tornado also keeps headers as objects.
        wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") >= MAX_CONNECTIONS * len(start))
        for _ in range(5):
            assert retried(shop, daemon).status == 200
        assert any(reply.status == 503 for client in clients[:1] for reply in client.end())
        clients[-1].send(event())  # the newest connection is not closed first
        assert clients[-1].reply().status == 200


def test_the_oldest_request_makes_room_when_there_are_too_many_bytes(shop: Shop, daemon: Daemon) -> None:
    part = head(shop.public.id, f"Content-Length: {MAX_BODY}") + b" " * (MAX_BODY - 10)
    fit = MAX_BUFFERED // len(part)
    with contextlib.ExitStack() as stack, counting(daemon, unavailable=1, accepted=1, invalid=fit):

        def begin() -> Client:
            client = stack.enter_context(Client(daemon.port))
            client.send(part)
            return client

        def wait_for(count: int) -> None:
            wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") // len(part) == count)

        oldest = begin()
        wait_for(1)
        time.sleep(2 * CLOCK)
        others = [begin() for _ in range(fit - 1)]
        wait_for(fit)
        others.append(begin())
        [reply] = oldest.end()
        assert_refused(reply, 503, "unavailable")
        wait_for(fit)
        assert daemon.post("/track", event(), shop.public.id).status == 200
        for client in others:  # the other requests continue
            client.send(b" " * 10)
            assert_refused(client.reply(), 400, "invalid_json", closes=False)


def test_large_bodies_that_never_end_take_no_more_memory_than_configured(shop: Shop, daemon: Daemon) -> None:
    before = memory(daemon.pid, "VmHWM")
    part = head(shop.public.id, f"Content-Length: {MAX_BODY}") + b" " * (MAX_BODY - 10)
    with contextlib.ExitStack() as stack:
        for _ in range(15 * MAX_CONNECTIONS):
            client = stack.enter_context(Client(daemon.port))
            # The daemon refuses some clients while they send.
            with contextlib.suppress(ConnectionError):
                client.send(part)
    assert memory(daemon.pid, "VmHWM") < before + 16 * 2**20
