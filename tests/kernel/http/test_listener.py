"""The public listener in-process: answers when plugins fail or too much waits, and callers that leave."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from functools import partial
from pathlib import Path

import pytest
from tornado.httpclient import AsyncHTTPClient

from ingestd.api import hookimpl
from ingestd.api.errors import Limited
from ingestd.api.events import Event, Principal, Request
from ingestd.api.options import Duration, Origin, Size
from ingestd.api.times import format_time, now
from ingestd.config import HttpOptions
from ingestd.http.app import BASE_PATH
from ingestd.http.routes import OWN_OPERATIONS
from ingestd.plugins.auth.replays import ReplayRules
from ingestd.plugins.segment import SegmentPlugin
from ingestd.plugins.segment.intake import SegmentIntake
from tests.support.door import PAGE_VIEW, MakeDoor, Slow, open_door


@pytest.fixture
def door(each_http_server: str) -> MakeDoor:
    return partial(open_door, server=each_http_server)


class Broken:
    @hookimpl
    def enrich(self, event: Event) -> None:
        raise RuntimeError("the password is hunter2")


@pytest.mark.logs("a request to track failed")
async def test_a_plugin_that_always_fails_is_logged_once_a_second(
    tmp_path: Path, door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path, Broken()) as public:
        begun = time.monotonic()
        for _ in range(20):
            assert (await public.post()).code == 500
        seconds = time.monotonic() - begun
        assert 1 <= len([each for each in caplog.records if each.name == "ingestd.pipeline"]) <= 1 + seconds
        assert public.counted("failed") == 20


@pytest.mark.logs("a request to track failed")
async def test_a_failing_plugin_is_a_500_without_internal_details(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, Broken()) as public:
        answer = await public.post()
        assert answer.code == 500
        problem = json.loads(answer.body)
        assert problem["code"] == "internal_error"
        assert b"hunter2" not in answer.body
        assert b"enrich" not in answer.body
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert await public.records() == []
        assert public.counted("failed") == 1


class Strict:
    @hookimpl
    def enrich(self, event: Event) -> None:
        raise Limited("Slowly, please.", retry_after=7)


async def test_a_plugin_may_refuse_a_request_with_its_own_answer(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path, Strict()) as public:
        answer = await public.post()
        assert (answer.code, answer.headers["Retry-After"]) == (429, "7")
        assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"].split(", ")
        assert public.counted("limited") == 1


async def test_beyond_max_waiting_callers_get_503_with_retry_after(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow, options=HttpOptions(max_waiting=1)) as public:
        first = asyncio.ensure_future(public.post())
        await slow.arrived.wait()
        second = await public.post()
        assert (second.code, second.headers["Retry-After"]) == (503, "1")
        slow.go.set()
        assert (await first).code == 200
        assert (await public.post()).code == 200
        assert len(await public.records()) == 2
        assert public.counted("unavailable") == 1


async def test_the_event_of_a_client_that_leaves_before_its_answer_is_stored(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow) as public:
        body = json.dumps(PAGE_VIEW).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", public.port)
        writer.write(
            b"POST %b/track HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (BASE_PATH.encode(), len(body))
        )
        writer.write(body)
        await slow.arrived.wait()
        writer.close()
        slow.go.set()
        while not await public.records():  # noqa: ASYNC110 - no answer shows the end
            await asyncio.sleep(0.01)
        assert [record["key"] for record in await public.records()] == ["Page View"]
        while public.ingest.active:  # noqa: ASYNC110 - the request ends soon after
            await asyncio.sleep(0.01)


async def test_an_incomplete_body_is_no_event(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        _, writer = await asyncio.open_connection("127.0.0.1", public.port)
        writer.write(b"POST %b/track HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % BASE_PATH.encode())
        await writer.drain()
        while not public.ingest.active:  # noqa: ASYNC110 - no answer shows the arrival
            await asyncio.sleep(0.01)
        writer.close()
        while public.ingest.active:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await public.records() == []


async def test_answers_during_draining_close_the_connection(tmp_path: Path, door: MakeDoor) -> None:
    slow = Slow()
    async with door(tmp_path, slow) as public:
        answer = asyncio.ensure_future(public.post())
        await slow.arrived.wait()
        public.ingest.draining = True
        drained = asyncio.ensure_future(public.connections.drain(30, asyncio.Event()))
        await asyncio.sleep(0)
        slow.go.set()
        assert (await answer).headers["Connection"] == "close"
        assert await drained == 0


async def test_draining_ends_after_its_time_limit_with_the_number_of_unfinished_requests(
    tmp_path: Path, door: MakeDoor
) -> None:
    slow = Slow()
    async with door(tmp_path, slow) as public:
        answer = asyncio.ensure_future(public.post())
        await slow.arrived.wait()
        assert await public.connections.drain(0, asyncio.Event()) == 1
        slow.go.set()
        assert (await answer).code == 200


async def test_simultaneous_requests_with_one_message_id_are_stored_once_and_answered_alike(
    tmp_path: Path, door: MakeDoor
) -> None:
    slow = Slow()
    async with door(tmp_path, slow) as public:
        bodies = [{**PAGE_VIEW, "messageId": "m", "anonymousId": f"visitor {number}"} for number in range(5)]
        answers = [asyncio.ensure_future(public.post(body)) for body in bodies]
        await slow.arrived.wait()
        slow.go.set()
        done = [await answer for answer in answers]
        assert [answer.code for answer in done] == [200] * 5
        assert len({answer.body for answer in done}) == 1
        assert len(await public.records()) == 1
        assert (public.counted("accepted"), public.counted("duplicate")) == (1, 4)


async def raw_answer(port: int, headers: bytes, body: bytes) -> tuple[set[bytes], bytes]:
    """The header lines of an answer except the request's id, and its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST %b/track HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n"
    writer.write(head % (BASE_PATH.encode(), headers, len(body)) + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"Content-Length"))
    answer = await reader.readexactly(length)
    writer.close()
    own = {line for line in lines if line.startswith(b"X-Request-Id: ")}
    assert len(own) == 1
    return {*lines} - own, answer


@pytest.mark.parametrize("origins", [(Origin("*"),), (Origin("https://shop.example"),)])
async def test_the_header_connection_of_a_request_does_not_change_its_answer(
    tmp_path: Path, door: MakeDoor, origins: tuple[Origin, ...]
) -> None:
    async with door(tmp_path, options=HttpOptions(allowed_origins=origins)) as public:
        body = json.dumps({**PAGE_VIEW, "messageId": "the same"}).encode()
        origin = b"Origin: https://shop.example\r\n"
        plain = await raw_answer(public.port, origin, body)
        kept = await raw_answer(public.port, origin + b"Connection: keep-alive\r\n", body)
        closed_lines, closed_body = await raw_answer(public.port, origin + b"Connection: close\r\n", body)
        assert plain == kept == (closed_lines - {b"Connection: close"}, closed_body)
        assert b"Connection: close" in closed_lines


async def test_a_foreign_page_cannot_send_to_any_path_and_its_body_is_not_kept(tmp_path: Path, door: MakeDoor) -> None:
    """Browsers send the requests of any page, but for the headers of a script: the `Origin` tells them apart."""
    shop = Origin("https://shop.example")
    async with door(
        tmp_path, SegmentPlugin(SegmentPlugin.Options()), options=HttpOptions(allowed_origins=(shop,))
    ) as public:
        body = json.dumps({"writeKey": "shop", "type": "page", "anonymousId": "v", **PAGE_VIEW}).encode()
        paths = [f"{BASE_PATH}{path}" for path in OWN_OPERATIONS]
        paths += [route.path for route in SegmentIntake.routes if route.method == "POST"]
        for path in paths:
            for origin in ("https://evil.example", "http://shop.example", "null", f"{shop}, https://evil.example"):
                answer = await public.fetch(path, body, headers={"Origin": origin})
                assert (answer.code, json.loads(answer.body)["code"]) == (403, "foreign_origin"), (path, origin)
                assert json.loads(answer.body)["message"]
                assert answer.headers["Vary"] == "Origin"
        assert public.counted("forbidden", "") == 8  # /track and /batch
        assert await public.records() == []
        reader, writer = await asyncio.open_connection("127.0.0.1", public.port)
        head = b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\nContent-Length: 9000000\r\n\r\n"
        writer.write(head)
        assert await reader.readline() == b"HTTP/1.1 403 Forbidden\r\n"  # and it waits for no byte of the body
        writer.close()
        for headers in ({}, {"Origin": str(shop)}):
            assert (await public.fetch("/v1/page", body, headers=headers)).code == 200
        assert (await public.post(Origin=str(shop))).code == 200
        assert len(await public.records()) == 3


class Signing:
    """Takes every request as signed, with the rules against replays."""

    def __init__(self, max_age: str) -> None:
        self._rules = ReplayRules(max_age=Duration.parse(max_age), require_message_id=True)

    @hookimpl
    def authenticate(self, request: Request) -> Principal:
        rules = self._rules
        return Principal("shop", "key", signed=True, check_event=rules.check, message_life=rules.message_life)


@pytest.mark.parametrize("max_age", ["1m", "24h", "100h"])
async def test_a_copy_of_a_signed_event_is_known_until_it_is_too_old(
    tmp_path: Path, door: MakeDoor, max_age: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, most = now(), Duration.parse(max_age).milliseconds
    ahead = min(most, 300_000)  # the sender's clock is wrong by as much as is tolerated
    body = {**PAGE_VIEW, "messageId": "m", "timestamp": format_time(received + ahead)}
    async with door(tmp_path, Signing(max_age)) as public:
        answers = []
        for later in (0, most, most + ahead - 1, most + ahead, most + ahead + 1):
            monkeypatch.setattr("ingestd.api.times.now", lambda later=later: received + later)
            answers.append((await public.post(body)).code)
        assert answers == [200, 200, 200, 200, 400]
        assert (public.counted("accepted"), public.counted("duplicate")) == (1, 3)


async def test_a_request_may_name_its_scheme_and_host(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        body = json.dumps(PAGE_VIEW).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", public.port)
        target = f"http://shop.example{BASE_PATH}/track?x=1".encode()
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (target, len(body), body))
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert len(await public.records()) == 1


async def test_a_request_target_that_is_neither_a_path_nor_a_url_is_malformed(tmp_path: Path, door: MakeDoor) -> None:
    async with door(tmp_path) as public:
        for target in (b"http://[", b"*", b"track"):
            reader, writer = await asyncio.open_connection("127.0.0.1", public.port)
            writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % target)
            assert await reader.readline() == b"HTTP/1.1 400 Bad Request\r\n"
            writer.close()


@pytest.mark.parametrize("path", ["/track", "/customer-events", "/identify/public", "/batch", "/customer-events/batch"])
async def test_a_trailing_slash_is_the_same_path(tmp_path: Path, door: MakeDoor, path: str) -> None:
    body = {"events": [PAGE_VIEW]} if path.endswith("batch") else PAGE_VIEW
    status = 403 if "customer-events" in path else 200  # public keys have no access to it
    async with door(tmp_path) as public:
        for same in (path, f"{path}/", f"{path}/?x=1"):
            assert (await public.post(body, same)).code == status
        for other in (f"{path}//", f"/{path}", f"{path}/x"):
            assert (await public.post(body, other)).code == 404
        assert len(await public.records()) == (3 if status == 200 else 0)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_a_path_with_a_slash_takes_the_same_methods(tmp_path: Path, door: MakeDoor, method: str) -> None:
    async with door(tmp_path) as public:
        for path in ("/track", "/track/"):
            answer = await AsyncHTTPClient().fetch(
                f"http://127.0.0.1:{public.port}{BASE_PATH}{path}",
                method=method, raise_error=False, allow_nonstandard_methods=True,
            )  # fmt: skip
            assert (answer.code, answer.headers["Allow"]) == (405, "POST, OPTIONS")
            preflight = await AsyncHTTPClient().fetch(
                f"http://127.0.0.1:{public.port}{BASE_PATH}{path}", method="OPTIONS"
            )
            assert preflight.code == 204


async def test_a_gzip_body_of_several_members_is_one_body(tmp_path: Path, door: MakeDoor) -> None:
    body = json.dumps(PAGE_VIEW).encode()
    packed = [gzip.compress(part) for part in (b"", body[:20], b"", body[20:], b"")]
    async with door(tmp_path, options=HttpOptions(max_body=Size(100_000))) as public:
        for sent, status in (
            (b"".join(packed), 200),
            (packed[1], 400),
            (b"".join(packed) + b"xx", 400),
            (b"".join(packed) + bytes(8), 400),
            (gzip.compress(body) + gzip.compress(b" " * 100_000), 413),
        ):
            whole = b"Content-Length: %d\r\n\r\n%b" % (len(sent), sent)
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in sent)
            for framed in (whole, b"Transfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunks):
                reader, writer = await asyncio.open_connection("127.0.0.1", public.port)
                head = f"POST {BASE_PATH}/track HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
                writer.write(head.encode() + framed)
                assert (await reader.readline()).split()[1] == b"%d" % status
                writer.close()
        assert len(await public.records()) == 2
