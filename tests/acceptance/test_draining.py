"""A stop loses no request that was sent before the client could know of it. A second signal shortens the stop."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.forked import short_times
from tests.support.rawhttp import Client, event, head, post

LONG = "60s"


def stopping(daemon: Daemon) -> None:
    """Signals the daemon to stop, and returns when the stop has begun."""
    os.kill(daemon.pid, signal.SIGTERM)
    wait_until(lambda: daemon.ops("/readyz").status == 503)


def open_shop(folder: Path, server: str, http: str = "", **tables: str) -> Shop:
    return Shop(folder, {"http": f'server = "{server}"\n{http}', **tables})


def test_all_connected_clients_are_answered_also_before_the_daemon_has_accepted_them(
    tmp_path: Path, each_http_server: str
) -> None:
    shop = open_shop(tmp_path, each_http_server)
    with Daemon(shop.config) as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        clients = [Client(daemon.port) for _ in range(400)]
        for client in clients[::2]:
            client.send(post(shop.public.id, event()))
        os.kill(daemon.pid, signal.SIGTERM)
        os.kill(daemon.pid, signal.SIGCONT)
        wait_until(lambda: daemon.ops("/readyz").status == 503)
        for client in clients[1::2]:  # these clients had connected and not sent a request
            client.send(post(shop.public.id, event()))
        for client in clients:
            (reply,) = client.end()
            assert reply.status == 200
            assert reply.headers["connection"] == "close"
            client.close()
        assert daemon.wait() == 0
    assert len(shop.archived()) == 400


def test_a_request_on_an_idle_connection_is_answered_within_the_grace_and_the_connection_ends(
    tmp_path: Path, each_http_server: str
) -> None:
    shop = open_shop(tmp_path, each_http_server, f'shutdown_timeout = "{LONG}"')
    with short_times(shutdown_grace=300.0), Daemon(shop.config) as daemon:
        clients = [Client(daemon.port) for _ in range(5)]
        for client in clients:
            client.send(post(shop.public.id, event()))
            assert "connection" not in client.reply().headers
        stopping(daemon)
        for client in clients:
            client.send(post(shop.public.id, event()))
            (reply,) = client.end()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            client.close()
        # No connection is left, so the daemon does not wait for the rest of the grace period.
        assert daemon.wait() == 0
    assert len(shop.archived()) == 10


def test_connections_without_requests_are_closed_after_the_grace(tmp_path: Path, each_http_server: str) -> None:
    shop = open_shop(tmp_path, each_http_server, f'shutdown_timeout = "{LONG}"')
    with short_times(shutdown_grace=0.1), Daemon(shop.config) as daemon:
        used, fresh = Client(daemon.port), Client(daemon.port)
        used.send(post(shop.public.id, event()))
        used.reply()
        assert daemon.terminate() == 0
        assert used.end() == fresh.end() == []
        used.close()
        fresh.close()


def test_the_daemon_waits_for_the_rest_of_a_request_beyond_the_grace(tmp_path: Path, each_http_server: str) -> None:
    shop = open_shop(tmp_path, each_http_server)
    body = event()
    with (
        short_times(shutdown_grace=0.0),
        Daemon(shop.config) as daemon,
        Client(daemon.port) as in_headers,
        Client(daemon.port) as in_body,
    ):
        in_headers.send(head(shop.public.id)[:30])
        in_body.send(post(shop.public.id, body)[:-5])
        wait_until(lambda: daemon.metric("ingestd_http_buffered_bytes") > 30)
        stopping(daemon)
        in_headers.send(post(shop.public.id, body)[30:])
        in_body.send(body[-5:])
        for client in (in_headers, in_body):
            (reply,) = client.end()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert daemon.wait() == 0
    assert len(shop.archived()) == 2


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_ends_the_waits_for_clients_and_sinks_and_loses_no_answered_event(
    second: signal.Signals, tmp_path: Path, each_http_server: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        shop = open_shop(
            tmp_path, each_http_server, f'shutdown_timeout = "{LONG}"',
            **{"sinks.silent": f'type = "webhook"\nurl = "{url}"\ntimeout = "{LONG}"'},
        )  # fmt: skip
        with (
            short_times(shutdown_grace=300.0),
            Daemon(shop.config) as daemon,
            Client(daemon.port) as idle,
            Client(daemon.port) as unfinished,
        ):
            for _ in range(20):
                assert (
                    daemon.post("/track", {"key": "Page View", "anonymousId": "v", "data": {}}, shop.public.id).status
                    == 200
                )
            unfinished.send(post(shop.public.id, event())[:-5])
            writing, _ = silent.accept()
            stopping(daemon)
            began = time.monotonic()
            os.kill(daemon.pid, second)
            assert daemon.wait() == 0
            assert time.monotonic() - began < 10
            assert idle.end() == unfinished.end() == []
            writing.close()
    assert len(shop.exported()) == 20
    assert any("1 requests were cut off unanswered" in line for line in daemon.log)
    assert any("sink:silent: 20 records left for the next start" in line for line in daemon.log)
