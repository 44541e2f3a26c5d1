"""Refusals of a whole batch, its counts, and the effects of a batch that is cut off or cannot be stored."""

from __future__ import annotations

import gzip
import json
import random
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import BASE, Daemon, Reply, Shop, sign
from tests.support.redis_shop import redis_shop

PAGE: dict[str, Any] = {"key": "Page View", "anonymousId": "visitor", "data": {}}
BATCH = {"events": [PAGE] * 3}
PATHS = ["/batch", "/customer-events/batch"]


def send(shop: Shop, daemon: Daemon, path: str, body: Any, **headers: str) -> Reply:
    """Sends the body with the key of the path, signed correctly unless a signature is given."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    if path == "/batch":
        return daemon.post(path, raw, shop.public.id, **headers)
    return daemon.post(path, raw, shop.server.id, **{"x_signature": sign(shop.server.secret, raw), **headers})


def assert_refused(answer: Reply, status: int, code: str, *pointers: str) -> None:
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer.body
    problem = answer.json()
    assert (problem["status"], problem["code"], problem["success"]) == (status, code, False)
    assert [fault["pointer"] for fault in problem.get("errors", [])] == [*pointers]
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "results" not in problem


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "code", "pointers"),
    [
        pytest.param({"events": []}, "invalid_envelope", ["/events"], id="none"),
        pytest.param({"events": [PAGE] * 1001}, "invalid_envelope", ["/events"], id="1001"),
        pytest.param({"events": [0] * 100_000}, "invalid_envelope", ["/events"], id="a-great-many"),
        pytest.param({"events": {"0": PAGE}}, "invalid_envelope", ["/events"], id="an-object"),
        pytest.param({"events": None}, "invalid_envelope", ["/events"], id="null"),
        pytest.param({"batch": [PAGE]}, "invalid_envelope", ["/events"], id="another-name"),
        pytest.param([PAGE], "not_an_object", [], id="a-list"),
        pytest.param(b"", "invalid_json", [], id="empty"),
        pytest.param(b'{"events": [{}, {]}', "invalid_json", [], id="no-JSON"),
        pytest.param(b'{"events": [' + b"[" * 5000 + b"]" * 5000 + b"}", "invalid_json", [], id="nested-and-open"),
        pytest.param(b'{"events": [{}, {"a": "x}]}', "invalid_json", [], id="a-string-without-end"),
        pytest.param(b'{"events": [{}, nope], "sentAt": nope}', "invalid_json", [], id="no-JSON-beside-events"),
    ],
)
def test_a_body_that_is_no_batch_is_refused_as_a_whole(
    shop: Shop, daemon: Daemon, path: str, body: Any, code: str, pointers: list[str]
) -> None:
    before = len(shop.stored())
    assert_refused(send(shop, daemon, path, body), 400, code, *pointers)
    assert len(shop.stored()) == before


def test_keys_that_may_not_send_events_may_not_send_batches(shop: Shop, daemon: Daemon) -> None:
    ungranted = shop.create_key("server", shop.tenant, grants=False)
    raw = json.dumps(BATCH).encode()
    assert_refused(daemon.post("/batch", raw, None), 401, "missing_key")
    assert_refused(
        daemon.post("/batch", raw, shop.server.id, x_signature=sign(shop.server.secret, raw)), 401, "invalid_key"
    )
    assert_refused(daemon.post("/customer-events/batch", raw, shop.server.id), 401, "invalid_signature")
    assert_refused(daemon.post("/customer-events/batch", raw, shop.public.id), 403, "no_app_access")
    # The signature of each event does not sign the batch.
    signature = sign(shop.server.secret, json.dumps(PAGE).encode())
    assert_refused(send(shop, daemon, "/customer-events/batch", raw, x_signature=signature), 401, "invalid_signature")
    wait_until(
        lambda: (
            daemon.post("/customer-events/batch", raw, ungranted.id, x_signature=sign(ungranted.secret, raw)).status
            == 403
        )
    )
    # A client that serialises the body again after it has signed it.
    spaced = json.dumps(BATCH, indent=1).encode()
    signature = sign(shop.server.secret, json.dumps(BATCH, separators=(",", ":")).encode())
    assert send(shop, daemon, "/customer-events/batch", spaced, x_signature=signature).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_batch_may_be_larger_than_a_single_event(shop: Shop, daemon: Daemon, path: str) -> None:
    large = {**PAGE, "data": {"text": "x" * 700_000}}
    assert send(shop, daemon, path, {"events": [large] * 5}).status == 200
    assert_refused(send(shop, daemon, path, {"events": [large] * 6}), 413, "too_large")
    raw = json.dumps({"events": [large] * 6}).encode()
    signature = sign(shop.server.secret, raw)
    assert_refused(
        send(shop, daemon, path, gzip.compress(raw), content_encoding="gzip", x_signature=signature), 413, "too_large"
    )


@pytest.mark.parametrize("path", PATHS)
def test_pages_may_send_batches(daemon: Daemon, path: str) -> None:
    headers = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    answer = daemon.request("OPTIONS", BASE + path, headers=headers)
    assert (answer.status, answer.headers["access-control-allow-methods"]) == (204, "POST")
    answer = daemon.request("GET", BASE + path)
    assert_refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST, OPTIONS"


def test_each_event_is_counted_once_and_the_request_has_one_duration(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.serve() as daemon:
        events = [
            PAGE,
            {**PAGE, "messageId": "m"},
            {**PAGE, "messageId": "m"},
            {**PAGE, "data": 1},
            {**PAGE, "key": "?"},
            5,
        ]
        assert daemon.post("/batch", {"events": [*events, {"type": "identify", "anonymousId": "v"}]}, shop.public.id)
        send(shop, daemon, "/customer-events/batch", {"events": [*events, {"type": "identify"}]})
        daemon.post("/batch", BATCH, "a guess")
        daemon.post("/batch", {"events": []}, shop.public.id)
        told = {
            (endpoint, key, outcome): daemon.metric(
                f'ingestd_events_total{{endpoint="{endpoint}",key="{key}",outcome="{outcome}"}}'
            )
            for endpoint in ("track", "customer-events")
            for key in ("Page View", "")
            for outcome in ("accepted", "duplicate", "invalid", "unknown_key", "unauthorized")
        }
        assert {which: count for which, count in told.items() if count} == {
            ("track", "Page View", "accepted"): 2, ("track", "Page View", "duplicate"): 1,
            ("track", "Page View", "invalid"): 1, ("track", "", "unknown_key"): 1,
            ("track", "", "invalid"): 2, ("track", "", "unauthorized"): 1,
            ("customer-events", "Page View", "accepted"): 1, ("customer-events", "Page View", "duplicate"): 2,
            ("customer-events", "Page View", "invalid"): 1, ("customer-events", "", "unknown_key"): 1,
            ("customer-events", "", "invalid"): 1,
        }  # fmt: skip
        assert daemon.metric('ingestd_identifies_total{outcome="accepted"}') == 1
        assert daemon.metric('ingestd_identifies_total{outcome="invalid"}') == 1
        took = "ingestd_http_request_duration_seconds_count"
        assert daemon.metric(f'{took}{{endpoint="track-batch"}}') == 3
        assert daemon.metric(f'{took}{{endpoint="customer-events-batch"}}') == 1
        assert daemon.metric(f'{took}{{endpoint="track"}}') == 0


# Limits


def test_a_batch_takes_a_token_for_each_event_or_none(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_key = "10/h"'})
    with shop.serve() as daemon:
        assert send(shop, daemon, "/batch", {"events": [PAGE] * 6}).status == 200
        answer = send(shop, daemon, "/batch", {"events": [PAGE] * 5})
        assert_refused(answer, 429, "limited")
        assert 300 <= int(answer.headers["retry-after"]) <= 360
        assert daemon.metric('ingestd_events_total{endpoint="track",key="",outcome="limited"}') == 5
        assert send(shop, daemon, "/batch", {"events": [PAGE] * 3}).status == 200
        assert send(shop, daemon, "/batch", b"no JSON").status == 400  # takes one token, like a single event
        assert daemon.post("/track", PAGE, shop.public.id).status == 429
    assert len(shop.exported("--type", "event")) == 9


def test_a_batch_larger_than_the_burst_waits_for_a_full_bucket(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_key = "10/h"'})
    with shop.serve() as daemon:
        assert send(shop, daemon, "/batch", {"events": [PAGE] * 30}).status == 200
        # The bucket owes the tokens beyond its size.
        answer = daemon.post("/track", PAGE, shop.public.id)
        assert answer.status == 429
        assert 20 * 360 < int(answer.headers["retry-after"]) <= 21 * 360


# A daemon or a disk that fails


@contextmanager
def no_writing(daemon: Daemon) -> Iterator[None]:
    """The daemon cannot make any file larger than it is."""
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_each_event_that_could_not_be_stored_is_answered_so(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    new = {**PAGE, "anonymousId": "new", "messageId": "m"}
    link = {"type": "identify", "anonymousId": "new", "userId": "user"}
    with shop.serve() as daemon:
        known = send(shop, daemon, "/batch", BATCH).json()["results"][0]["session"]
        with no_writing(daemon):
            wait_until(lambda: send(shop, daemon, "/batch", BATCH).json()["results"][0]["status"] == 503)
            answer = send(shop, daemon, "/batch", {"events": [PAGE, {**PAGE, "data": 1}, new, new, link]})
            assert answer.status == 200
            results = answer.json()["results"]
            assert [result["status"] for result in results] == [503, 400, 503, 503, 503]
            assert results[0]["code"] == "unavailable"
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        # A refused event has left nothing behind: no session, no link, no message.
        results = send(shop, daemon, "/batch", {"events": [PAGE, new, new]}).json()["results"]
        assert [result["session"]["isNew"] for result in results] == [False, True, True]
        assert results[0]["session"]["sessionId"] == known["sessionId"]
    assert [record["userId"] for record in shop.stored() if record["anonymousId"] == "new"] == [None]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_events_of_an_answered_batch_survive_a_kill(seed: int, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    answered: list[tuple[str, dict[str, Any]]] = []

    def keep_sending(thread: int) -> None:
        for turn in range(10_000):
            names = [f"{thread}-{turn}-{number}" for number in range(100)]
            events = [{**PAGE, "anonymousId": f"v-{number % 7}", "name": name} for number, name in enumerate(names)]
            with suppress(OSError, HTTPException):
                answer = daemon.post("/batch", {"events": events}, shop.public.id)
                results = answer.json()["results"]
                answered.extend((name, result["session"]) for name, result in zip(names, results, strict=True))
                continue
            return

    with Daemon(shop.config) as daemon:
        threads = [threading.Thread(target=keep_sending, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answered) > 300)
        time.sleep(random.Random(seed).uniform(0, 0.3))
        daemon.kill()
        for thread in threads:
            thread.join()
    with shop.serve():
        pass
    stored = {record["extra"]["name"]: record for record in shop.stored()}
    assert len(stored) == len(shop.stored())
    for name, session in answered:
        assert session == {"sessionId": stored[name]["sessionId"], "isNew": stored[name]["sessionIsNew"]}
    first: dict[str, list[bool]] = {}
    for record in stored.values():
        first.setdefault(record["anonymousId"], []).append(record["sessionIsNew"])
    assert all(each.count(True) == 1 for each in first.values())


def test_while_redis_is_gone_each_event_is_answered_so(tmp_path: Path) -> None:
    with redis_shop(tmp_path) as shop, shop.serve() as daemon:
        assert send(shop, daemon, "/batch", BATCH).status == 200
        shop.redis.kill()
        events = [PAGE, {**PAGE, "data": 1}, {**PAGE, "messageId": "m"}, {"type": "identify", "anonymousId": "v"}]
        answer = send(shop, daemon, "/batch", {"events": events})
        assert [result["status"] for result in answer.json()["results"]] == [503, 400, 503, 503]
        shop.redis.start()
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        answer = send(shop, daemon, "/batch", {"events": events})
        assert [result["status"] for result in answer.json()["results"]] == [200, 400, 200, 200]
        assert len(shop.stored()) == 6
