"""SIGTERM and SIGINT: begun requests are answered, answered events are stored and delivered, the exit code is 0."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.clients import Load, wait_until
from tests.support.daemon import BASE, Daemon, Shop

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {"number": "slow"}}


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_begun_requests_under_load_are_answered_and_delivered(
    stop: signal.Signals, tmp_path: Path, each_http_server: str
) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{each_http_server}"'})
    with Daemon(shop.config) as daemon, Load(daemon.port, shop.public.id) as load:
        wait_until(lambda: len(load.answered) > 200)
        stopped = time.monotonic()
        os.kill(daemon.pid, stop)
        assert daemon.wait() == 0
        assert daemon.log[-1].endswith("stopped")
        load.join()
    assert {each.status for each in load.sent if each.begun < stopped} == {200}
    answered = {each.number for each in load.answered}
    journal = shop.stored()
    numbers = [record["data"]["number"] for record in journal]
    assert len(numbers) == len(set(numbers))
    assert answered <= {*numbers} <= {each.number for each in load.sent}
    # Without a crash even the sink has each record once.
    assert shop.archived() == journal


def test_a_slow_request_is_answered_and_idle_connections_do_not_delay_the_stop(
    tmp_path: Path, each_http_server: str
) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{each_http_server}"'})
    body = json.dumps(EVENT).encode()
    head = (
        f"POST {BASE}/track HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {shop.public.id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with Daemon(shop.config) as daemon:
        idle = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(3)]
        idle[0].sendall(head + body)  # this connection has had an answer, the others have sent nothing
        assert idle[0].recv(65536).startswith(b"HTTP/1.1 200")
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=10) as slow:
            slow.sendall(head + body[:10])
            assert (
                daemon.post("/track", EVENT, shop.public.id).status == 200
            )  # the head of the slow request has been read by now
            os.kill(daemon.pid, signal.SIGTERM)
            wait_until(lambda: daemon.ops("/readyz").status == 503)
            assert daemon.ops("/readyz").body == b"shutting down\n"
            assert daemon.ops("/livez").status == 200
            with pytest.raises(ConnectionRefusedError):
                daemon.post("/track", EVENT, shop.public.id)
            slow.sendall(body[10:20])
            slow.sendall(body[20:])
            answer = slow.recv(65536)
        began = time.monotonic()
        assert daemon.wait() == 0
        assert time.monotonic() - began < 3
        for connection in idle:
            connection.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()
    assert len(shop.stored()) == len(shop.archived()) == 3


def test_requests_that_arrived_before_the_stop_are_answered_though_still_unread(
    tmp_path: Path, each_http_server: str
) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{each_http_server}"'})
    body = json.dumps(EVENT).encode()
    request = (
        f"POST {BASE}/track HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {shop.public.id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    with Daemon(shop.config) as daemon:
        connections = [socket.create_connection(("127.0.0.1", daemon.port), timeout=10) for _ in range(5)]
        for connection in connections:
            connection.sendall(request)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        os.kill(daemon.pid, signal.SIGSTOP)
        connections += [socket.create_connection(("127.0.0.1", daemon.port), timeout=10) for _ in range(5)]
        for connection in connections:
            connection.sendall(request)
        os.kill(daemon.pid, signal.SIGTERM)
        os.kill(daemon.pid, signal.SIGCONT)
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.close()
        assert daemon.wait() == 0
    assert len(shop.archived()) == 15


def test_a_request_that_never_ends_is_cut_off_after_the_configured_time(tmp_path: Path, each_http_server: str) -> None:
    shop = Shop(tmp_path, {"http": f'server = "{each_http_server}"\nshutdown_timeout = "200ms"'})
    with Daemon(shop.config) as daemon, socket.create_connection(("127.0.0.1", daemon.port)) as slow:
        slow.sendall(f"POST {BASE}/track HTTP/1.1\r\nHost: shop\r\nContent-Length: 10\r\n\r\n{{".encode())
        assert daemon.post("/track", EVENT, shop.public.id).status == 200
        assert daemon.terminate() == 0
    assert any("1 requests were cut off unanswered" in line for line in daemon.log)
    assert len(shop.archived()) == 1
