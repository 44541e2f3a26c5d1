"""The operators' listener in-process: HEAD, paths with a slash, and allowed hosts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from ingestd.api.events import Endpoint
from ingestd.api.options import Address, HostName
from ingestd.api.outcomes import Outcome
from ingestd.config import OpsOptions
from ingestd.http.operators import OpsRoute
from ingestd.http.ops import OwnHosts, make_ops_app
from ingestd.observability.metrics import Metrics
from ingestd.pipeline.outcomes import Outcomes
from ingestd.plugins.console import page_routes as page_handlers
from ingestd.plugins.console.live import Arrival, ArrivalFilter, LiveEvents, Source
from ingestd.plugins.console.page_routes import page_routes
from ingestd.plugins.openapi.served import OpenApiHandler
from ingestd.support.periodic import TIMING
from ingestd.validation.validator import Validator
from tests.support.daemon import PATIENCE
from tests.support.journals import until
from tests.support.live import live_events

PATHS = ["/", "/status.json", "/livez", "/readyz", "/metrics", "/openapi.json"]
REFUSED = "a request was answered 421"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Listener(NamedTuple):
    port: int
    hosts: OwnHosts
    live: LiveEvents
    outcomes: Outcomes

    async def ask(self, path: str, *lines: str, method: str = "GET", version: str = "1.1") -> Answer:
        """Send a request with exactly these header lines, and read until the end of the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = [f"{method} {path} HTTP/{version}", "Connection: close", *lines]
        writer.write("\r\n".join([*head, "", ""]).encode())
        received = await reader.read()
        writer.close()
        head_lines, _, body = received.partition(b"\r\n\r\n")
        status, *fields = head_lines.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        return Answer(int(status.split()[1]), headers, body)

    async def status(self, host: str) -> int:
        return (await self.ask("/livez", f"Host: {host}")).status


async def no_status(parameters: Mapping[str, str]) -> bytes:
    return b"{}"


@asynccontextmanager
async def listening(options: OpsOptions | None = None, *, problem: str | None = None) -> AsyncIterator[Listener]:
    hosts = OwnHosts(options or OpsOptions())
    outcomes = Outcomes(Metrics())
    live = live_events(Validator.load(None), "all", outcomes)
    document: OpsRoute = r"/openapi\.json/?", OpenApiHandler, {"make": lambda: b"{}\n"}
    further = [*page_routes(no_status, live), document]
    server = HTTPServer(make_ops_app(CollectorRegistry(), lambda: problem, hosts, further=further))
    sock, port = bind_unused_port()
    server.add_socket(sock)
    try:
        yield Listener(port, hosts, live, outcomes)
    finally:
        server.stop()
        await server.close_all_connections()


def allowing(*names: str) -> OpsOptions:
    return OpsOptions(allowed_hosts=tuple(map(HostName.parse, names)))


@pytest.mark.parametrize("problem", [None, "no space"])
async def test_head_is_answered_as_get_without_the_body(problem: str | None) -> None:
    async with listening(problem=problem) as listener:
        for path in (*PATHS, "/nothing"):
            for lines in (("Host: localhost",), ("Host: localhost", "Accept-Encoding: gzip")):
                get = await listener.ask(path, *lines)
                head = await listener.ask(path, *lines, method="HEAD")
                assert head.body == b""
                assert (head.status, head.headers | {"date": ""}) == (get.status, get.headers | {"date": ""})
                assert int(head.headers["content-length"]) == len(get.body)


async def test_a_trailing_slash_is_the_same_path() -> None:
    async with listening() as listener:
        for path in PATHS[1:]:
            get = await listener.ask(path, "Host: localhost")
            slash = await listener.ask(f"{path}/", "Host: localhost")
            assert (slash.status, slash.body) == (get.status, get.body)
            assert get.status == 200
            assert (await listener.ask(f"{path}//", "Host: localhost")).status == 404
        assert (await listener.ask("//", "Host: localhost")).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_the_answer_to_other_methods_names_the_allowed_ones(method: str) -> None:
    async with listening() as listener:
        for path in (*PATHS, "/events"):
            answer = await listener.ask(path, "Host: localhost", "Content-Length: 0", method=method)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_stream_of_events_answers_head_and_refuses_what_it_does_not_know() -> None:
    async with listening() as listener:
        head = await listener.ask("/events/", "Host: localhost", method="HEAD")
        assert (head.status, head.headers["content-type"], head.body) == (200, "text/event-stream", b"")
        assert head.headers["cache-control"] == "no-store, no-transform"
        assert "content-length" not in head.headers
        for query in ("outcome=lost", "outcome=invalid&outcome=x", "type=page"):
            answer = await listener.ask(f"/events?{query}", "Host: localhost")
            assert answer.status == 400


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (200, []),
        (200, ["User-Agent: curl/7.88.1", "Accept: */*"]),
        (200, ["User-Agent: Mozilla/5.0", "X-Ingestd-Page: 1", "Referer: http://10.0.0.1:9464/"]),
        (200, ["User-Agent: Mozilla/5.0", "Sec-Fetch-Site: none"]),
        (200, ["User-Agent: Mozilla/5.0", "Sec-Fetch-Site: same-origin"]),
        (403, ["User-Agent: Mozilla/5.0", "Sec-Fetch-Site: same-site"]),
        (403, ["User-Agent: Mozilla/5.0", "Sec-Fetch-Site: cross-site"]),
        (403, ["User-Agent: Mozilla/5.0", "Accept: image/webp"]),
        (403, ["User-Agent: A browser of its own", "Referer: http://evil.example/"]),
        (403, ["Origin: null"]),
    ],
)
async def test_a_page_of_another_site_takes_no_place_of_viewers(status: int, lines: list[str]) -> None:
    """Without TLS and off loopback, browsers do not tell the site. The first request for another header is OPTIONS."""
    async with listening() as listener:
        for path in ("/status.json", "/events"):
            answer = await listener.ask(path, "Host: 10.0.0.1:9464", *lines, method="HEAD")
            assert answer.status == status
            assert "access-control-allow-origin" not in answer.headers
        assert (await listener.ask("/metrics", "Host: 10.0.0.1:9464", *lines)).status == 200


async def test_a_viewer_that_takes_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_handlers, "_TO_TAKE", 0.3)
    record = msgspec.json.encode({"anonymousId": "ann", "data": {"price": [1] * 7_000}})
    source = Source(Endpoint.TRACK, "id", 0, batch=False)
    async with listening() as listener:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", listener.port))
            client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: listener.outcomes.observer is not None, PATIENCE)

            def is_gone() -> bool:
                for _ in range(100):
                    listener.live.offer(Arrival(source, None, Endpoint.TRACK, "", Outcome.ACCEPTED, record))
                return not listener.live.viewers

            await until(is_gone, PATIENCE)


async def test_a_stream_ends_some_time_after_its_last_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TIMING, "viewer_lingers", 0.05)
    outcomes = Outcomes(Metrics())
    live = live_events(Validator.load(None), outcomes=outcomes)
    with live.view(ArrivalFilter()), live.view(ArrivalFilter(key="")):
        assert outcomes.observer is live
    with live.view(ArrivalFilter()):
        await asyncio.sleep(0.2)
        assert outcomes.observer is live  # somebody has come back
    await until(lambda: outcomes.observer is None, PATIENCE)


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:9464", "LOCALHOST", "localhost.", "shop.localhost:9464", "127.0.0.1", "127.0.0.1:9464",
        "10.1.2.3:80", "[::1]", "[::1]:9464", "[2001:db8::1]:9464", "[::ffff:10.0.0.1]",
    ],
)  # fmt: skip
async def test_addresses_and_localhost_are_answered(host: str) -> None:
    async with listening() as listener:
        assert await listener.status(host) == 200


@pytest.mark.logs(REFUSED)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost",
        "127.1", "0x7f.1", "2130706433", "::1", "[::1].evil.example", "xlocalhost", "[evil]", "*", "localhost:80:80",
        "a" * 4000,
    ],
)  # fmt: skip
async def test_any_other_host_is_refused_at_every_path(host: str) -> None:
    async with listening() as listener:
        for path in (*PATHS, "/events", "/nothing", "/metrics/"):
            answer = await listener.ask(path, f"Host: {host}")
            assert answer.status == 421
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert b"[ops] allowed_hosts" in answer.body
            assert len(answer.body) < 600
        assert (await listener.ask("/metrics", f"Host: {host}", method="HEAD")).status == 421
        assert (await listener.ask("/metrics", f"Host: {host}", "Content-Length: 0", method="POST")).status == 421


@pytest.mark.logs(REFUSED)
async def test_allowed_names_are_answered() -> None:
    async with listening(allowing("ingestd.example", "*.shop.example", "bücher.example")) as listener:
        for host in (
            "ingestd.example", "INGESTD.example:9464", "ingestd.example.", "a.shop.example", "a.b.shop.example:1",
            "xn--bcher-kva.example", "localhost", "127.0.0.1",
        ):  # fmt: skip
            assert await listener.status(host) == 200
        for host in ("a.ingestd.example", "shop.example", "xshop.example", "example"):
            assert await listener.status(host) == 421


async def test_every_host_may_be_allowed() -> None:
    async with listening(allowing("*")) as listener:
        assert await listener.status("evil.example") == 200


@pytest.mark.logs(REFUSED)
async def test_the_host_name_of_its_address_is_allowed() -> None:
    async with listening(OpsOptions(listen=Address("Ops.internal", 9464))) as listener:
        assert await listener.status("ops.internal:9464") == 200
        assert await listener.status("internal:9464") == 421


async def test_a_request_without_a_host_is_answered_because_it_is_from_no_browser() -> None:
    async with listening() as listener:
        assert (await listener.ask("/livez", version="1.0")).status == 200
        assert (await listener.ask("/livez", "Host:")).status == 200


@pytest.mark.logs(REFUSED)
async def test_many_refusals_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as listener:
        for _ in range(5):
            assert await listener.status("evil.example") == 421
    (line,) = [each.getMessage() for each in caplog.records if REFUSED in each.getMessage()]
    assert "'evil.example'" in line
    assert "[ops] allowed_hosts" in line


@pytest.mark.logs(REFUSED)
async def test_changed_options_take_effect_at_once() -> None:
    async with listening() as listener:
        assert await listener.status("ingestd.example") == 421
        listener.hosts.apply_options(allowing("ingestd.example"))
        assert await listener.status("ingestd.example") == 200
        listener.hosts.apply_options(OpsOptions())
        assert await listener.status("ingestd.example") == 421
