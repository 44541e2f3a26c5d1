"""A partition of a Redis Cluster keeps the contracts of stores and journals, on a real cluster of six nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha1
from pathlib import Path

import pytest

from ingestd.api.backend import Backend
from ingestd.testing.journals import JournalContract
from ingestd.testing.stores import StoreContract
from tests.support.redis_cluster import RedisCluster, cluster_backend, redis_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    # No node ends, and a busy machine must not make it look like that.
    options = {"cluster-node-timeout": "5000"}
    with redis_cluster(tmp_path_factory.mktemp("cluster"), replicas=False, options=options) as cluster:
        yield cluster


class _Cluster:
    @pytest.fixture(autouse=True)
    def _serve(self, cluster: RedisCluster) -> None:
        self.cluster = cluster

    @asynccontextmanager
    async def backend(self, folder: Path) -> AsyncIterator[Backend]:
        prefix = sha1(str(folder).encode(), usedforsecurity=False).hexdigest() + ":"
        backend = cluster_backend(self.cluster, prefix=prefix, partitions=2, timeout=2, patience=5)
        await backend.open(serving=True)
        try:
            yield backend.backends[1]
        finally:
            await backend.close()


class TestClusterStore(_Cluster, StoreContract):
    pass


class TestClusterJournal(_Cluster, JournalContract):
    pass
