"""A Redis Cluster under load: its slots move, its nodes die and come back, and no answered event is lost or doubled."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis.crc import key_slot

from ingestd.api.backend import Partition
from ingestd.api.consumer import Consumer, Step
from ingestd.api.errors import ConfigError, LeaseLost, Unavailable
from ingestd.api.events import Record
from ingestd.api.sink import Sink
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.consumers.status import ConsumerStatus
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.plugins.stores.redis.backend import RedisBackend
from ingestd.plugins.stores.redis.cluster.backend import ClusterBackend
from ingestd.plugins.stores.redis.cluster.connections import parse_cluster_url
from ingestd.plugins.stores.redis.servers import make_pool
from ingestd.plugins.stores.redis.work_sharing import WorkSharing
from ingestd.support.periodic import TIMING
from tests.support.cluster_daemons import PARTITIONS, opened, serving
from tests.support.forked import QUICK_REDIS
from tests.support.journals import append, running, until
from tests.support.redis_cluster import RedisCluster, cluster_backend, redis_cluster
from tests.support.redis_pieces import entries_of_journal
from tests.support.redis_server import RedisServer, redis_server
from tests.support.senders import LONG, NOW, texts
from tests.support.standstill import stand_still

PROMPT = 10.0
"""The seconds within which the daemons share the work anew."""

LINES = pytest.mark.logs(
    r"ingestd.redis WARNING partition \d\d: events cannot be stored: ",
    r"ingestd.redis WARNING events cannot be stored: partitions? [\d, ]+: Redis cannot be reached: ",  # at the opening
    r"ingestd.redis WARNING partition \d\d: the primary is ",
    r"ingestd.consumers WARNING (deriver|journal): .*; it is tried again",
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: RedisCluster) -> Iterator[RedisCluster]:
    """The cluster of the module, with all nodes in good health before and after the test."""
    yield nodes
    for node in nodes.running:
        node.signal(signal.SIGCONT)
    nodes.settle()


@LINES
async def test_slots_move_between_nodes_under_load(cluster: RedisCluster) -> None:
    async with serving(cluster) as daemons:
        primaries = cluster.primaries()
        for backend in daemons.partitions[:1]:
            slot = key_slot(backend.database.prefix.encode())
            source = cluster.primary_of(slot)
            for to in [node for node in primaries if node is not source] + [source]:
                # Slowly: many batches come while a part of the keys is here, and the other part there.
                moved = await asyncio.to_thread(cluster.move_slot, slot, to, parts=30, pause=0.01)
                assert moved > 30
                await daemons.more(5)
        # One daemon may have answered all of those, before the other has found the slot.
        await until(lambda: daemons.away() == [[], []], LONG)


@LINES
async def test_a_slot_that_is_moving_answers_no_read_with_a_part_of_its_keys(cluster: RedisCluster) -> None:
    async with opened(cluster, 1) as (backend,):
        partition = backend.backends[0]
        state = partition.store.begin(NOW)
        await state.put("link:one", "value")
        await partition.store.commit(state)
        slot = key_slot(partition.database.prefix.encode())
        source = cluster.primary_of(slot)
        to = next(node for node in cluster.primaries() if node is not source)
        cluster.ask(to, "CLUSTER SETSLOT", slot, "IMPORTING", cluster.id_of(source))
        cluster.ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", cluster.id_of(to))
        with pytest.raises(Unavailable, match="its slot is being moved to another node"):
            _ = [entry async for entry in partition.store.scan("link")]
        with pytest.raises(Unavailable):
            await append(partition, [Record("event", NOW, b"one")])
        for node in (to, source):
            cluster.ask(node, "CLUSTER SETSLOT", slot, "STABLE")
        await until(lambda: partition.problem() is None)
        assert [entry async for entry in partition.store.scan("link")] == [("link:one", "value")]


@LINES
async def test_a_planned_failover_loses_no_answered_event_and_refuses_few(cluster: RedisCluster) -> None:
    async with serving(cluster) as daemons:
        for _ in range(2):  # there, and back
            primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
            await asyncio.to_thread(cluster.fail_over, primary)
            await daemons.more(20)
        assert daemons.partitions[0].database.link.failovers == 2


@LINES
async def test_the_partitions_of_a_dead_primary_wait_for_its_replica_and_all_others_go_on(
    cluster: RedisCluster,
) -> None:
    async with serving(cluster) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        theirs = daemons.of_node(primary)
        others = [name for name in daemons.senders if name not in theirs]
        primary.kill()
        await until(lambda: daemons.away() == [theirs, theirs])
        refused = [daemons.senders[name].refused for name in others]
        await daemons.more(50, others)
        assert [daemons.senders[name].refused for name in others] == refused
        assert f"{daemons.backends[0].problem()}".startswith("partition")
        # The promoted replica has no replica, until the former primary has come back with its old data.
        await until(lambda: "NOREPLICAS" in f"{daemons.partitions[0].problem()}", LONG)
        await asyncio.to_thread(cluster.settle)
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])


@LINES
async def test_consumers_of_a_partition_wait_for_its_replica_and_those_of_others_go_on(cluster: RedisCluster) -> None:
    event = Record("event", NOW, b"event")
    async with opened(cluster, 2) as (one, two):
        primary = cluster.primary_of_key(one.backends[0].database.prefix)
        number = next(
            number
            for number, backend in enumerate(one.backends)
            if cluster.primary_of_key(backend.database.prefix) is not primary
        )
        await append(one.backends[0], [event])
        await two.backends[0].journal.last()
        replica = cluster.replica_of(primary)
        replica.signal(signal.SIGSTOP)
        writing = asyncio.create_task(append(one.backends[0], [event]))
        with primary.client() as client:
            await until(lambda: len(entries_of_journal(client, one.backends[0].database.prefix)) == 2)
        assert [len(await each.backends[0].journal.read(0, 10)) for each in (one, two)] == [1, 1]
        await append(one.backends[number], [event])
        await two.backends[number].journal.wait(0)
        assert len(await two.backends[number].journal.read(0, 10)) == 1
        replica.signal(signal.SIGCONT)
        await writing
        await two.backends[0].journal.wait(1)
        assert len(await two.backends[0].journal.read(0, 10)) == 2


@LINES
async def test_a_primary_that_is_cut_off_keeps_no_event_that_was_answered(cluster: RedisCluster) -> None:
    """It stands still, is replaced, and goes on as if nothing had happened."""
    async with serving(cluster) as daemons:
        primary = cluster.primary_of_key(daemons.partitions[0].database.prefix)
        replica = cluster.replica_of(primary)
        primary.signal(signal.SIGSTOP)
        await until(
            lambda: replica in [node for node in cluster.running if node is not primary and is_primary(node)], LONG
        )
        primary.signal(signal.SIGCONT)
        await asyncio.to_thread(cluster.settle)
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])


def is_primary(node: RedisServer) -> bool:
    with node.client() as client:
        return bool(client.info("replication")["role"] == "master")


@LINES
async def test_without_a_majority_nothing_is_answered_and_afterwards_all_goes_on(cluster: RedisCluster) -> None:
    async with serving(cluster) as daemons:
        primaries = cluster.primaries()
        stopped = [node for primary in primaries[:2] for node in (primary, cluster.replica_of(primary))]
        for node in stopped:
            node.signal(signal.SIGSTOP)
        everything = [partition.name for partition in daemons.backends[0].partitions]
        await until(lambda: daemons.away() == [everything, everything], LONG)
        for node in stopped:
            node.signal(signal.SIGCONT)
        await asyncio.to_thread(cluster.settle)
        await daemons.more(20)
        await until(lambda: daemons.away() == [[], []])


@LINES
@pytest.mark.logs(
    r"ingestd.redis ERROR partition \d\d: the store came back with older content",
    "ingestd.redis WARNING Redis has 1 replica and wait_replicas is 0",
)
async def test_a_node_that_comes_back_with_old_data_is_noticed_by_its_partitions_only(cluster: RedisCluster) -> None:
    async with opened(cluster, 2, replicas=0) as (one, two):
        primary = cluster.primary_of_key(one.backends[0].database.prefix)
        replica = cluster.replica_of(primary)
        theirs = [cluster.primary_of_key(each.database.prefix) is primary for each in one.backends]
        for backend in one.backends:
            await append(backend, [Record("event", NOW, b"old")])
        await asyncio.sleep(0.1)
        old = primary.folder.parent / "old"
        shutil.copytree(primary.folder / "appendonlydir", old)
        for backend in one.backends:
            await append(backend, [Record("event", NOW, b"new")])
        replica.kill()
        primary.kill()
        shutil.rmtree(primary.folder / "appendonlydir")
        shutil.move(old, primary.folder / "appendonlydir")
        primary.start()
        for daemon in (one, two):
            await until(partial(has_lost, daemon, theirs), LONG)
        for backend, is_old in zip(two.backends, theirs, strict=True):
            assert await texts(backend, "event") == (["old"] if is_old else ["old", "new"])
            await append(backend, [Record("event", NOW, b"newest")])


def has_lost(daemon: ClusterBackend, lost: Sequence[bool]) -> bool:
    return [each.store.losses == 1 for each in daemon.backends] == lost and daemon.problem() is None


@pytest.mark.parametrize("turns", [3, 20, 60])
async def test_a_process_that_stands_still_while_it_opens_a_cluster_asks_again(
    cluster: RedisCluster, turns: int
) -> None:
    backend = cluster_backend(cluster, prefix="still:")
    await stand_still(backend.open(serving=False), 2.0, turns)
    await backend.close()


async def test_the_number_of_partitions_cannot_change(cluster: RedisCluster) -> None:
    async with opened(cluster, 1, prefix="fixed:"):
        for serves in (True, False):
            other = cluster_backend(cluster, prefix="fixed:", partitions=PARTITIONS + 1)
            with pytest.raises(ConfigError, match="partitions is 7, but the store was made with 6"):
                await other.open(serving=serves)


@pytest.mark.logs(r"ingestd.redis WARNING partition 03: events cannot be stored: the store newer:03.* has format 2")
async def test_a_partition_of_a_newer_format_ends_the_start(cluster: RedisCluster) -> None:
    async with opened(cluster, 1, prefix="newer:") as (backend,):
        prefix = backend.backends[3].database.prefix
    with cluster.primary_of_key(prefix).client() as client:
        client.set(f"{prefix}store-format", "2 7.1.0")
    for serves in (True, False):
        with pytest.raises(ConfigError, match=r"the store newer:03.* has format 2, and this ingestd knows 1: install"):
            await cluster_backend(cluster, prefix="newer:").open(serving=serves)


async def test_partitions_have_names_and_separate_journals(cluster: RedisCluster) -> None:
    async with opened(cluster, 1) as (backend,):
        partitions: Sequence[Partition] = backend.partitions
        assert [partition.name for partition in partitions] == ["00", "01", "02", "03", "04", "05"]
        await append(backend.backends[3], [Record("event", NOW, b"one")])
        assert [await partition.journal.last() for partition in partitions] == [0, 0, 0, 1, 0, 0]


class Idle(Consumer):
    async def process(self, records: Sequence[Record], step: Step) -> None:
        pass


class Alpha(Idle):
    name = "alpha"


class Beta(Idle):
    name = "beta"


class Worker:
    """A daemon with two consumers of each partition."""

    def __init__(self, backend: ClusterBackend, tasks: set[asyncio.Task[Any]]) -> None:
        """`tasks` are those of the back end."""
        self.backend = backend
        self._tasks = tasks
        self._stack = AsyncExitStack()
        self.statuses: list[ConsumerStatus] = []

    async def start(self) -> None:
        for partition in self.backend.backends:
            self.statuses += await self._stack.enter_async_context(running(partition, Alpha(), Beta()))

    @property
    def held(self) -> Counter[str]:
        return Counter(status.name for status in self.statuses if status.held)

    def silence(self) -> None:
        """End all reports and renewals of leases, as if the daemon had been killed."""
        for task in self._tasks:
            if task.get_name() == "redis: beats":
                task.cancel()

    async def stop(self) -> None:
        await self._stack.aclose()
        self.statuses = []
        await self.backend.close()


def has_shares(workers: Sequence[Worker]) -> bool:
    """Whether each consumer of each partition runs once, and each daemon has as many as every other."""
    even = PARTITIONS // len(workers)
    return all(worker.held == {"alpha": even, "beta": even} for worker in workers)


@pytest.fixture(params=["no rest", "a long rest"])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times. With a rest, leases would end by themselves long after the tests."""
    for name, seconds in QUICK_REDIS.items():
        monkeypatch.setattr(TIMING, name, seconds)
    monkeypatch.setattr(WorkSharing, "rest", 30.0 if request.param == "a long rest" else 0.0)


@pytest.mark.usefixtures("quick")
async def test_daemons_share_the_work_and_a_share_passes_on_when_one_comes_or_goes(cluster: RedisCluster) -> None:
    prefix = f"{uuid4().hex}:"
    workers: list[Worker] = []
    ended: list[Worker] = []
    try:
        for _ in range(3):
            backend = cluster_backend(cluster, prefix=prefix, partitions=PARTITIONS, timeout=5.0, patience=10.0)
            before = asyncio.all_tasks()
            await backend.open(serving=True)
            workers.append(Worker(backend, asyncio.all_tasks() - before))
            await workers[-1].start()
            await until(lambda: has_shares(workers), PROMPT)
        await workers.pop(0).stop()
        await until(lambda: has_shares(workers), PROMPT)
        ended.append(workers.pop(0))
        ended[0].silence()
        await until(lambda: has_shares(workers), PROMPT)
    finally:
        for worker in (*workers, *ended):
            await worker.stop()


@pytest.mark.usefixtures("quick")
async def test_a_silent_daemon_loses_its_cursors_and_can_commit_nothing_more(cluster: RedisCluster) -> None:
    prefix = f"{uuid4().hex}:"
    make = partial(cluster_backend, cluster, prefix=prefix, partitions=PARTITIONS, timeout=5.0, patience=10.0)
    silent, other = make(), make()
    before = asyncio.all_tasks()
    try:
        await silent.open(serving=True)
        worker = Worker(silent, asyncio.all_tasks() - before)
        await other.open(serving=True)
        cursors = [await each.journal.acquire_cursor("alpha", "beginning") for each in silent.backends]
        beats = [each.database.link for each in other.backends]
        seen = [link.heartbeats for link in beats]
        await until(lambda: beats[0].heartbeats > seen[0] + 10, LONG)  # the daemons know of each other
        for each, cursor in zip(silent.backends, cursors, strict=True):
            await each.journal.commit([], each.store.begin(NOW, step=True), cursor)
        worker.silence()
        async with asyncio.timeout(PROMPT):
            await asyncio.gather(*(each.journal.acquire_cursor("alpha", "beginning") for each in other.backends))
        for each, cursor in zip(silent.backends, cursors, strict=True):
            with pytest.raises(LeaseLost):
                await each.journal.commit([], each.store.begin(NOW, step=True), cursor)
    finally:
        await silent.close()
        await other.close()


class Quiet(Sink):
    async def write(self, batch: Sequence[Record]) -> None:
        raise AssertionError("there are no records")


def count_scripts(cluster: RedisCluster) -> int:
    """The script calls of all nodes since their starts."""
    total = 0
    for node in cluster.primaries():
        with node.client() as client:
            total += client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    return total


def count_reads(cluster: RedisCluster) -> int:
    """How often all nodes have read from a connection since their starts."""
    total = 0
    for node in cluster.primaries():
        with node.client() as client:
            total += client.info("stats")["total_reads_processed"]
    return total


async def test_the_beats_of_all_partitions_of_a_node_are_one_write(cluster: RedisCluster) -> None:
    backend = cluster_backend(cluster, prefix=f"{uuid4().hex}:", partitions=128, timeout=5.0, patience=10.0)
    await backend.open(serving=True)
    try:
        beats = [each.database.link for each in backend.backends]
        await until(lambda: all(link.heartbeats > 1 for link in beats), PROMPT)
        before, scripts, reads = [link.heartbeats for link in beats], count_scripts(cluster), count_reads(cluster)
        await until(lambda: all(now.heartbeats > then + 2 for now, then in zip(beats, before, strict=True)), LONG)
        # Redis reads 16 kB at once: the beats of 43 partitions come in a few parts. Replicas and this test write too.
        assert (count_reads(cluster) - reads) * 4 < count_scripts(cluster) - scripts
    finally:
        await backend.close()


async def test_idle_partitions_cost_less_the_more_there_are(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in QUICK_REDIS.items():
        monkeypatch.setattr(TIMING, name, seconds)
    backend = cluster_backend(cluster, prefix=f"{uuid4().hex}:", partitions=128, timeout=5.0, patience=10.0)
    await backend.open(serving=True)
    sink = SinkConsumer(Quiet("quiet", Quiet.Options()), SinkOptions(type="quiet"))
    consumers = PartitionConsumers(backend.partitions, [sink], died=print)
    try:
        await consumers.start()
        await until(lambda: all(status.held for group in consumers.groups for status in group.statuses), PROMPT)
        rate = 1000.0
        async with asyncio.timeout(LONG):
            # 20 beats a second, which tell that there is nothing to look for, and three with each heartbeat. All
            # partitions beat with each heartbeat for some seconds after the start, and after a slow answer.
            while rate > 40:
                before, since = count_scripts(cluster), time.monotonic()
                await asyncio.sleep(2)
                rate = (count_scripts(cluster) - before) / (time.monotonic() - since)
    finally:
        await consumers.stop(5)
        await backend.close()


async def test_a_beat_tells_of_the_changes_of_other_daemons(cluster: RedisCluster) -> None:
    async with opened(cluster, 2) as backends:
        partition, other = (backend.backends[1] for backend in backends)
        beats = partition.database.link

        async def beat(times: int) -> None:
            before = beats.heartbeats
            await until(lambda: beats.heartbeats > before + times, LONG)

        await beat(4)
        before = partition.store.version
        assert before is not None
        await beat(4)
        assert partition.store.version == before
        state = other.store.begin(NOW)
        await state.put("note:1", "changed")
        await other.store.commit(state)
        await until(lambda: partition.store.version != before, PROMPT)


async def test_a_url_of_the_wrong_kind_is_refused_with_the_right_one(cluster: RedisCluster, tmp_path: Path) -> None:
    node = cluster.primaries()[0]
    single = RedisBackend(make_pool(node.url, (), timeout=2), prefix="shop:", timeout=2, patience=5)
    with pytest.raises(ConfigError, match=r"is a node of a cluster; write redis\+cluster://host:port/"):
        await single.open(serving=True)
    with redis_server(tmp_path / "single") as server:
        url = parse_cluster_url(f"redis+cluster://127.0.0.1:{server.port}/")
        with pytest.raises(ConfigError, match=f"127.0.0.1:{server.port} is no node of a cluster. Write redis://"):
            await ClusterBackend(url, cluster_backend(cluster, prefix="a").options).open(serving=False)
