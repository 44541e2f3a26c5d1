"""`ingestd check` says which answered events the replicas of a Redis do not keep."""

from __future__ import annotations

import pytest

from ingestd.plugins.stores.redis.durability import Durability, replication


@pytest.mark.parametrize(
    ("replicas", "waits_for", "grace", "parts"),
    [
        (1, 1, 30.0, []),
        (2, 2, 0.0, []),
        (2, 2, 30.0, ["promotion_grace"]),
        (2, 1, 30.0, ["wait_replicas = 2", "promotion_grace"]),
        (3, 1, 0.0, ["wait_replicas = 3"]),
    ],
)
def test_what_an_answer_does_not_wait_for(replicas: int, waits_for: int, grace: float, parts: list[str]) -> None:
    found = Durability("7.0.0", "master", replicas, True, "everysec", "noeviction", "standalone")
    told = replication(found, waits_for=waits_for, grace=grace, with_sentinels=True)
    assert told.status == "ok"
    assert told.text.startswith(f"an answer waits for {waits_for} of {replicas} replica")
    assert [part for part in ("wait_replicas", "promotion_grace") if part in told.text] == [
        part.partition(" ")[0] for part in parts
    ]
    assert all(part in told.text for part in parts)
