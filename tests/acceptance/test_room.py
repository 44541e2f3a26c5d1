"""Floods of batches and large events refuse nobody else's events. Only their own senders are refused."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import at_once, wait_until
from tests.support.daemon import Daemon, Reply, Shop, sign
from tests.support.rawhttp import Client, chunked, event, head, post
from tests.support.redis_server import redis_server
from tests.support.redis_shop import RedisShop

PAGE: dict[str, Any] = {"key": "Page View", "anonymousId": "v", "data": {}}
TINY = gzip.compress(json.dumps({"events": [PAGE] * 1000}).encode())
PADDED = json.dumps({"events": [PAGE] * 999, "padding": "x" * 3_900_000}).encode()
LARGE = json.dumps({**PAGE, "data": {f"field {number}": number for number in range(20_000)}}).encode()
CONNECTIONS = 16


TORNADO = pytest.param("tornado, SQLite", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=["fast, SQLite", TORNADO, "fast, Redis"])
def flooded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[tuple[Shop, Daemon]]:
    server, store = request.param.split(", ")
    folder = tmp_path_factory.mktemp("room")
    tables = {"http": f'server = "{server}"\ntrusted_proxies = ["127.0.0.1"]'}
    if store == "SQLite":
        shop = Shop(folder, tables)
        with shop.serve() as daemon:
            yield shop, daemon
    else:
        with redis_server(folder / "redis", {"appendfsync": "no"}) as redis:
            shop = RedisShop(folder, tables, redis=redis)
            with shop.serve() as daemon:
                yield shop, daemon


@contextmanager
def flood(daemon: Daemon, path: str, body: bytes, key: str, addresses: int, **headers: str) -> Iterator[list[Reply]]:
    """Sends this body again and again on many connections meanwhile, from so many client addresses."""
    over, answers = threading.Event(), list[Reply]()

    def send(number: int) -> None:
        address = f"198.51.100.{number % addresses}"
        while not over.is_set():
            answers.append(daemon.post(path, body, key, x_forwarded_for=address, **headers))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        sending = [pool.submit(send, number) for number in range(CONNECTIONS)]
        try:
            wait_until(lambda: len(answers) > 0)
            yield answers
        finally:
            over.set()
        for each in sending:
            each.result()


@pytest.mark.parametrize(("kind", "addresses"), [("tiny", CONNECTIONS), ("padded", 1), ("large", 2)])
def test_a_flood_of_long_requests_refuses_no_event_of_others(
    flooded: tuple[Shop, Daemon], kind: str, addresses: int
) -> None:
    shop, daemon = flooded
    path, body, headers = {
        "tiny": ("/batch", TINY, {"content_encoding": "gzip"}),
        "padded": ("/batch", PADDED, {}),
        "large": ("/track", LARGE, {}),
    }[kind]
    other, batch = shop.create_key("public", "other").id, {"events": [PAGE] * 50}
    wait_until(lambda: daemon.post("/track", PAGE, other).status == 200)  # a new key is known within two seconds
    signed = json.dumps(batch).encode()
    with flood(daemon, path, body, shop.public.id, addresses, **headers) as answers:
        for number in range(20):
            assert daemon.post("/track", PAGE, shop.public.id, x_forwarded_for=f"192.0.2.{number}").status == 200
            assert daemon.post_signed(PAGE, shop.server, x_forwarded_for="192.0.2.1").status == 200
        replies = [
            daemon.post("/batch", batch, other, x_forwarded_for="192.0.2.1"),
            daemon.post("/customer-events/batch", signed, shop.server.id, x_signature=sign(shop.server.secret, signed)),
        ]
    assert [reply.status for reply in replies] == [200, 200]
    assert {reply.status for reply in answers} <= {200, 503}
    assert all("retry-after" in reply.headers for reply in answers if reply.status == 503)
    assert daemon.metric("ingestd_waiting_batches") == daemon.metric("ingestd_waiting_events") == 0


def test_a_shops_backend_with_fifty_batches_at_once_refuses_none_of_its_browsers(flooded: tuple[Shop, Daemon]) -> None:
    shop, daemon = flooded
    body = json.dumps({"events": [{**PAGE, "data": {"title": "x" * 100}}] * 200}).encode()
    signature = sign(shop.server.secret, body)

    def backend() -> int:
        return daemon.post("/customer-events/batch", body, shop.server.id, x_signature=signature).status

    def browser() -> int:
        return daemon.post("/track", PAGE, shop.public.id).status

    statuses = at_once([*itertools.repeat(backend, 50), *itertools.repeat(browser, 20)])
    assert statuses == [200] * 70


def test_batches_that_wait_are_answered_through_a_reload_and_a_shutdown(tmp_path: Path, http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    with Daemon(shop.config) as daemon, ThreadPoolExecutor(13) as pool:
        sent = [pool.submit(daemon.post, "/batch", TINY, shop.public.id, content_encoding="gzip") for _ in range(12)]
        wait_until(lambda: daemon.metric("ingestd_waiting_batches") > 2)
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: daemon.metric("ingestd_config_generation") == 2)
        assert daemon.post("/track", PAGE, shop.public.id).status == 200
        assert daemon.terminate() == 0
        answers = [each.result() for each in sent]
    stored = sum(reply.status == 200 for reply in answers)
    assert {reply.status for reply in answers} <= {200, 503}
    assert stored > 2
    assert len(shop.stored()) == stored * 1000 + 1


def test_refusals_that_are_held_back_keep_their_order_and_outlive_a_shutdown(tmp_path: Path, http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    many_chunks = head("guess", "Transfer-Encoding: chunked") + chunked(*[b"["] * 20_000)
    elsewhere = post("guess", b" " * 100_000, path="/elsewhere")
    requests = many_chunks, elsewhere, post("guess", b" " * 100_000), many_chunks
    with Daemon(shop.config) as daemon:
        clients = [Client(daemon.port) for _ in requests]
        assert daemon.post("/track", PAGE, shop.public.id).status == 200
        clients[0].send(elsewhere + post(shop.public.id, event()))
        assert [clients[0].reply().status for _ in range(2)] == [404, 200]
        for client, request in zip(clients, requests, strict=True):
            client.send(request)
        clients[0].finish_sending()
        clients[3].vanish()
        assert daemon.post("/track", PAGE, shop.public.id).status == 200
        assert daemon.terminate() == 0
        statuses = [[reply.status for reply in client.end()] for client in clients[:3]]
    for client in clients:
        client.close()
    assert statuses == [[400], [404], [401]]
    assert len(shop.stored()) == 3
