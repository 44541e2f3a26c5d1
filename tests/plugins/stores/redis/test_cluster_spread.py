"""A simulated day of 200 tenants of very different sizes on a Redis Cluster of three primaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
from redis.crc import key_slot

from ingestd.api.events import Record
from ingestd.plugins.stores.redis.cluster.backend import ClusterBackend
from ingestd.storage.placements import index_of_tenant
from tests.support.journals import append
from tests.support.redis_cluster import RedisCluster, cluster_backend, redis_cluster
from tests.support.redis_server import RedisServer
from tests.support.senders import NOW
from tests.support.zipf import Nodes, zipf_sizes

PARTITIONS = 64
EVENTS = 20_000
SIZE = 1_000  # bytes of a record


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def memory(cluster: RedisCluster, nodes: Sequence[RedisServer]) -> list[int]:
    """The bytes of the data of each node."""
    found = []
    for node in nodes:
        with node.client() as client:
            facts = client.info("memory")
        found.append(int(facts["used_memory_dataset"]))
    return found


async def append_day(backend: ClusterBackend, sizes: Sequence[int]) -> list[int]:
    """Append the records of tenants with these sizes. Return the number of records of each partition."""
    records: defaultdict[int, int] = defaultdict(int)
    for number, size in enumerate(sizes):
        records[index_of_tenant(f"shop-{number}", PARTITIONS)] += size
    record = Record("event", NOW, b"x" * SIZE)
    for index, count in records.items():
        for start in range(0, count, 500):
            await append(backend.backends[index], [record] * min(500, count - start))
    return [records[index] for index in range(PARTITIONS)]


@pytest.mark.logs("the primary is .*: no event was answered 503")
async def test_a_day_of_200_tenants_is_spread_within_a_factor_of_two_over_the_nodes(cluster: RedisCluster) -> None:
    nodes = cluster.primaries()
    empty = memory(cluster, nodes)
    backend = cluster_backend(cluster, prefix="day:", partitions=PARTITIONS, timeout=5, patience=10)
    await backend.open(serving=True)
    try:
        sizes = await append_day(backend, zipf_sizes(200, EVENTS))
        slots = [key_slot(each.database.prefix.encode()) for each in backend.backends]
        plan = Nodes(sizes, [nodes.index(cluster.primary_of(slot)) for slot in slots], 3)
        while plan.factor > 2:
            partition, node = plan.move_one()
            cluster.move_slot(slots[partition], nodes[node])
        assert plan.moves <= 2
        counted = [0, 0, 0]
        for each, slot in zip(backend.backends, slots, strict=True):
            stats = await each.journal.extent()
            counted[nodes.index(cluster.primary_of(slot))] += stats.records
        assert counted == plan.load
        assert sum(counted) == sum(sizes)
        used = [now - before for now, before in zip(memory(cluster, nodes), empty, strict=True)]
        assert max(used) <= 2 * min(used)
    finally:
        await backend.close()
