"""The network of a Redis Cluster is cut in two at several places. No answered event is lost, doubled or in disorder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.cluster_daemons import is_derived, opened, serving
from tests.support.cut_sinks import calling
from tests.support.cuttable_network import Cut, CuttableNetwork, cuttable_network
from tests.support.journals import until
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_server import RedisServer
from tests.support.senders import LONG

DAEMONS = {"daemon-0", "daemon-1"}

pytestmark = pytest.mark.logs(
    r"ingestd.redis WARNING partition \d\d: events cannot be stored: ",
    r"ingestd.redis WARNING events cannot be stored: partitions? [\d, ]+: Redis cannot be reached: ",  # at the opening
    r"ingestd.redis WARNING partition \d\d: the primary is ",
    r"ingestd.consumers WARNING (deriver|sink|journal): .*; it is tried again",
)


@pytest.fixture(scope="module")
def network() -> Iterator[CuttableNetwork]:
    with cuttable_network() as network:
        for daemon in DAEMONS:
            network.name_client(daemon, daemon)
        yield network


@pytest.fixture(scope="module")
def nodes(network: CuttableNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster"), network=network) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: RedisCluster, network: CuttableNetwork) -> Iterator[RedisCluster]:
    """The cluster of the module, whole before and after the test."""
    yield nodes
    network.heal()
    nodes.settle()


def name_of(node: RedisServer) -> str:
    return node.folder.name


def others(cluster: RedisCluster, *nodes: RedisServer) -> set[str]:
    return {name_of(node) for node in cluster.nodes if node not in nodes}


@pytest.mark.parametrize("how", [Cut.SILENT, Cut.REFUSED])
async def test_daemons_that_do_not_reach_a_primary_wait_for_it_and_serve_all_other_tenants(
    cluster: RedisCluster, network: CuttableNetwork, how: str
) -> None:
    """The nodes see each other, so none is replaced."""
    # The patience is longer than any time for which a busy machine lets the process of this test wait.
    async with serving(cluster, patience=4.0) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        theirs = daemons.of_node(primary)
        rest = [name for name in daemons.senders if name not in theirs]
        network.cut(DAEMONS, {name_of(primary)}, how)
        await until(lambda: daemons.away() == [theirs, theirs])
        refused = [daemons.senders[name].refused for name in rest]
        await daemons.more(30, rest)
        assert [daemons.senders[name].refused for name in rest] == refused
        network.heal()
        await daemons.more(20)
        assert daemons.away() == [[], []]
        assert daemons.partitions[0].database.link.failovers == 0


async def test_a_daemon_that_hears_no_answers_of_a_primary_leaves_the_partitions_to_the_others(
    cluster: RedisCluster, network: CuttableNetwork
) -> None:
    """Its writes arrive, and change nothing that others have done meanwhile."""
    async with serving(cluster) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        theirs = daemons.of_node(primary)
        network.cut({"daemon-0"}, {name_of(primary)}, Cut.NO_ANSWERS)
        await until(lambda: daemons.away() == [theirs, []])
        await daemons.more(50)
        # The other daemon derives in all of them, although the first held some of the leases.
        for name in theirs:
            await is_derived(daemons.backends[1].backends[int(name)])
        network.heal()
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])


async def test_a_primary_that_only_daemons_reach_answers_nothing_that_its_successor_lacks(
    cluster: RedisCluster, network: CuttableNetwork
) -> None:
    async with serving(cluster) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        replica = cluster.replica_of(primary)
        network.cut({name_of(primary)}, others(cluster, primary))
        await until(lambda: replica in cluster.primaries(), LONG)
        # The successor has no replica, as its only one is cut off.
        await until(lambda: "NOREPLICAS" in f"{daemons.partitions[0].problem()}", LONG)
        network.heal()
        await asyncio.to_thread(cluster.settle)
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])
        assert cluster.primary_of_key(daemons.partitions[0].database.prefix) is replica


async def test_a_daemon_that_is_cut_off_together_with_a_primary_answers_nothing(
    cluster: RedisCluster, network: CuttableNetwork
) -> None:
    """The daemon and the primary are a minority. The other daemon and the majority go on."""
    async with serving(cluster) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        replica = cluster.replica_of(primary)
        network.cut({"daemon-0", name_of(primary)}, others(cluster, primary) | {"daemon-1"})
        everything = [partition.name for partition in daemons.backends[0].partitions]
        await until(lambda: daemons.away()[0] == everything, LONG)
        await until(lambda: replica in cluster.primaries(), LONG)
        network.heal()
        await asyncio.to_thread(cluster.settle)
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])


async def test_a_primary_that_is_cut_off_together_with_its_replica_loses_nothing(
    cluster: RedisCluster, network: CuttableNetwork
) -> None:
    """The replica confirms its writes, so they are answered, until both know that they are a minority."""
    async with serving(cluster) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        replica, theirs = cluster.replica_of(primary), daemons.of_node(primary)
        network.cut({name_of(primary), name_of(replica)}, others(cluster, primary, replica))
        await until(lambda: daemons.away() == [theirs, theirs], LONG)
        network.heal()
        await asyncio.to_thread(cluster.settle)
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])


@pytest.mark.parametrize("cuts", [2, pytest.param(12, marks=pytest.mark.long)])
async def test_sinks_beside_the_journal_have_what_it_has_after_cuts(
    cluster: RedisCluster, network: CuttableNetwork, cuts: int
) -> None:
    """A primary is cut off from all other nodes, while daemons still write to it and sinks run."""
    async with opened(cluster, 2) as backends, calling([each.backends[0] for each in backends]):
        for _ in range(cuts):
            await asyncio.sleep(0.5)
            primary = cluster.primary_of_key(backends[0].backends[0].database.prefix)
            replica = cluster.replica_of(primary)
            network.cut({name_of(primary)}, others(cluster, primary))
            await until(lambda: replica in cluster.primaries(), LONG)  # noqa: B023 - within this turn
            network.heal()
            await asyncio.to_thread(cluster.settle)
