"""Attribution on a partition of a Redis Cluster: steps, leases, kills and entries of several trips.

The long tests of drawn journals run on a single Redis only. A partition has the same scripts and the same journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from ingestd.api.backend import Backend
from ingestd.support.periodic import TIMING
from tests.integration import test_attribution_bounds, test_attribution_replay, test_attribution_rollups
from tests.integration.test_redis_attribution import LEASE, prefix_of
from tests.support import attribution
from tests.support.redis_cluster import RedisCluster, cluster_backend, redis_cluster

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

for module in (test_attribution_bounds, test_attribution_replay, test_attribution_rollups):
    tests = {name: each for name, each in vars(module).items() if name.startswith("test_")}
    globals().update({name: each for name, each in tests.items() if not is_hypothesis_test(each)})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    # No node ends, and a busy machine must not make it look like that.
    options = {"cluster-node-timeout": "5000"}
    with redis_cluster(tmp_path_factory.mktemp("cluster"), replicas=False, options=options) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def arrangement(cluster: RedisCluster) -> Iterator[None]:
    """Replace the SQLite back end of these tests."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Backend]:
        backend = cluster_backend(cluster, prefix=prefix_of(folder), partitions=2, timeout=5, patience=10)
        await backend.open(serving=True)
        try:
            yield backend.backends[1]
        finally:
            await backend.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribution, "sqlite_backend", opened)
        patch.setattr(TIMING, "redis_lease", LEASE)
        patch.setattr(TIMING, "redis_heartbeat", LEASE / 3)
        patch.setattr(TIMING, "redis_cursor", LEASE / 10)
        patch.setattr(TIMING, "redis_report_shared", 1.2 * LEASE)
        yield
