"""A daemon that finds its Redis through a Sentinel, with ingestd's default options."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.daemon import run_ingestd
from tests.support.journeys import TRACK, Sender
from tests.support.redis_sentinel import watched_redis
from tests.support.redis_shop import RedisShop


def test_a_planned_failover_answers_all_events_and_loses_none(tmp_path: Path) -> None:
    """The new primary has no replica: the former primary is the only candidate and is still a primary."""
    with watched_redis(tmp_path / "redis", replicas=1, sentinels=1) as watched:
        sentinel = f"127.0.0.1:{watched.sentinels[0].port}"
        shop = RedisShop(
            tmp_path, {"plugins.redis": f'sentinels = ["{sentinel}"]\npatience = "30s"'}, redis=watched.primary
        )
        done = run_ingestd("check", "--json", config=shop.config)
        found = {each["name"]: each for each in json.loads(done.stdout)["store"]}
        assert (found["replicas"]["wait_replicas"], found["replicas"]["replicas"]) == (1, 1)
        assert found["sentinels"]["text"] == f"1 of 1 Sentinels name 127.0.0.1:{watched.primary.port}"
        with shop.serve() as daemon:
            sender, former = Sender(shop, daemon), watched.primary
            sent = [sender.send(TRACK, "visitor") for _ in range(20)]
            watched.fail_over()
            while daemon.metric("ingestd_redis_failovers_total") == 0:
                sent.append(sender.send(TRACK, "visitor"))
            sent += [sender.send(TRACK, "visitor") for _ in range(20)]
            line = f"the primary is 127.0.0.1:{watched.primary.port}, no longer 127.0.0.1:{former.port}: no event was"
            assert daemon.ops("/readyz").status == 200
        assert sum(line in each for each in daemon.log) == 1
        watched.reunite()
        assert [record["id"] for record in shop.exported("--type", "event")] == sent
