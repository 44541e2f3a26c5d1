"""A partition moves to another node of a cluster piece by piece, and a move that is given up is noticed as a loss."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from redis.crc import key_slot

from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import Unavailable
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.support.periodic import TIMING
from tests.support.cluster_daemons import opened, serving
from tests.support.journals import append, read_all, running, until
from tests.support.redis_cluster import RedisCluster, announced_port, redis_cluster
from tests.support.redis_server import RedisServer
from tests.support.senders import LONG, NOW

PIECE = 64 << 10

LINES = pytest.mark.logs(
    r"ingestd.redis WARNING partition \d\d: events cannot be stored: ",
    r"ingestd.redis WARNING events cannot be stored: partitions? [\d, ]+: Redis cannot be reached: ",  # at the opening
    r"ingestd.redis WARNING partition \d\d: the primary is ",
    r"ingestd.consumers WARNING .*; it is tried again",
)

MISSING = pytest.mark.logs(
    r"ingestd.redis WARNING partition \d\d: a part of its keys is missing; a move may be unfinished"
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: RedisCluster) -> Iterator[RedisCluster]:
    """The cluster of the module, in good health and empty before and after the test."""
    yield nodes
    nodes.settle()
    for node in nodes.primaries():
        nodes.ask(node, "FLUSHALL")


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.stores.redis.link.PIECE_BYTES", PIECE)


async def fill(backend: RedisBackend, size: int) -> None:
    """Append so many bytes, which no node can compress."""
    for _ in range(max(1, size // 500_000)):
        records = [Record("filler", NOW, os.urandom(750).hex().encode()) for _ in range(min(size, 500_000) // 1500)]
        await append(backend, records)


def other_node(cluster: RedisCluster, slot: int) -> RedisServer:
    source = cluster.primary_of(slot)
    return next(node for node in cluster.primaries() if node is not source)


@LINES
async def test_a_partition_in_pieces_moves_under_load(cluster: RedisCluster) -> None:
    async with serving(cluster) as daemons:
        backend = daemons.partitions[0]
        await fill(backend, 4_000_000)
        before = [record for record in await read_all(backend.journal) if record.type == "filler"]
        slot = key_slot(backend.database.prefix.encode())
        source = cluster.primary_of(slot)
        with source.client() as client:
            journal = client.keys(f"{backend.database.prefix}journal:*")
            sizes: list[Any] = [client.memory_usage(key, 0) for key in client.keys(f"{backend.database.prefix}*")]
        assert len(journal) > 60
        assert max(sizes) < 3 * PIECE
        for to in [node for node in cluster.primaries() if node is not source] + [source]:
            assert await asyncio.to_thread(cluster.move_slot, slot, to, parts=30) > 60
            await daemons.more(5)
        await until(lambda: daemons.away() == [[], []], LONG)
        assert [each.store.losses for each in daemons.partitions] == [0] * len(daemons.partitions)
        assert [record for record in await read_on(backend.journal) if record.type == "filler"] == before


async def read_on(journal: Journal) -> Sequence[Record]:
    """All records. A connection learns only by its next command that a slot has moved."""
    async with asyncio.timeout(LONG):
        while True:
            with suppress(Unavailable):
                return await read_all(journal)
            await asyncio.sleep(0.05)


def move_part(cluster: RedisCluster, slot: int, source: RedisServer, target: RedisServer, part: float) -> None:
    cluster.ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    cluster.ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    count = cluster.ask(source, "CLUSTER COUNTKEYSINSLOT", slot)
    move_keys(cluster, slot, source, target, round(part * count))


def move_keys(cluster: RedisCluster, slot: int, source: RedisServer, target: RedisServer, count: int) -> None:
    keys = cluster.ask(source, "CLUSTER GETKEYSINSLOT", slot, count)
    for first in range(0, len(keys), 10):
        some = keys[first : first + 10]
        cluster.ask(source, "MIGRATE", "127.0.0.1", announced_port(target), "", 0, 5000, "KEYS", *some)


@LINES
@MISSING
async def test_a_move_that_is_finished_later_loses_nothing(cluster: RedisCluster) -> None:
    """`redis-cli --cluster fix` first gives the slot to the node with more of its keys, and then brings the others."""
    async with opened(cluster, 2) as (one, two):
        partition = one.backends[2]
        await fill(partition, 500_000)
        records = await read_all(partition.journal)
        slot = key_slot(partition.database.prefix.encode())
        source, target = cluster.primary_of(slot), other_node(cluster, slot)
        move_part(cluster, slot, source, target, 0.5)
        cluster.ask(source, "CLUSTER SETSLOT", slot, "STABLE")
        await until(lambda: all("lost data" in f"{each.problem()}" for each in (one, two)), LONG)
        await asyncio.sleep(1)
        move_keys(cluster, slot, target, source, 10_000)
        cluster.ask(target, "CLUSTER SETSLOT", slot, "STABLE")
        await until(lambda: one.problem() is None and two.problem() is None, LONG)
        assert [each.backends[2].store.losses for each in (one, two)] == [0, 0]
        assert await read_all(partition.journal) == records
        await append(partition, [Record("event", NOW, b"after")])


@LINES
@MISSING
@pytest.mark.logs(r"ingestd.redis ERROR partition \d+: the store has lost a part of its keys")
@pytest.mark.parametrize(("owner", "part"), [("source", 0.1), ("source", 0.9), ("target", 0.1), ("target", 0.9)])
async def test_a_move_that_is_given_up_is_a_loss(
    cluster: RedisCluster, owner: str, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`part` of the keys has moved. Redis 7.0 moves the newest first."""
    monkeypatch.setattr(TIMING, "redis_heartbeat", 0.2)
    monkeypatch.setattr(TIMING, "redis_slot_repair", 1.0)
    async with opened(cluster, 2) as (one, two):
        partition = one.backends[2]
        await fill(partition, 500_000)
        for first in range(0, 2000, 500):
            state = partition.store.begin(NOW)
            for number in range(first, first + 500):
                await state.put(f"session:{uuid4().hex}", f"{number}")
            await partition.store.commit(state)
        beats = partition.database.link.heartbeats
        await until(lambda: partition.database.link.heartbeats > beats + 8)
        slot = key_slot(partition.database.prefix.encode())
        source, target = cluster.primary_of(slot), other_node(cluster, slot)
        move_part(cluster, slot, source, target, part)
        await until(lambda: partition.problem() is not None)
        if owner == "source":
            for node in (target, source):
                cluster.ask(node, "CLUSTER SETSLOT", slot, "STABLE")
        else:
            cluster.ask(target, "CLUSTER SETSLOT", slot, "NODE", cluster.id_of(target))
        await until(lambda: [each.backends[2].store.losses for each in (one, two)] == [1, 1], LONG)
        await until(lambda: one.problem() is None and two.problem() is None)
        assert "has lost a part of its keys" in f"{partition.store.loss}"
        assert [each.store.losses for each in one.backends] == [0, 0, 1, 0, 0, 0]
        last = await append(partition, [Record("event", NOW, b"after")])
        left = await read_all(two.backends[2].journal)
        assert (left[-1].position, left[-1].body) == (last, b"after")
        assert (await partition.journal.extent()).records == len(left)
        cluster.ask(source, "CLUSTER SETSLOT", slot, "STABLE")


class Slow(Consumer):
    """Reads a backlog in small steps, so that a failover comes meanwhile."""

    name = "slow"
    start = "beginning"

    def __init__(self) -> None:
        self.positions: list[int] = []

    async def process(self, records: Sequence[Record], step: Step) -> None:
        self.positions += [record.position for record in records]
        await asyncio.sleep(0.02)


@LINES
async def test_a_consumer_that_reads_old_pieces_goes_on_after_a_failover(cluster: RedisCluster) -> None:
    async with opened(cluster, 1) as (daemon,):
        partition = daemon.backends[1]
        await fill(partition, 8_000_000)
        last = await partition.journal.last()
        consumer = Slow()
        async with running(partition, consumer, patience=LONG):
            await until(lambda: len(consumer.positions) > 500, LONG)
            primary = cluster.primary_of_key(partition.database.prefix)
            primary.kill()
            count = len(consumer.positions)
            assert count < last
            await asyncio.to_thread(cluster.settle)
            await until(lambda: consumer.positions[-1] == last, LONG)
        assert [*dict.fromkeys(consumer.positions)] == [*range(1, last + 1)]
        assert partition.store.losses == 0
