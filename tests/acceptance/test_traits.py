"""Bounds of traits, on both stores: a request beyond them gets 400, and a profile drops its oldest traits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Reply, Shop
from tests.support.redis_shop import redis_shop

MOST, SIZE = 500, 64 * 1024
_numbers = count()


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        yield Shop(folder)
        return
    with redis_shop(folder, options={"appendfsync": "no"}) as made:
        yield made


def visitor() -> str:
    return f"visitor-{next(_numbers)}"


def traits(number: int, prefix: str = "trait") -> dict[str, Any]:
    return {f"{prefix}-{each:04}": each for each in range(number)}


def padded(size: int) -> dict[str, Any]:
    """Two traits with `size` bytes of names and values as JSON."""
    return {"é": ["ü", {"a": None}], "name": "x" * (size - len('éname["ü",{"a":null}]""'.encode()))}


def identify(shop: Shop, daemon: Daemon, body: dict[str, Any]) -> Reply:
    return daemon.post("/identify/public", json.dumps(body).encode(), shop.public.id)


def assert_too_much(problem: dict[str, Any]) -> None:
    assert (problem["status"], problem["code"]) == (400, "invalid_envelope")
    assert [fault["pointer"] for fault in problem["errors"]] == ["/traits"]


def dropped(daemon: Daemon) -> float:
    return daemon.metric("ingestd_identity_traits_dropped_total")


@pytest.mark.parametrize("given", [traits(MOST), padded(SIZE), {}, {"x" * (SIZE - 1): 1}])
def test_a_request_within_both_bounds_is_stored_whole(shop: Shop, daemon: Daemon, given: dict[str, Any]) -> None:
    before = dropped(daemon)
    body = {"anonymousId": visitor(), "traits": given}
    assert identify(shop, daemon, body).status == 200
    assert identify(shop, daemon, {**body, "userId": body["anonymousId"]}).status == 200
    assert shop.stored()[-1]["traits"] == given
    assert dropped(daemon) == before


@pytest.mark.parametrize(
    "given",
    [traits(MOST + 1), padded(SIZE + 1), {"x" * SIZE: 1}, traits(40_000), {"a": traits(20_000), "b": ["x" * 300_000]}],
    ids=["501", "a-byte-too-many", "a-long-name", "40000", "large-values"],
)
def test_a_request_beyond_a_bound_is_refused_and_stores_nothing(
    shop: Shop, daemon: Daemon, given: dict[str, Any]
) -> None:
    records, sessions = len(shop.stored()), daemon.metric("ingestd_sessions_begun_total")
    body = {"anonymousId": visitor(), "userId": visitor(), "traits": given, "messageId": visitor()}
    answer = identify(shop, daemon, body)
    assert answer.status == 400
    assert_too_much(answer.json())
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(shop.stored()) == records
    assert daemon.metric("ingestd_sessions_begun_total") == sessions
    # The store has no session, no link and no message of the request.
    answer = daemon.post("/track", {"key": "Page View", "anonymousId": body["anonymousId"], "data": {}}, shop.public.id)
    assert answer.json()["session"]["isNew"]
    assert shop.stored()[-1]["userId"] is None
    assert identify(shop, daemon, {**body, "traits": {"plan": "gold"}}).json()["session"]["isNew"] is False
    assert shop.stored()[-1]["traits"] == {"plan": "gold"}


@pytest.mark.parametrize("alone", [False, True])
def test_in_a_batch_only_the_request_beyond_the_bound_is_refused(shop: Shop, daemon: Daemon, alone: bool) -> None:
    who = visitor()
    page = {"key": "Page View", "anonymousId": who, "data": {}}
    large = {"type": "identify", "anonymousId": who, "userId": "ann", "traits": traits(MOST + 1), "messageId": who}
    small = {**large, "traits": {"plan": "gold"}}
    events = [large] if alone else [page, large, page, small, page, large]
    records = len(shop.stored())
    results = daemon.post("/batch", {"events": events}, shop.public.id).json()["results"]
    refused = [index for index, result in enumerate(results) if result["status"] != 200]
    assert refused == ([0] if alone else [1, 5])
    for index in refused:
        assert_too_much(results[index])
    stored = shop.stored()[records:]
    assert [record["userId"] for record in stored] == ([] if alone else [None, None, "ann", "ann"])
    assert [result["session"]["isNew"] for result in results if result["status"] == 200] == (
        [] if alone else [True, False, False, False]
    )


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_beyond_the_bound_of_the_store_traits_of_strangers_are_not_kept(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        tables = {"store": 'max_size = "100KiB"'}
        shop = Shop(tmp_path, tables) if kind == "sqlite" else stack.enter_context(redis_shop(tmp_path, tables=tables))

        def send(daemon: Daemon, count: int, **members: Any) -> float:
            """Send identify requests of new visitors. Returns how many traits were not kept."""
            before = daemon.metric("ingestd_identity_traits_refused_total")
            for _ in range(count):
                body = {"anonymousId": visitor(), "traits": {"about": "x" * 3000}, **members}
                assert identify(shop, daemon, body).status == 200
            return daemon.metric("ingestd_identity_traits_refused_total") - before

        records = len(shop.exported())
        with shop.serve() as daemon:
            assert 0 < send(daemon, 30) < 25
            assert send(daemon, 1, userId=visitor()) == 0, "users have more room"
            assert daemon.metric("ingestd_state_max_bytes") == 100 * 1024
        text = shop.command("check")
        assert "max_size = 100KiB; profiles are nearly full" in text
        with shop.serve() as daemon:
            assert daemon.metric("ingestd_state_profile_bytes") > 50_000
            assert send(daemon, 3) == 3, "also after a restart"
            shop.config.write_text(shop.config.read_text().replace("100KiB", "1MiB"))
            os.kill(daemon.pid, signal.SIGHUP)
            wait_until(lambda: daemon.metric("ingestd_config_generation") == 2)
            assert send(daemon, 3) == 0
        assert len(shop.exported()) == records + 37, "every request is stored"


def test_the_precedence_of_faults(shop: Shop, daemon: Daemon) -> None:
    body: dict[str, Any] = {"anonymousId": visitor(), "traits": traits(MOST + 1)}
    assert daemon.post("/identify/public", body, "no-key").status == 401
    answer = identify(shop, daemon, {**body, "sessionId": "no-uuid"})
    assert [fault["pointer"] for fault in answer.json()["errors"]] == ["/sessionId"]
    assert identify(shop, daemon, {**body, "traits": [1] * (MOST + 1)}).status == 400
    # The body of a repeated message is checked before its message id.
    known = {"anonymousId": visitor(), "messageId": visitor()}
    assert identify(shop, daemon, known).status == 200
    assert identify(shop, daemon, {**known, "traits": traits(MOST + 1)}).status == 400
    # Additional fields of an event are no traits.
    event = {"key": "Page View", "anonymousId": visitor(), "data": {}, "traits": traits(MOST + 1)}
    assert daemon.post("/track", event, shop.public.id).status == 200


def test_a_full_profile_drops_its_oldest_traits_and_counts_them(shop: Shop, daemon: Daemon) -> None:
    before, who, user = dropped(daemon), visitor(), visitor()
    for number in range(4):
        body = {"anonymousId": who, "traits": traits(300, f"anonymous-{number}")}
        assert identify(shop, daemon, body).status == 200
    assert dropped(daemon) - before == 4 * 300 - MOST
    assert identify(shop, daemon, {"anonymousId": visitor(), "userId": user, "traits": traits(200)}).status == 200
    # The first link of the other visitor: the newest of their 500 traits and the user's 200 stay.
    assert identify(shop, daemon, {"anonymousId": who, "userId": user, "traits": traits(1, "own")}).status == 200
    assert dropped(daemon) - before == 4 * 300 - MOST + 201
    for size in (SIZE - 1000, 2000):
        assert identify(shop, daemon, {"anonymousId": visitor(), "userId": user, "traits": padded(size)}).status == 200
    assert dropped(daemon) - before >= 4 * 300 - MOST + 201 + 300
