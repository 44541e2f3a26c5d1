"""Two daemons on a Redis Cluster write the tables of one lake, and one of them is killed again and again."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from ingestd.plugins.sinks.iceberg import IcebergSink
from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop, key_of
from tests.support.forked import QUICK_REDIS, short_times
from tests.support.ports import own_host
from tests.support.redis_cluster import redis_cluster
from tests.support.sinks import configured

pytestmark = pytest.mark.long


@pytest.mark.logs("sink .*", ".*")
def test_two_daemons_of_a_cluster_write_each_record_once(tmp_path: Path) -> None:
    catalog = {"uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"file://{tmp_path}/lake"}
    section = 'type = "iceberg"\nflush_every = "500ms"\ncatalog = { '
    section += ", ".join(f'{name} = "{value}"' for name, value in catalog.items()) + " }"
    with redis_cluster(tmp_path / "cluster") as cluster, short_times(**QUICK_REDIS), ExitStack() as stack:
        shop = ClusterShop(tmp_path, {"sinks.tables": section}, cluster=cluster, host=own_host())
        with shop.serve_with(2) as daemons:
            number = 0
            for _ in range(12):
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    for tenant in shop.tenants:
                        event = {"key": "Page View", "data": {}, "anonymousId": f"v{number}"}
                        assert daemons[0].post("/track", event, key_of(tenant)).status == 200
                        number += 1
                daemons[1].kill()
                daemons[1] = stack.enter_context(shop.start(1))
            sink = configured(IcebergSink, "tables", {"catalog": catalog}, tmp_path)

            def ids() -> Counter[str]:
                tables = [sink.tables.load(name) for name in ("events", "attributions", "records")]
                return Counter(id_ for table in tables for id_, _ in sink.tables.ids(table, 0, 10**14))

            stored = {record["id"] for record in shop.stored()}
            assert len(stored) == number
            wait_until(lambda: {*ids()} >= stored, 120.0)
            assert ids() == dict.fromkeys(stored, 1)
            snapshot = sink.tables.load("events").current_snapshot()
            assert snapshot is not None
            assert snapshot.summary is not None
            assert len(json.loads(snapshot.summary.additional_properties["ingestd.complete-to"])) == 6
            sink.tables.close()
