"""SIGKILL at any moment under load: each answered event is stored once, and nothing is stored in part."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Load, Sent, wait_until
from tests.support.daemon import Daemon, Shop

ROUNDS = 4


@pytest.mark.parametrize("seed", [1, 2])
def test_answered_events_survive_kills_exactly_once(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    shop = Shop(tmp_path)
    sent: list[Sent] = []
    for number in range(ROUNDS):
        with Daemon(shop.config) as daemon, Load(daemon.port, shop.public.id, f"round-{number}") as load:
            # At any time between the first answers and full load.
            wait_until(lambda answers=load.sent: len(answers) > 10)  # type: ignore[misc]  # no type for a default
            time.sleep(chance.uniform(0.0, 0.4))
            daemon.kill()
            load.join()
        sent += load.sent
    with shop.serve():
        pass

    journal = shop.exported()
    stored = {record["data"]["number"]: record for record in journal}
    answered = [each for each in sent if each.status == 200]
    assert len(answered) > ROUNDS
    assert {each.status for each in sent} <= {200, None}
    assert max(Counter(record["data"]["number"] for record in journal).values()) == 1
    assert {each.number for each in answered} <= stored.keys() <= {each.number for each in sent}
    for each in answered:
        record = stored[each.number]
        assert each.session == {"sessionId": record["sessionId"], "isNew": record["sessionIsNew"]}
        assert record["anonymousId"] == each.visitor

    sessions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in journal:
        sessions[record["anonymousId"]].append(record)
    for records in sessions.values():
        assert len({record["sessionId"] for record in records}) == 1
        assert [record["sessionIsNew"] for record in records].count(True) == 1

    archive = shop.archive.read_bytes()
    assert archive.endswith(b"\n")
    delivered = [json.loads(line) for line in archive.splitlines()]
    assert {record["id"]: record for record in delivered} == {record["id"]: record for record in journal}
