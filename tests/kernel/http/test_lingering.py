"""Finished connections are read on, so that their clients can send the rest and then read the answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ingestd.http.lingering import Lingering

MIB = 1 << 20


@contextmanager
def connection(family: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection. The second one, the client's, does not block."""
    if family == "Unix":
        server, client = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            server = listener.accept()[0]
    client.setblocking(False)
    with server, client:
        yield server, client


async def finish(lingering: Lingering, server: socket.socket) -> None:
    """Answer, and close as the servers do."""
    server.sendall(b"the answer")
    lingering.add(server)
    server.close()


@pytest.mark.parametrize("family", ["TCP", "Unix"])
async def test_a_client_that_sends_megabytes_before_it_reads_gets_its_answer(family: str) -> None:
    loop = asyncio.get_running_loop()
    with connection(family) as (server, client):
        lingering = Lingering()
        await finish(lingering, server)
        await loop.sock_sendall(client, bytes(6 * MIB))
        assert await loop.sock_recv(client, 100) == b"the answer"
        assert await loop.sock_recv(client, 100) == b""
        client.close()
        async with asyncio.timeout(10):
            while lingering:  # noqa: ASYNC110 - it has no event for this
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("family", ["TCP", "Unix"])
async def test_a_client_that_sends_without_an_end_is_cut_off(family: str) -> None:
    loop = asyncio.get_running_loop()
    with connection(family) as (server, client):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        lingering = Lingering()
        await finish(lingering, server)
        with pytest.raises(ConnectionError):
            await loop.sock_sendall(client, bytes(64 * MIB))
        assert not lingering


async def test_at_most_256_connections_are_read_on() -> None:
    lingering = Lingering()
    pairs = [socket.socketpair() for _ in range(300)]
    for server, _ in pairs:
        await finish(lingering, server)
    assert len(lingering) == 256
    lingering.close()
    for _, client in pairs:
        assert client.recv(100) == b"the answer"
        assert client.recv(100) == b""
        client.close()
