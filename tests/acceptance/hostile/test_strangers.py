"""Strangers who know the id of a server key and not its secret: others are served on meanwhile."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.daemon import Daemon, Shop, sign
from tests.support.rawhttp import Client, event, head, post

# 64 KiB at the most, which is what has a second reading; and what takes long to decompress and hash.
NUMBERS = b'{"data":[' + b"0," * 32_000 + b"0]}"
FLOODS = {
    "numbers": ("/customer-events", NUMBERS, []),
    "compressed numbers": ("/customer-events", gzip.compress(NUMBERS), ["Content-Encoding: gzip"]),
    "compressed zeros": ("/customer-events/batch", gzip.compress(bytes(4_000_000)), ["Content-Encoding: gzip"]),
}


def client_at(address: str, daemon: Daemon) -> Client:
    client = Client(daemon.port)
    client.socket.close()
    client.socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=20, source_address=(address, 0))
    return client


@contextmanager
def flood(daemon: Daemon, address: str, request: bytes, statuses: set[int]) -> Iterator[None]:
    """Send this again and again from that address; what is answered is added to the statuses."""
    over = threading.Event()

    def attack() -> None:
        with client_at(address, daemon) as client:
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
    address = f"127.0.1.{[*FLOODS].index(name)}"  # whose budget nobody has used yet
    signature = f"x-signature: {'0' * 64}"
    statuses: set[int] = set()
    with (
        flood(daemon, address, post(shop.server.id, body, signature, *lines, path=path), statuses),
        client_at("127.0.0.2", daemon) as backend,
    ):
        for number in range(60):
            spaced = event({"number": number})
            compact = spaced.replace(b": ", b":").replace(b", ", b",")
            # Clients that sign another form than they send are served as well as others.
            for signed in spaced, compact:
                lines_of_backend = [f"x-signature: {sign(shop.server.secret, signed)}"]
                backend.send(post(shop.server.id, spaced, *lines_of_backend, path="/customer-events"))
                assert backend.reply().status == 200
            backend.send(post(shop.public.id, spaced))
            assert backend.reply().status == 200
    assert statuses == {401, 429}


def test_a_stranger_is_told_to_wait_and_their_own_right_bytes_are_taken(shop: Shop, daemon: Daemon) -> None:
    with client_at("127.0.0.4", daemon) as client:
        answers = []
        for _ in range(4):
            client.send(post(shop.server.id, NUMBERS, f"x-signature: {'0' * 64}", path="/customer-events"))
            answers.append(client.reply())
        limited = answers[-1]
        assert (limited.status, limited.json()["code"]) == (429, "limited")
        assert 1 <= int(limited.headers["retry-after"]) <= 8
        right = event()
        client.send(
            head(
                shop.server.id, f"x-signature: {sign(shop.server.secret, right)}", f"Content-Length: {len(right)}",
                path="/customer-events",
            )
            + right
        )  # fmt: skip
        assert client.reply().status == 200
