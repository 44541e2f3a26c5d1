"""Tests of several daemons on one Redis pass on a Redis Cluster too.

Random kills are in `test_redis_cluster_kills`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance import test_redis_daemons
from tests.support.daemon import Daemon
from tests.support.forked import QUICK_REDIS
from tests.support.one_partition_shop import OnePartitionShop
from tests.support.redis_cluster import RedisCluster, redis_cluster

OTHER = "test_killed_at_random_they_are_one_shop"

globals().update({
    name: each for name, each in vars(test_redis_daemons).items() if name.startswith("test_") and name != OTHER
})  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def arrangement(cluster: RedisCluster) -> Iterator[None]:
    """The tests that make their own shop make it on the cluster."""

    @contextmanager
    def shop_on_cluster(folder: Path, *, host: str = "127.0.0.1") -> Iterator[OnePartitionShop]:
        yield OnePartitionShop(folder, host=host, cluster=cluster)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_redis_daemons, "redis_shop", shop_on_cluster)
        patch.setattr(test_redis_daemons, "SETTLED", 2 * QUICK_REDIS["redis_report_shared"])
        yield


@pytest.fixture(scope="module")
def redis(cluster: RedisCluster, tmp_path_factory: pytest.TempPathFactory) -> OnePartitionShop:
    return OnePartitionShop(tmp_path_factory.mktemp("shop"), cluster=cluster)


@pytest.fixture(scope="module")
def daemons(redis: OnePartitionShop) -> Iterator[list[Daemon]]:
    with redis.serve_with(3) as running:
        yield running
