"""Attribution on a partition of a Redis Cluster: steps, leases, kills and entries of several trips.

The other tests of attribution run on a single Redis only. A partition has the same scripts and the same journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingestd.api.backend import Backend
from ingestd.support.periodic import TIMING
from tests.plugins.attribution import test_bounds, test_replay, test_rollups
from tests.plugins.attribution.test_redis import LEASE, prefix_of
from tests.support import attribution
from tests.support.redis_cluster import RedisCluster, cluster_backend, redis_cluster

pytestmark = pytest.mark.logs("sent again with another value", "is in another currency")

LARGE = (
    "test_a_step_ends_before_it_has_too_many_bytes",
    "test_of_thousands_of_touches_the_first_and_the_newest_count",
    "test_of_a_thousand_visitors_of_a_user_the_newest_count",
    "test_of_a_thousand_users_of_a_visitor_the_last_counts",
)
"""Tests whose entries are read and written in several trips."""

for module in (test_replay, test_rollups):
    globals().update({name: each for name, each in vars(module).items() if name.startswith("test_")})
globals().update({name: getattr(test_bounds, name) for name in LARGE})


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
        patch.setattr(TIMING, "redis_report_shared", LEASE)
        patch.setattr(TIMING, "redis_cursor", LEASE / 10)
        patch.setattr(TIMING, "redis_report_shared", 1.2 * LEASE)
        yield
