"""The webhook sink against real servers: its requests, the meaning of answers, and its errors."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient

from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Secret, Url
from ingestd.plugins.sinks.webhook import WebhookOptions, WebhookSink
from ingestd.plugins.sinks.webhook.client import Target
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.clients import wait_until
from tests.support.daemon import Reply, Shop, run_ingestd
from tests.support.ports import free_port
from tests.support.sinks import configured, lines_to_read, values
from tests.support.webhook_server import Received, WebhookServer, make_certificate, raw_server, webhook_server

SECRET = "whsec_" + base64.b64encode(b"a key of twenty-four bytes").decode()
TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"
TLS_LINE = "tornado.general WARNING SSL Error on "

Verify = Callable[..., bool]


def make(url: str, **options: Any) -> WebhookSink:
    return WebhookSink("crm", WebhookSink.Options(url=Url(url), **options))


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[WebhookSink]:
    sink = make(url, **options)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


def made(folder: Path, **options: Any) -> WebhookSink:
    return configured(WebhookSink, "crm", {"url": "https://crm.example/in", **options}, folder)


async def failure(url: str, **options: Any) -> SinkFailure | SinkRetry:
    async with opened(url, **options) as sink:
        with pytest.raises((SinkFailure, SinkRetry)) as raised:
            await sink.write(make_records(2))
    error = raised.value
    assert isinstance(error, SinkFailure | SinkRetry)
    return error


def numbers(received: Received) -> list[int]:
    return [record["data"]["number"] for record in received.records]


def refusing(*bad: int, status: int = 400, text: bytes = b"") -> Callable[[Received], Reply]:
    """Refuses requests that contain one of these records."""

    def answer(received: Received) -> Reply:
        return Reply(status if {*bad} & {*numbers(received)} else 200, {}, text)

    return answer


def always(status: int, text: bytes = b"", **headers: str) -> Callable[[Received], Reply]:
    return lambda _: Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, text)


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with webhook_server() as server:
        yield server


@pytest.fixture(scope="module")
def is_genuine() -> Verify:
    """The verification function in the documentation."""
    (source,) = lines_to_read("Verify a webhook")
    names: dict[str, Any] = {}
    exec(compile(source, "reading-records.md", "exec"), names)
    verify: Verify = names["is_genuine"]
    return verify


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def serve(self, server: WebhookServer) -> None:
        server.answer = lambda received: Reply(422 if b'"unwanted"' in received.content else 204, {}, b"")
        self.server = server

    def make_sink(self, folder: Path) -> WebhookSink:
        return make(self.server.url, secret=Secret(SECRET))

    async def read_back(self, folder: Path) -> list[Any]:
        return [record for received in self.server.taken for record in received.records]

    async def interrupt(self, folder: Path) -> None:
        await asyncio.to_thread(self.server.stop)
        await asyncio.to_thread(self.server.start)

    def make_rejected(self) -> Record:
        return make_records(1, key="unwanted")[0]


class TestContractWithGzip(TestContract):
    def make_sink(self, folder: Path) -> WebhookSink:
        return make(self.server.url, gzip=True)


# Requests


async def test_a_batch_is_one_json_array_of_the_records_byte_for_byte(server: WebhookServer) -> None:
    batch = make_records(3, data={"name": "Łódź", "odd": "\x00\u2028", "number": 1})
    async with opened(server.url) as sink:
        await sink.write(batch)
    (received,) = server.received
    assert received.body == b"[" + b",".join(record.body for record in batch) + b"]"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["user-agent"].startswith("ingestd/")
    assert "webhook-signature" not in received.headers
    assert "accept-encoding" not in received.headers


@pytest.mark.parametrize("secret", [SECRET, "sixteen letters!", "zażółć gęślą jaźń"])
@pytest.mark.parametrize("compressed", [False, True])
async def test_the_documented_function_verifies_signatures(
    server: WebhookServer, is_genuine: Verify, secret: str, compressed: bool
) -> None:
    async with opened(server.url, secret=Secret(secret), gzip=compressed) as sink:
        await sink.write(make_records(2))
    (received,) = server.received
    assert received.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert is_genuine(received.headers, received.content, secret)
    assert not is_genuine(received.headers, received.content + b" ", secret)
    assert not is_genuine(received.headers, received.content, "x" + secret)
    assert not is_genuine({**received.headers, "webhook-id": "another"}, received.content, secret)
    assert not is_genuine(received.headers, received.content, secret, tolerance=-1)


def test_the_documented_function_verifies_the_example_of_standard_webhooks(is_genuine: Verify) -> None:
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,another v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    assert is_genuine(headers, body, secret, tolerance=time.time())
    assert not is_genuine(headers, body, secret)


async def test_a_repeated_batch_has_the_same_id(server: WebhookServer) -> None:
    batch = make_records(3)
    server.answer = always(503)
    for _ in range(2):
        async with opened(server.url) as sink:
            for _ in range(2):
                with pytest.raises(SinkRetry):
                    await sink.write(batch)
    async with opened(server.url) as sink:
        for other in (batch[:2], batch[::-1], make_records(3)):
            with pytest.raises(SinkRetry):
                await sink.write(other)
    ids = [received.headers["webhook-id"] for received in server.received]
    assert len(set(ids[:4])) == 1
    assert len(set(ids)) == 4
    assert not any("." in each for each in ids)
    stamps = [int(received.headers["webhook-timestamp"]) for received in server.received]
    assert all(abs(time.time() - stamp) < 30 for stamp in stamps)


async def test_configured_headers_and_the_user_of_the_url_are_sent(server: WebhookServer) -> None:
    url = server.url.replace("://", "://sho%40p:pass%2Fw%C3%B3rd@") + "?team=7&x=%20#part"
    async with opened(url, headers={"X-Api-Key": Secret("k-1234"), "x-env": Secret("prod")}) as sink:
        await sink.write(make_records(1))
    (received,) = server.received
    assert received.path == "/in?team=7&x=%20"
    assert received.headers["x-api-key"] == "k-1234"
    assert received.headers["x-env"] == "prod"
    assert received.headers["host"] == f"localhost:{server.port}"
    credentials = base64.b64decode(received.headers["authorization"].removeprefix("Basic ")).decode()
    assert credentials == "sho@p:pass/wórd"


async def test_a_configured_authorization_is_sent(server: WebhookServer) -> None:
    async with opened(server.url, headers={"Authorization": Secret("Bearer abc")}) as sink:
        await sink.write(make_records(1))
    assert server.received[0].headers["authorization"] == "Bearer abc"


async def test_the_client_configured_by_others_is_not_used(server: WebhookServer) -> None:
    AsyncHTTPClient.configure(None, max_header_size=10)
    try:
        async with opened(server.url) as sink:
            await sink.write(make_records(1))
    finally:
        AsyncHTTPClient.configure(None)


# Answers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_means_delivered(server: WebhookServer, status: int) -> None:
    server.answer = always(status, b"thanks")
    async with opened(server.url) as sink:
        await sink.write(make_records(2))
        await sink.write(make_records(2))
    assert len(server.received) == 2


@pytest.mark.parametrize(
    "status", [301, 302, 307, 308, 304, 401, 403, 404, 405, 408, 409, 410, 425, 429, 451, 500, 502, 503, 507, 599]
)
async def test_other_answers_are_temporary_failures(server: WebhookServer, status: int) -> None:
    server.answer = always(status, b"<html>", Location="/elsewhere?token=hidden")
    error = await failure(server.url.replace("://", "://user:hidden@") + "?key=hidden", headers={"A": Secret("hidden")})
    assert f"localhost:{server.port} answers {status}" in str(error)
    assert "hidden" not in str(error)
    assert "/in" not in str(error)
    assert ("redirects are not followed" in str(error)) == (300 <= status < 400)
    assert error.after is None
    assert len(server.received) == 1
    # The receiver's own failures never count against a record.
    assert isinstance(error, SinkRetry) == (status in {408, 425, 429} or status >= 500)


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("0", 0, 0),
        ("7", 7, 7),
        ("3600", 3600, 3600),
        ("86400", 3600, 3600),
        ("9" * 5000, 3600, 3600),
        (900, 800, 900),
        (90_000, 3600, 3600),
        ("Sunday, 06-Nov-44 08:49:37 GMT", 3600, 3600),
        ("Sun Nov  6 08:49:37 2044", 3600, 3600),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None, None),
        ("Sun, 06 Nov 2044 08:49:37 +9999999999999", None, None),
        ("-5", None, None),
        ("1.5", None, None),
        ("soon", None, None),
        ("", None, None),
    ],
)
async def test_retry_after_is_respected_up_to_an_hour(
    server: WebhookServer, text: str | int, least: float | None, most: float | None
) -> None:
    """A number is replaced by the date after so many seconds."""
    if isinstance(text, int):
        text = formatdate(time.time() + text, usegmt=True)
    for status in (429, 503, 403):
        server.answer = always(status, Retry_After=text)
        error = await failure(server.url)
        if least is None or most is None:
            assert error.after is None
        else:
            assert error.after is not None
            assert least <= error.after <= most


@pytest.mark.parametrize(("status", "title"), [(400, "Bad Request"), (413, ".*"), (422, ".*")])
async def test_a_single_refused_record_is_rejected(server: WebhookServer, status: int, title: str) -> None:
    server.answer = always(status, "zły\n\n  \x00\x1b[31mtotal\u202e".encode() + b"\xff" + b"x" * 500)
    async with opened(server.url) as sink:
        with pytest.raises(SinkReject) as raised:
            await sink.write(make_records(1))
    assert len(server.received) == 1
    (reason,) = raised.value.reasons.values()
    assert re.fullmatch(rf"localhost:\d+ answers {status} {title}: zły \ufffd\ufffd\[31mtotal\ufffd\ufffdx+…", reason)
    assert reason.isprintable()
    assert len(reason.partition(": ")[2]) == 201


async def test_the_reason_contains_no_secret_of_the_request(server: WebhookServer) -> None:
    def echo(received: Received) -> Reply:
        return Reply(400, {}, f"{received.path} hidden q hidden/w hidden-t {sorted(received.headers.items())}".encode())

    server.answer = echo
    url = server.url.replace("://", "://user:hidden%2Fw@") + "?token=hidden%20q&hidden-flag"
    async with opened(url, headers={"X-Api-Key": Secret("hidden h"), "X-Auth": Secret("Token hidden-t")}) as sink:
        with pytest.raises(SinkReject) as raised:
            await sink.write(make_records(1))
    assert "hidden" not in raised.value.reasons[0]
    assert "/in?token=***&*** *** *** *** [('authorization', 'Basic ***')" in raised.value.reasons[0]
    assert "dXNlcjpoaWRkZW4vdw" not in raised.value.reasons[0]


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("bad", [{1}, {8}, {3, 4}, {1, 5, 8}, {*range(1, 9)}], ids=str)
async def test_exactly_the_refused_records_of_a_batch_are_rejected(
    server: WebhookServer, status: int, bad: set[int]
) -> None:
    server.answer = refusing(*bad, status=status, text=b"no")
    batch = make_records(8)
    async with opened(server.url) as sink:
        with pytest.raises(SinkReject) as raised:
            await sink.write(batch)
        assert {index + 1 for index in raised.value.reasons} == bad
        assert {*raised.value.reasons.values()} == {raised.value.reasons[min(bad) - 1]}
        taken = [number for received in server.taken for number in numbers(received)]
        assert taken == [number for number in range(1, 9) if number not in bad]
        # Delivery writes the others again.
        server.received.clear()
        if others := [record for index, record in enumerate(batch) if index + 1 not in bad]:
            await sink.write(others)
            assert server.received[0].records == values(others)
            assert len(server.received) == 1


async def test_a_too_large_batch_is_delivered_in_parts(server: WebhookServer) -> None:
    server.answer = lambda received: Reply(413 if len(received.body) > 2000 else 200, {}, b"")
    batch = make_records(13)
    async with opened(server.url) as sink:
        await sink.write(batch)
    assert [each for received in server.taken for each in received.records] == values(batch)


async def test_answered_parts_of_a_halved_batch_are_not_sent_again_after_a_failure(server: WebhookServer) -> None:
    """Otherwise a batch whose parts take longer than the time limit would never end."""
    asked: list[list[int]] = []
    failing = 1

    def answer(received: Received) -> Reply:
        nonlocal failing
        failing = (failing + 1) % 3
        if not failing:
            return Reply(503, {}, b"")
        asked.append(numbers(received))
        return refusing(2, 7)(received)

    server.answer = answer
    batch = make_records(8)
    failures = 0

    async def write_until_done(sink: WebhookSink) -> None:
        nonlocal failures
        while True:
            try:
                return await sink.write(batch)
            except (SinkFailure, SinkRetry):
                failures += 1

    async with opened(server.url) as sink:
        with pytest.raises(SinkReject) as raised:
            await write_until_done(sink)
        assert failures > 3
        assert set(raised.value.reasons) == {1, 6}
        assert len(asked) == len({str(each) for each in asked})
        assert [each for each in asked if len(each) == 1 or not {2, 7} & {*each}] == [
            [1], [2], [3, 4], [5, 6], [7], [8],
        ]  # fmt: skip
        # The answers are remembered for this batch only, until its end.
        asked.clear()
        server.answer = refusing(2)
        with pytest.raises(SinkReject):
            await sink.write(batch)
        server.answer = always(200)
        server.received.clear()
        await sink.write(batch)
        assert [numbers(each) for each in server.received] == [[*range(1, 9)]]


async def test_a_batch_that_was_refused_is_forgotten_when_another_comes(server: WebhookServer) -> None:
    first, second = make_records(2), make_records(2)
    server.answer = lambda received: Reply(400 if len(received.records) == 2 else 503, {}, b"")
    async with opened(server.url) as sink:
        with pytest.raises(SinkRetry):
            await sink.write(first)
        server.answer = always(503)
        with pytest.raises(SinkRetry):
            await sink.write(second)
        server.answer = always(200)
        server.received.clear()
        await sink.write(first)
    assert [each.records for each in server.received] == [values(first)]


# Unreachable, hanging and faulty servers


async def test_an_unreachable_server_is_a_named_temporary_failure() -> None:
    port = free_port()
    assert str(await failure(f"http://user:hidden@127.0.0.1:{port}/in?hidden")) == (
        f"the connection to 127.0.0.1:{port} failed: Connection refused"
    )
    assert str(await failure(f"http://[::1]:{port}/in")).startswith(f"the connection to [::1]:{port} failed: ")
    error = await failure("http://no-such-host.invalid/in")
    assert str(error).startswith("the connection to no-such-host.invalid failed: ")


async def test_a_server_that_ends_during_a_write_and_returns_gets_everything(server: WebhookServer) -> None:
    before, during, after = make_records(2), make_records(2), make_records(2)
    async with opened(server.url) as sink:
        await sink.write(before)
        server.answer = lambda _: None
        writing = asyncio.create_task(sink.write(during))
        await asyncio.to_thread(wait_until, lambda: server.silent == 1)
        await asyncio.to_thread(server.stop)
        with pytest.raises(SinkFailure, match="closed the connection without an answer"):
            await writing
        with pytest.raises(SinkRetry, match="Connection refused"):
            await sink.write(during)
        server.answer = always(200)
        server.start()
        server.received.clear()
        await sink.write(during)
        await sink.write(after)
    assert [each.records for each in server.received] == [values(during), values(after)]


async def test_a_cancelled_write_ends_its_request(server: WebhookServer) -> None:
    """Otherwise each attempt would leave a connection, and the eleventh attempt would get none."""
    server.answer = lambda _: None
    async with opened(server.url) as sink:
        for _ in range(12):
            writing = asyncio.create_task(sink.write(make_records(2)))
            await asyncio.to_thread(wait_until, lambda: server.silent == 1)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            await asyncio.to_thread(wait_until, lambda: server.silent == 0)
        server.answer = always(200)
        await sink.write(make_records(2))


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/", "https://127.0.0.1:{}/"])
async def test_a_write_to_a_silent_server_can_be_cancelled(url: str) -> None:
    with raw_server(b"", reads=False, hangs=True) as port:
        async with opened(url.format(port)) as sink:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sink.write(make_records(2)), 0.3)
    for _ in range(3):
        await asyncio.sleep(0.01)  # the unfinished connection ends with the server


async def test_a_connection_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.http_servers._CONNECT_TIMEOUT", 0.1)
    with raw_server(b"", reads=False, hangs=True) as port:
        error = await failure(f"https://127.0.0.1:{port}/in")
        assert str(error).startswith(f"the connection to 127.0.0.1:{port} failed: Timeout during TLS handshake")


async def test_a_write_cancelled_during_its_connection_sends_nothing_later(tmp_path: Path) -> None:
    tls, certificate = make_certificate(tmp_path)
    with socket.create_server(("localhost", 0)) as listener:

        def receive() -> bytes:
            with tls.wrap_socket(listener.accept()[0], server_side=True) as connection:
                return connection.recv(100)

        async with opened(f"https://localhost:{listener.getsockname()[1]}/", ca_file=certificate) as sink:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sink.write(make_records(2)), 0.3)
            assert await asyncio.to_thread(receive) == b""


GARBAGE = {
    "nothing": b"",
    "a line": b"hello\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "zeroes": bytes(5000),
    "half a start line": b"HTTP/1.1 2",
    "half the headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "no number": b"HTTP/1.1 OK\r\n\r\n",
    "a line that is no header": b"HTTP/1.1 200 OK\r\n\x00\x01\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
    "HTTP/2": b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\r\n\r\n",
    "only a preliminary one": b"HTTP/1.1 100 Continue\r\n\r\n",
    "too many preliminary ones": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 200,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_a_failure_not_an_answer(garbage: bytes) -> None:
    with raw_server(garbage) as port:
        error = await failure(f"http://127.0.0.1:{port}/in")
    told = rf"127\.0\.0\.1:{port} closed the connection without|the connection to 127\.0\.0\.1:{port} failed: "
    assert re.match(told, str(error)), error


DELIVERED_NEVERTHELESS = {
    "a body cut short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "a body of a terabyte": b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\nabc",
    "invalid chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no length": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000,
    "invalid gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\n",
    "hints before the answer": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + TAKEN,
    "a Retry-After": b"HTTP/1.1 200 OK\r\nRetry-After: 100\r\n\r\n",
}


@pytest.mark.parametrize("answer", DELIVERED_NEVERTHELESS.values(), ids=DELIVERED_NEVERTHELESS)
@pytest.mark.parametrize("hangs", [False, True])
async def test_2xx_means_delivered_whatever_the_body_is(answer: bytes, hangs: bool) -> None:
    with raw_server(answer, hangs=hangs) as port:
        async with opened(f"http://127.0.0.1:{port}/in") as sink, asyncio.timeout(3):
            await sink.write(make_records(2))


async def test_2xx_before_the_end_of_the_request_is_a_failure() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", reads=False, hangs=True) as port:
        async with opened(f"http://127.0.0.1:{port}/in") as sink:
            with pytest.raises(SinkFailure, match=r"answers 200 before it has received the whole request"):
                await sink.write(make_records(1, data={"long": "x" * (32 << 20)}))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 10_000_000, ": x{200}…"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\nshort", ": short"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 999999999999\r\n\r\n", ""),
        (b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n", "(: short)?"),
        (b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nsh\r\n3\r\nort\r\n0\r\n\r\n", ": short"),
    ],
)
async def test_only_the_beginning_of_a_refusal_is_read(answer: bytes, text: str) -> None:
    with raw_server(answer, hangs="…" in text) as port:
        async with opened(f"http://127.0.0.1:{port}/in") as sink, asyncio.timeout(3):
            with pytest.raises(SinkReject) as raised:
                await sink.write(make_records(1))
    assert re.fullmatch(r".* answers 400 Bad Request" + text, raised.value.reasons[0])


async def test_a_refusal_without_an_end_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.api.http_request._TEXT_PATIENCE", 0.1)
    with raw_server(b"HTTP/1.1 422 No\r\nContent-Length: 9\r\n\r\nbeg", hangs=True) as port:
        async with opened(f"http://127.0.0.1:{port}/in") as sink:
            with pytest.raises(SinkReject) as raised:
                await sink.write(make_records(1))
    assert raised.value.reasons[0].endswith(": beg")


# TLS


async def test_a_self_signed_certificate_is_trusted_with_ca_file(tmp_path: Path) -> None:
    tls, certificate = make_certificate(tmp_path)
    with webhook_server(tls) as server:
        async with opened(server.url, ca_file=certificate, secret=Secret(SECRET)) as sink:
            await sink.check()
            await sink.write(make_records(3, data={"long": "x" * 1_000_000}))
            assert len(server.received) == 1
            server.answer = refusing(2, text=b"no")
            with pytest.raises(SinkReject) as raised:
                await sink.write(make_records(3))
    assert [*raised.value.reasons] == [1]


@pytest.mark.logs(TLS_LINE)
async def test_nothing_is_sent_to_a_server_with_an_untrusted_certificate(tmp_path: Path) -> None:
    tls, certificate = make_certificate(tmp_path)
    _, other = make_certificate(tmp_path, name="other.example")
    with webhook_server(tls) as server:
        error = await failure(server.url)
        assert str(error) == (
            f"the certificate of localhost:{server.port} is not trusted: self-signed certificate;"
            " ca_file is for certificates that the system does not know"
        )
        error = await failure(server.url, ca_file=other)
        assert str(error) == f"the certificate of localhost:{server.port} is not trusted: self-signed certificate"
        error = await failure(server.url.replace("localhost", "127.0.0.1"), ca_file=certificate)
        assert "IP address mismatch" in str(error)
        assert server.received == []


@pytest.mark.logs(TLS_LINE)
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x15\x03\x01\x00\x02\x02\x28"])
async def test_https_to_a_server_without_tls_is_reported(answer: bytes) -> None:
    with raw_server(answer, reads=False) as port:
        error = await failure(f"https://127.0.0.1:{port}/in")
        assert re.match(rf"(no TLS connection to|the connection to) 127\.0\.0\.1:{port}", str(error)), error
        with pytest.raises(SinkRetry, match=rf"127\.0\.0\.1:{port}"):
            await make(f"https://127.0.0.1:{port}/in").check()


# The method `check`


async def test_check_connects_and_sends_nothing(server: WebhookServer) -> None:
    server.answer = always(500)
    await make(server.url).check()
    assert server.received == []
    await asyncio.to_thread(server.stop)
    with pytest.raises(SinkRetry, match=rf"the connection to localhost:{server.port} failed: Connection refused"):
        await make(server.url).check()
    with pytest.raises(SinkRetry, match=r"the connection to no-such-host\.invalid failed"):
        await make("https://no-such-host.invalid/in").check()


@pytest.mark.logs(TLS_LINE)
async def test_check_verifies_the_certificate(tmp_path: Path) -> None:
    tls, certificate = make_certificate(tmp_path)
    with webhook_server(tls) as server:
        await make(server.url, ca_file=certificate).check()
        with pytest.raises(SinkRetry, match="is not trusted: self-signed certificate"):
            await make(server.url).check()


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://hidden@crm.example/in"}, r"url: expected an HTTP URL"),
        ({"url": "https:crm.example"}, r"url: has no host"),
        ({"url": "https://hidden@/in"}, r"url: has no host"),
        ({"url": "https://crm.example:hidden/in"}, r"url: its port is invalid"),
        ({"url": "https://crm.example:99999/in"}, r"url: its port is invalid"),
        ({"url": "https://crm.example:0/in"}, r"url: its port is invalid"),
        ({"url": "https://crm.example/żółw/hidden"}, r"url: outside the host, write letters beyond ASCII"),
        ({"url": "https://żółw:hidden@crm.example/in"}, r"url: outside the host, write letters beyond ASCII"),
        ({"url": "https://crm.example/hidden\x00"}, r"url: outside the host, write letters beyond ASCII"),
        ({"secret": "hidden"}, r"secret: expected at least 16 characters"),
        ({"secret": "whsec_" + base64.b64encode(b"only 15 letters").decode()}, r"secret: expected at least 16 bytes"),
        ({"secret": "whsec_"}, r"secret: expected at least 16 bytes after whsec_"),
        ({"secret": "whsec_hidden hidden hidden hidden"}, r"secret: the text after whsec_ is not base64"),
        ({"secret": "whsec_hidden-ż" + "A" * 40}, r"secret: the text after whsec_ is not base64"),
        ({"headers": {"Content-Type": "hidden"}}, r"headers\.Content-Type: the sink sets this header"),
        ({"headers": {"webhook-ID": "hidden"}}, r"headers\.webhook-ID: the sink sets this header"),
        ({"headers": {"Host": "hidden"}}, r"headers\.Host: the sink sets this header"),
        ({"headers": {"X-A": "a", "x-a": "hidden"}}, r"headers\.x-a: is given twice"),
        ({"headers": {"X A": "hidden"}}, r"headers: 'X A' cannot be the name of a header"),
        ({"headers": {"X-A\r\nX-B": "hidden"}}, r"headers: 'X-A\\r\\nX-B' cannot be the name of a header"),
        ({"headers": {"X-A": "hidden\r\nX-B: c"}}, r"headers\.X-A: expected one line of ASCII characters"),
        ({"headers": {"X-A": "hidden\n"}}, r"headers\.X-A: expected one line of ASCII characters"),
        ({"headers": {"X-A": "hiddenż"}}, r"headers\.X-A: expected one line of ASCII characters"),
        (
            {"url": "https://a:hidden@crm.example", "headers": {"authorization": "hidden"}},
            r"headers: give either Authorization, or user and password in the url",
        ),
        ({"url": "http://crm.example", "ca_file": "none.pem"}, r"ca_file: has no effect, because the url is not https"),
        ({"ca_file": "none.pem"}, r"ca_file: .*none\.pem cannot be read: No such file"),
        ({"ca_file": "empty.pem"}, r"ca_file: .*empty\.pem holds no certificates in PEM"),
    ],
)
def test_invalid_options_are_refused_without_showing_secrets(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match=rf"^sinks\.crm\.{message}") as raised:
        made(tmp_path, **options)
    assert "hidden" not in str(raised.value)


def test_the_host_may_have_letters_beyond_ascii() -> None:
    target = Target(WebhookOptions(url=Url("https://user:pass@żółw.example:8443/in?x=1")), "sinks.crm")
    assert target.host == "xn--w-uga1v8h.example:8443"


def test_options_may_be_in_files_and_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text("https://user:hidden@crm.example/in\n")
    (tmp_path / "key").write_text(SECRET + "\n")
    monkeypatch.setenv("CRM_KEY", "hidden")
    sink = made(
        tmp_path, url={"file": "url"}, secret={"file": "key"}, headers={"X-Api-Key": {"env": "CRM_KEY"}}, gzip=True
    )
    assert sink.options.headers["X-Api-Key"] == "hidden"
    assert "hidden" not in repr(sink.options)
    with pytest.raises(ConfigError, match=r"CRM_NONE is not set"):
        made(tmp_path, headers={"X-Api-Key": {"env": "CRM_NONE"}})


# The installed daemon


def test_records_from_an_outage_arrive_later_in_order(tmp_path: Path) -> None:
    server = WebhookServer()
    url = server.url.replace("://", "://shop:hidden@")
    shop = Shop(
        tmp_path,
        {"sinks.crm": f'type = "webhook"\nurl = "{url}"\nsecret = "{SECRET}"\nheaders = {{ X-Api-Key = "hidden" }}'},
    )
    refused = f"the connection to localhost:{server.port} failed: Connection refused"
    checked = run_ingestd("check", config=shop.config)
    assert checked.returncode != 0
    assert refused in checked.stdout + checked.stderr
    try:
        with shop.serve() as daemon:
            for number in range(30):
                event = {"key": "Page View", "anonymousId": f"visitor-{number}", "data": {"number": number}}
                assert daemon.post("/track", event, shop.public.id).status == 200
            wait_until(lambda: daemon.read_log() or any(f"sink:crm: {refused}" in line for line in daemon.log))
            server.start()
            wait_until(lambda: sum(len(each.records) for each in server.received) == 30)
            assert daemon.post("/track", event, shop.public.id).status == 200
            wait_until(lambda: sum(len(each.records) for each in server.received) == 31)
    finally:
        server.stop()
    assert [record for each in server.received for record in each.records] == shop.exported()
    assert "hidden" not in "\n".join([*daemon.log, checked.stdout, checked.stderr])
    assert SECRET not in "\n".join(daemon.log)
