"""Strangers with the id of a server key but without its secret lock nobody else out."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.daemon import PATIENCE, Daemon, Shop, sign
from tests.support.rawhttp import Client, event, post

# A body of up to 64 KiB is also checked in its canonical form. The other bodies are slow to decompress and hash.
NUMBERS = b'{"data":[' + b"0," * 32_000 + b"0]}"
FLOODS = {
    "numbers": ("/customer-events", NUMBERS, []),
    "compressed numbers": ("/customer-events", gzip.compress(NUMBERS), ["Content-Encoding: gzip"]),
    "compressed zeros": ("/customer-events/batch", gzip.compress(bytes(4_000_000)), ["Content-Encoding: gzip"]),
}


@contextmanager
def flood(daemon: Daemon, address: str, request: bytes, statuses: set[int]) -> Iterator[None]:
    """Sends the request repeatedly from the address, and adds the answers to `statuses`."""
    over = threading.Event()

    def attack() -> None:
        with Client(daemon.port, address) as client:
            while not over.is_set():
                client.send(request)
                statuses.add(client.reply().status)

    threads = [threading.Thread(target=attack) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("name", FLOODS)
def test_wrong_signatures_lock_nobody_out(shop: Shop, daemon: Daemon, name: str) -> None:
    path, body, lines = FLOODS[name]
    address = f"127.0.4.{[*FLOODS].index(name)}"  # no test has used the key's budget yet
    signature = f"x-signature: {'0' * 64}"
    statuses: set[int] = set()
    with (
        flood(daemon, address, post(shop.server.id, body, signature, *lines, path=path), statuses),
        Client(daemon.port, "127.0.0.2") as backend,
    ):
        number, deadline = 0, time.monotonic() + PATIENCE
        # The flood uses up the budget at some time. The backend is served before and after that.
        while number < 20 or (429 not in statuses and time.monotonic() < deadline):
            number += 1
            spaced = event({"number": number})
            compact = spaced.replace(b": ", b":").replace(b", ", b",")
            # A client may sign the canonical form of the body that it sends.
            for signed in spaced, compact:
                lines_of_backend = [f"x-signature: {sign(shop.server.secret, signed)}"]
                backend.send(post(shop.server.id, spaced, *lines_of_backend, path="/customer-events"))
                assert backend.reply().status == 200
            backend.send(post(shop.public.id, spaced))
            assert backend.reply().status == 200
    assert statuses == {401, 429}


def test_an_address_that_must_wait_may_still_send_bodies_that_were_signed_as_sent(shop: Shop, daemon: Daemon) -> None:
    with Client(daemon.port, "127.0.0.4") as client:
        answers = []
        for _ in range(4):
            client.send(post(shop.server.id, NUMBERS, f"x-signature: {'0' * 64}", path="/customer-events"))
            answers.append(client.reply())
        limited = answers[-1]
        assert (limited.status, limited.json()["code"]) == (429, "limited")
        assert 1 <= int(limited.headers["retry-after"]) <= 8
        right = event()
        signature = f"x-signature: {sign(shop.server.secret, right)}"
        client.send(post(shop.server.id, right, signature, path="/customer-events"))
        assert client.reply().status == 200
