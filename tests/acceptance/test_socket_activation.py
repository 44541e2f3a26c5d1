"""Listening sockets that a supervisor holds and passes to the daemon, distinguished by their names."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import BASE, Daemon, Shop
from tests.support.init import NAMES, Init, listener
from tests.support.ports import free_port

Sockets = list[tuple[str, socket.socket]]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = [(name, listener()) for name in NAMES]
    yield made
    for _, sock in made:
        sock.close()


def ask(sock: socket.socket, method: str, path: str, key: str = "", number: int = 0) -> int:
    host, port = sock.getsockname()
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        body = json.dumps({"key": "Page View", "anonymousId": "visitor", "data": {"number": number}})
        connection.request(method, path, body if method == "POST" else None, {"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["in order", "reversed"])
def test_both_listeners_use_the_sockets_of_their_names_instead_of_their_addresses(
    order: slice, tmp_path: Path, sockets: Sockets, http_server: str
) -> None:
    own = [free_port(), free_port()]
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    text = shop.config.read_text()
    for number in own:
        text = text.replace("127.0.0.1:0", f"127.0.0.1:{number}", 1)
    shop.config.write_text(text)
    events, operators = (sock for _, sock in sockets)
    with Init(shop.config, sockets=sockets[order]) as init:
        init.start()
        assert ask(events, "POST", f"{BASE}/track", shop.public.id) == 200
        assert ask(events, "GET", "/readyz") == 404
        assert ask(operators, "GET", "/readyz") == 200
        for number in own:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", number))
        assert init.stop() == 0
    assert (
        f"listening for events on http://127.0.0.1:{events.getsockname()[1]} (a socket passed by systemd)" in init.log
    )


def test_two_sockets_with_one_name_are_both_served(tmp_path: Path, sockets: Sockets) -> None:
    shop = Shop(tmp_path)
    with listener() as further, Init(shop.config, sockets=[*sockets, ("ingestd", further)]) as init:
        init.start()
        for sock in (sockets[0][1], further):
            assert ask(sock, "POST", f"{BASE}/track", shop.public.id) == 200
        assert init.stop() == 0


def test_clients_that_connect_during_a_restart_wait_and_are_answered(
    tmp_path: Path, sockets: Sockets, http_server: str
) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{http_server}"'})
    events = sockets[0][1]
    with Init(shop.config, sockets=sockets) as init, ThreadPoolExecutor(20) as pool:
        init.start()
        assert init.stop() == 0
        # No daemon runs: these connections wait in the queue of the socket.
        waiting = [pool.submit(ask, events, "POST", f"{BASE}/track", shop.public.id, number) for number in range(20)]
        with socket.create_connection(events.getsockname()[:2]):
            pass  # this client has disconnected again
        assert not any(each.done() for each in waiting)
        init.start()
        assert [each.result() for each in waiting] == [200] * 20
        assert init.stop() == 0
    assert sorted(record["data"]["number"] for record in shop.exported()) == [*range(20)]


def test_sockets_for_another_process_are_ignored(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    variables = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "ingestd:ingestd-ops"}
    with Daemon(shop.config, environment=variables) as daemon:
        assert daemon.ops("/readyz").status == 200
        assert daemon.terminate() == 0


def udp() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def local() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")  # the kernel chooses an abstract name
    sock.listen()
    return sock


@pytest.mark.parametrize(
    ("name", "make", "fault"),
    [
        ("http", listener, "a socket with the name 'http': FileDescriptorName= of a socket unit is ingestd for events"),
        ("ingestd.socket", listener, "a socket with the name 'ingestd.socket'"),
        ("ingestd", udp, "the socket ingestd must be a TCP socket"),
        ("ingestd-ops", local, "the socket ingestd-ops must be a TCP socket"),
        ("ingestd", socket.socket, "the socket ingestd must be a listening socket: Accept=no"),
    ],
    ids=["another name", "the default name", "UDP", "Unix", "not listening"],
)
def test_a_socket_that_cannot_be_served_is_a_fault_of_the_units(
    name: str, make: Callable[[], socket.socket], fault: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        sock = stack.enter_context(make())
        init = stack.enter_context(Init(Shop(tmp_path).config, sockets=[(name, sock)]))
        assert init.run() == 78
        assert fault in init.log


def test_variables_that_contradict_one_another_are_a_fault_of_the_units(tmp_path: Path, sockets: Sockets) -> None:
    config = Shop(tmp_path).config
    with Init(config, sockets=sockets, environment={"LISTEN_FDNAMES": "ingestd"}) as init:
        assert init.run() == 78
    assert "LISTEN_FDNAMES has 1 names for 2 sockets" in init.log
