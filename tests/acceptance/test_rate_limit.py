"""Rate limits and client addresses in the daemon: a 429 with a time to wait, and the stored addresses."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, Shop, run_ingestd

EVENT = {"key": "Page View", "anonymousId": "visitor", "data": {}}
VISITOR = {"anonymousId": "visitor"}
BEHIND_A_PROXY = 'trusted_proxies = ["127.0.0.0/8"]'


def refused(daemon: Daemon, by: str) -> float:
    return daemon.metric(f'ingestd_rate_limit_refused_total{{by="{by}"}}')


def test_by_default_there_is_no_limit(shop: Shop, daemon: Daemon) -> None:
    assert {daemon.post("/track", EVENT, shop.public.id).status for _ in range(100)} == {200}
    assert (refused(daemon, "key"), refused(daemon, "address")) == (0, 0)


def test_a_key_over_its_rate_is_answered_429_with_the_time_to_wait(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_key = "3/h"'})
    with shop.serve() as daemon:
        assert [daemon.post("/track", EVENT, shop.public.id).status for _ in range(3)] == [200] * 3
        answer = daemon.post("/track", EVENT, shop.public.id)
        assert (answer.status, answer.headers["content-type"]) == (429, "application/problem+json")
        assert 1100 <= int(answer.headers["retry-after"]) <= 1200
        assert "Retry-After" in answer.headers["access-control-expose-headers"].split(", ")
        problem = answer.json()
        assert (problem["status"], problem["code"], problem["success"]) == (429, "limited", False)
        assert "key" in problem["detail"]
        assert shop.public.id not in answer.body.decode()
        assert daemon.post("/identify/public", VISITOR, shop.public.id).status == 429
        assert (
            daemon.post("/customer-events", EVENT, shop.public.id).status == 429
        )  # the limit is checked before the grants
        assert daemon.post("/track", b"no JSON", shop.public.id).status == 429
        # Another key has another limit.
        assert daemon.post_signed(EVENT, shop.server).status == 200
        assert daemon.post("/track", EVENT, "a guess").status == 401
        assert (refused(daemon, "key"), refused(daemon, "address")) == (4, 0)
        assert daemon.metric('ingestd_events_total{endpoint="track",key="",outcome="limited"}') == 2
        assert daemon.metric('ingestd_identifies_total{outcome="limited"}') == 1
        # Other requests than events are not limited.
        assert daemon.request("OPTIONS", "/api/v1/analytics/track").status == 204
    assert len(shop.exported("--type", "event")) == 4


def test_requests_with_wrong_signatures_do_not_use_up_the_limit_of_a_key(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_key = "1/h"'})
    with shop.serve() as daemon:
        for _ in range(3):
            assert daemon.post("/customer-events", EVENT, shop.server.id, x_signature="0" * 64).status == 401
        assert daemon.post_signed(EVENT, shop.server).status == 200
        assert daemon.post_signed(EVENT, shop.server).status == 429


def test_each_request_counts_for_its_address_whatever_its_answer(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_address = "41/h"'})
    with shop.serve() as daemon:
        body = gzip.compress(b"x")[:-4]
        answers = [
            daemon.post("/track", EVENT, None),
            daemon.post("/track", EVENT, "a guess"),
            daemon.post("/customer-events", EVENT, shop.server.id, x_signature="0" * 64),
            daemon.post("/track", b"no JSON", shop.public.id),
            daemon.post("/customer-events", body, shop.server.id, x_signature="0" * 64, content_encoding="gzip"),
            daemon.post("/track", EVENT, "a guess"),
            daemon.post("/customer-events", EVENT, shop.server.id, x_signature="0" * 64),
            daemon.post("/track", EVENT, shop.public.id),
        ]
        assert [answer.status for answer in answers] == [401, 401, 401, 400, 400, 429, 429, 429]
        assert "address" in answers[-1].json()["detail"]
        assert refused(daemon, "address") == 3
    assert shop.stored() == []


def test_an_address_over_its_rate_costs_no_more_than_its_answer(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_address = "1/h"\nper_address_burst = 9'})
    with shop.serve() as daemon:
        assert daemon.post("/track", EVENT, "a guess").status == 401
        # A correct signature is not checked either, so that nobody can guess signatures.
        assert daemon.post_signed(EVENT, shop.server).status == 429
        headers = {"x_signature": "0" * 64, "content_encoding": "gzip"}
        assert daemon.post("/customer-events", b"no gzip", shop.server.id, **headers).status == 429
        assert refused(daemon, "address") == 2
    assert shop.stored() == []


def test_behind_a_trusted_proxy_the_limit_applies_to_the_client(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_address = "1/h"', "http": BEHIND_A_PROXY})
    with shop.serve() as daemon:
        clients = [
            "203.0.113.7",
            "203.0.113.7",
            "203.0.113.8",
            "198.51.100.1, 203.0.113.8",
            "2001:db8::1",
            "2001:db8::2",
        ]
        statuses = [daemon.post("/track", EVENT, shop.public.id, x_forwarded_for=each).status for each in clients]
    assert statuses == [200, 429, 200, 429, 200, 429]


def test_without_a_trusted_proxy_clients_cannot_choose_their_address(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": 'per_address = "2/h"', "http": 'store_address = "whole"'})
    with shop.serve() as daemon:
        clients = [f"203.0.113.{n}" for n in range(4)]
        statuses = [daemon.post("/track", EVENT, shop.public.id, x_forwarded_for=each).status for each in clients]
    assert statuses == [200, 200, 429, 429]
    assert [record["context"] for record in shop.stored()] == [{"ip": "127.0.0.1"}] * 2


@pytest.mark.parametrize(
    ("option", "ipv4", "ipv6"),
    [
        ("no", {}, {}),
        ("truncated", {"ip": "203.0.113.0"}, {"ip": "2001:db8:1::"}),
        ("whole", {"ip": "203.0.113.7"}, {"ip": "2001:db8:1:2::7"}),
    ],
)
def test_the_client_s_address_is_stored_as_configured_if_none_was_sent(
    tmp_path: Path, option: str, ipv4: dict[str, str], ipv6: dict[str, str]
) -> None:
    shop = Shop(tmp_path, {"http": f'{BEHIND_A_PROXY}\nstore_address = "{option}"'})
    page = {"page": {"url": "https://shop.example/"}}
    sent = [{"ip": ip} for ip in ("198.51.100.1", "", None, 7, {"v": 4})]
    with shop.serve() as daemon:

        def post(path: str, body: object, client: str = "203.0.113.7") -> None:
            assert daemon.post(path, body, shop.public.id, x_forwarded_for=client).status == 200

        post("/track", EVENT)
        post("/track", EVENT, "[2001:db8:1:2::7]:4711")
        post("/track", {**EVENT, "context": page})
        post("/identify/public", VISITOR)
        for context in sent:
            post("/track", {**EVENT, "context": context})
        post("/identify/public", {**VISITOR, "context": sent[0]})
        # The client of that request is the shop's backend.
        assert daemon.post_signed(EVENT, shop.server, x_forwarded_for="203.0.113.7").status == 200
        assert daemon.post_signed({**EVENT, "context": sent[0]}, shop.server).status == 200
    contexts = [record["context"] for record in shop.stored()]
    assert contexts == [ipv4, ipv6, {**page, **ipv4}, ipv4, *sent, sent[0], {}, sent[0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('per_key = "100"', "per_key: expected a whole number from 1 per s, m, h or d, such as"),
        ('per_adress = "1/s"', "per_adress: unknown option; did you mean plugins.rate_limit.per_address?"),
        ('per_key = "1/s"\nper_key_burst = 0', "per_key_burst: expected"),
        ("per_key_burst = 5", "per_key_burst: has no meaning without per_key"),
    ],
)
def test_a_mistake_in_the_options_stops_the_start(tmp_path: Path, options: str, message: str) -> None:
    shop = Shop(tmp_path, {"plugins.rate_limit": options})
    done = run_ingestd("serve", config=shop.config)
    assert done.returncode == 78
    assert f"plugins.rate_limit.{message}" in done.stderr
