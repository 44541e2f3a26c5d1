"""Real payloads of shops: the daemon stores them or reports exactly the values with a wrong type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.daemon import Daemon, Shop
from tests.support.event_keys import KEYS, wrong_pointers
from tests.support.payloads import SHARED_PAYLOADS, shared_payloads


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("payloads"))


@pytest.fixture(scope="module")
def daemon(shop: Shop) -> Iterator[Daemon]:
    with shop.serve() as running:
        yield running


# Without the folder these cases are not collected.
if SHARED_PAYLOADS.is_dir():

    @pytest.mark.parametrize(("key", "data"), shared_payloads())
    def test_a_real_payload_is_stored_or_its_faults_are_located(
        shop: Shop, daemon: Daemon, key: str, data: dict[str, Any]
    ) -> None:
        answer = daemon.post("/track", {"key": key, "anonymousId": "visitor", "data": data}, shop.public.id)
        pointers = wrong_pointers(key, data)
        if key not in KEYS:
            assert (answer.status, answer.json()["code"]) == (404, "unknown_key")
        elif pointers:
            assert (answer.status, answer.json()["code"]) == (400, "invalid_data")
            assert {error["pointer"] for error in answer.json()["errors"]} == pointers
        else:
            assert answer.status == 200

    def test_payloads_are_stored_as_sent(shop: Shop, daemon: Daemon) -> None:
        cases = [case.values for case in shared_payloads()]
        sent = [(key, data) for key, data in cases if key in KEYS and not wrong_pointers(key, data)]
        for key, data in sent:
            body = {"key": key, "anonymousId": "again", "data": data}
            assert daemon.post("/track", body, shop.public.id).status == 200
        stored = [
            record for record in shop.exported() if record["type"] == "event" and record["anonymousId"] == "again"
        ]
        assert [(record["key"], record["data"]) for record in stored] == sent
