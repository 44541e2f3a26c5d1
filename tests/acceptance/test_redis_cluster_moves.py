"""A partition of a Redis Cluster moves from node to node while all tenants send, however large it is."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.test_redis_cluster import post
from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop, key_of
from tests.support.daemon import Daemon, run_ingestd
from tests.support.journeys import TRACK
from tests.support.ports import own_host
from tests.support.redis_cluster import RedisCluster, redis_cluster

BATCH = "/batch"
VISITORS = 20
AT_ONCE = 10  # keys, as redis-cli moves them
LONG = 120.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster"), replicas=False) as cluster:
        yield cluster


class Statuses:
    """Tenants that send one event after the other, and the statuses of their answers."""

    def __init__(self) -> None:
        self.of: dict[str, Counter[int]] = {}
        self._stopping = threading.Event()

    @contextmanager
    def collected(self, daemon: Daemon, tenants: list[str]) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(daemon, tenant)) for tenant in tenants]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _run(self, daemon: Daemon, tenant: str) -> None:
        self.of[tenant] = Counter()
        while not self._stopping.wait(0.05):
            self.of[tenant][post(daemon, tenant, "someone")] += 1


def fill(daemon: Daemon, tenant: str, megabytes: int) -> int:
    """Returns the number of stored events."""
    stored = 0
    for _ in range(max(1, megabytes // 3)):
        events = [
            {"key": "Page View", "anonymousId": f"filler-{number}", "data": {"text": os.urandom(1500).hex()}}
            for number in range(900)
        ]
        answer = daemon.post(BATCH, {"events": events}, key_of(tenant))
        assert answer.status == 200, answer.body
        stored += len(events)
    return stored


def sessions(daemon: Daemon, tenant: str) -> list[str]:
    found = []
    for visitor in range(VISITORS):
        answer = daemon.post(TRACK, {"key": "Page View", "anonymousId": f"v{visitor}", "data": {}}, key_of(tenant))
        assert answer.status == 200, answer.body
        found.append(answer.json()["session"]["sessionId"])
    return found


def order(daemon: Daemon, tenant: str) -> None:
    for visitor in range(VISITORS):
        data = {"order_id": f"o{visitor}", "revenue": 40}
        status = post(daemon, tenant, f"v{visitor}", key="Order Completed", data=data, messageId=f"once-{visitor}")
        assert status == 200


def exported(shop: ClusterShop, tenant: str) -> list[str]:
    done = run_ingestd("events", "export", "--tenant", tenant, config=shop.config, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def orders_of(lines: list[str]) -> Counter[str]:
    """How often each order is attributed."""
    return Counter(json.loads(line)["orderId"] for line in lines if '"type":"attribution"' in line)


@pytest.mark.parametrize("megabytes", [4, pytest.param(700, marks=pytest.mark.long)])
def test_a_partition_moves_three_times_while_all_tenants_send(
    cluster: RedisCluster, tmp_path: Path, megabytes: int
) -> None:
    shop = ClusterShop(tmp_path, cluster=cluster, host=own_host())
    with shop.serve_with(1) as (daemon,):
        tenant, *others = shop.tenants
        filled = fill(daemon, tenant, megabytes)
        before = sessions(daemon, tenant)
        order(daemon, tenant)
        statuses = Statuses()
        slot, source = shop.slot_of(tenant), shop.node_of(tenant)
        with statuses.collected(daemon, others):
            for to in [*(node for node in cluster.primaries() if node is not source), source]:
                keys = cluster.ask(cluster.primary_of(slot), "CLUSTER COUNTKEYSINSLOT", slot)
                assert cluster.move_slot(slot, to, parts=keys // AT_ONCE) > megabytes
                wait_until(lambda: post(daemon, tenant, "someone") == 200, LONG)
        assert {*others} == statuses.of.keys()
        assert {status for found in statuses.of.values() for status in found} == {200}
        assert min(found.total() for found in statuses.of.values()) > 10
        assert sessions(daemon, tenant) == before
        order(daemon, tenant)
        wait_until(
            lambda: orders_of(exported(shop, tenant)) == dict.fromkeys(map("o{}".format, range(VISITORS)), 1), LONG
        )
        lines = exported(shop, tenant)
        assert sum("filler-" in line for line in lines) == filled
        for visitor in range(VISITORS):
            assert sum(f'"once-{visitor}"' in line for line in lines) == 1
        assert daemon.metric("ingestd_store_losses_total") == 0
