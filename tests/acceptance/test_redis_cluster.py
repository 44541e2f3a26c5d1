"""Three daemons on a Redis Cluster: daemons and nodes are killed, and each order is attributed once."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop, key_of
from tests.support.daemon import Daemon, Reply, run_ingestd
from tests.support.forked import INGESTD, QUICK_REDIS, Command, short_times
from tests.support.journeys import TRACK
from tests.support.ports import own_host
from tests.support.redis_cluster import RedisCluster, cluster_backend, redis_cluster
from tests.support.webhook_server import webhook_server

LONG = 40.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def shop(cluster: RedisCluster, tmp_path: Path) -> Iterator[ClusterShop]:
    """A shop without data, on a cluster in good health."""
    # Requests to the port of an ended daemon must not reach another program.
    with short_times(**QUICK_REDIS):
        yield ClusterShop(tmp_path, cluster=cluster, host=own_host())
    for node in cluster.running:
        node.signal(signal.SIGCONT)
    cluster.settle()
    for node in cluster.primaries():
        cluster.ask(node, "FLUSHALL")


def post(daemon: Daemon, tenant: str, visitor: str, **members: Any) -> int:
    """Send a page view with `members`, and return the status; 0 without an answer."""
    body = {"key": "Page View", "data": {}, "anonymousId": visitor, **members}
    try:
        return daemon.post(TRACK, body, key_of(tenant)).status
    except (OSError, http.client.HTTPException):
        return 0


class Customers:
    """A thread for each tenant: its visitors click on a mail and order, and repeat requests until they are answered."""

    def __init__(self, shop: ClusterShop, daemons: Sequence[Daemon]) -> None:
        self.orders: dict[str, list[str]] = {tenant: [] for tenant in shop.tenants}
        """The answered orders of each tenant."""
        self._daemons = daemons
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(tenant,)) for tenant in shop.tenants]

    def __enter__(self) -> Customers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int, tenants: Sequence[str] | None = None) -> None:
        """Wait until each tenant, or each of those, has `count` more orders."""
        wanted = {tenant: len(self.orders[tenant]) + count for tenant in tenants or self.orders}
        wait_until(lambda: all(len(self.orders[tenant]) >= count for tenant, count in wanted.items()), LONG)

    def _run(self, tenant: str) -> None:
        chance, number = random.Random(tenant), 0
        while not self._stopping.wait(0.02):
            number += 1
            name = f"{tenant} {number}"
            self._until_answered(chance, tenant, name, dispatchId="mail", messageId=f"{name} mail")
            order = {"order_id": name, "revenue": 40}
            self._until_answered(chance, tenant, name, key="Order Completed", data=order, messageId=name)
            self.orders[tenant].append(name)

    def _until_answered(self, chance: random.Random, tenant: str, visitor: str, **members: Any) -> None:
        while (status := post(chance.choice(self._daemons), tenant, visitor, **members)) != 200:
            assert status in (0, 503)
            time.sleep(0.02)


def attributed(shop: ClusterShop) -> Counter[str]:
    """How often each order is attributed to its mail."""
    records = [record for record in shop.stored('"attribution"') if record["type"] == "attribution"]
    assert all(record["touchpoint"] is not None for record in records)
    return Counter(record["orderId"] for record in records)


def check(shop: ClusterShop, customers: Customers) -> None:
    """Each answered order is attributed once, and has reached a sink."""
    orders = {order for some in customers.orders.values() for order in some}
    wait_until(lambda: {*attributed(shop)} >= orders, LONG)
    assert attributed(shop) == dict.fromkeys(orders, 1)
    journal = {record["id"] for record in shop.exported()}
    wait_until(lambda: journal <= {record["id"] for number in range(3) for record in shop.archived_by(number)}, LONG)


def test_daemons_and_nodes_die_and_nothing_is_lost_or_doubled(shop: ClusterShop) -> None:
    with ExitStack() as stack:
        daemons = [stack.enter_context(shop.start(number)) for number in range(3)]
        with Customers(shop, daemons) as customers:
            customers.more(10)
            daemons[1].kill()
            customers.more(10)
            daemons[1] = stack.enter_context(shop.start(1))
            customers.more(10)
            shop.node_of(shop.tenants[0]).kill()
            customers.more(10)
            shop.cluster.settle()
            assert daemons[2].terminate() == 0, "\n".join(daemons[2].log)
            customers.more(10)
            before = len(shop.archived_by(2))
            daemons[2] = stack.enter_context(shop.start(2))
            customers.more(10)
            wait_until(lambda: len(shop.archived_by(2)) > before, LONG)  # it has got a share again
        check(shop, customers)
        for daemon in daemons:
            assert daemon.terminate() == 0, "\n".join(daemon.log)


def test_only_the_tenants_of_a_partition_without_primary_get_503(shop: ClusterShop) -> None:
    with shop.serve_with(1) as (daemon,):
        primary = shop.node_of(shop.tenants[0])
        theirs = [tenant for tenant in shop.tenants if shop.node_of(tenant) is primary]
        shop.cluster.replica_of(primary).kill()
        primary.kill()
        wait_until(lambda: [post(daemon, tenant, "visitor") for tenant in theirs] == [503] * len(theirs), LONG)
        for tenant in shop.tenants:
            assert post(daemon, tenant, "visitor") == (503 if tenant in theirs else 200)
        ready = daemon.ops("/readyz")
        assert ready.status == 200
        names = ", ".join(f"partition {shop.tenants.index(tenant):02} (1 tenant)" for tenant in theirs)
        assert f"{len(theirs)} of 6 partitions have a problem: {names}: " in ready.body.decode()
        shop.cluster.settle()
        wait_until(lambda: [post(daemon, tenant, "visitor") for tenant in shop.tenants] == [200] * 6, LONG)


def test_a_daemon_that_starts_without_a_partition_says_why_its_consumers_wait(shop: ClusterShop) -> None:
    primary = next(node for node in map(shop.node_of, shop.tenants) if node is not shop.node_of(shop.tenants[0]))
    shop.cluster.replica_of(primary).kill()
    primary.kill()
    with shop.serve_with(1) as (daemon,):
        waiting = [line for line in daemon.log if "their consumers begin later" in line]
        assert len(waiting) == 1
        assert "the store cannot be used now: Redis cannot be reached: " in waiting[0]
        assert not [line for line in daemon.log if "is closed" in line]
        shop.cluster.settle()
        wait_until(lambda: [post(daemon, tenant, "visitor") for tenant in shop.tenants] == [200] * 6, LONG)


def test_commands_read_the_partitions_of_a_primary_whose_replica_is_away(shop: ClusterShop) -> None:
    with shop.serve_with(1) as (daemon,):
        assert [post(daemon, tenant, "visitor") for tenant in shop.tenants] == [200] * 6
        before = len(shop.exported())
        primary = shop.node_of(shop.tenants[0])
        shop.cluster.replica_of(primary).kill()
        wait_until(lambda: "state=online" not in str(shop.cluster.ask(primary, "INFO", "replication")), LONG)
        assert len(shop.exported()) == before
        assert run_ingestd("sinks", "status", config=shop.config).returncode == 0
        assert f"127.0.0.1:{primary.port}: Redis has 0 replicas" in run_ingestd("check", config=shop.config).stderr
        shop.cluster.settle()


def test_a_replay_beside_daemons_takes_no_share_of_their_work(shop: ClusterShop) -> None:
    with webhook_server() as crm:
        table = f'type = "webhook"\nurl = "{crm.url}"\nretry = {{ initial = "10ms", max = "100ms" }}\n'
        shop.config.write_text(f"{shop.config.read_text()}[sinks.crm]\n{table}")
        with shop.serve_with(2) as daemons:
            for tenant in shop.tenants:
                assert post(daemons[0], tenant, "visitor") == 200
            wait_until(lambda: sum(len(each.records) for each in crm.taken) == len(shop.tenants), LONG)
            crm.answer = lambda _: Reply(503, {}, b"")
            config = str(shop.folder / "ingestd-0.toml")
            command = [INGESTD, "sinks", "replay", "crm", "--from", "1h", "--config", config]
            with Command(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as replay:
                assert replay.stderr is not None
                assert replay.stderr.readline().startswith("crm is failing and retries")
                assert shop.running() == [2] * len(shop.tenants)
                crm.answer = lambda _: Reply(204, {}, b"")
                printed, _ = replay.communicate(timeout=LONG)
            assert replay.returncode == 0
            assert printed.splitlines()[-1] == f"{len(shop.tenants)} records written to crm again"
            assert sum(len(each.records) for each in crm.taken) == 2 * len(shop.tenants)


def test_a_replay_is_given_in_all_partitions_that_can_store(shop: ClusterShop) -> None:
    with shop.serve_with(1) as daemons:
        for tenant in shop.tenants:
            assert post(daemons[0], tenant, "visitor") == 200
        wait_until(lambda: len(shop.archived_by(0)) == len(shop.tenants), LONG)
        node = shop.node_of(shop.tenants[0])
        theirs = [index for index, tenant in enumerate(shop.tenants) if shop.node_of(tenant) is node]
        shop.cluster.replica_of(node).kill()
        config = shop.folder / "ingestd-0.toml"
        done = run_ingestd("sinks", "replay", "archive", "--from", "1h", "--no-wait", config=config)
        assert done.returncode == 1
        assert f"the command waits in {len(shop.tenants) - len(theirs)} partitions" in done.stdout
        names = ", ".join(f"{index:02}" for index in theirs)
        assert f"partitions {names} are out of reach, so its records are not replayed" in done.stderr


def test_another_number_of_partitions_stops_the_start_with_the_way_out(shop: ClusterShop) -> None:
    with shop.serve_with(1):
        done = run_ingestd("serve", "--set", "plugins.redis.partitions=7", config=shop.config)
    assert done.returncode == 78
    assert "plugins.redis.partitions is 7, but the store was made with 6" in done.stderr


def test_the_partitions_are_shown_with_their_nodes(shop: ClusterShop) -> None:
    def nodes() -> list[str]:
        return [json.loads(line)["node"] for line in shop.command("partitions", "show", "--json").splitlines()]

    tenant = shop.tenants[0]
    (told,) = map(json.loads, shop.command("partitions", "show", tenant, "--json").splitlines())
    assert (told["partition"], told["records"]) == ("00", 0)
    before = [f"127.0.0.1:{shop.node_of(each).port}" for each in shop.tenants]
    assert nodes() == before
    last = shop.node_of(shop.tenants[-1])
    (to,) = (node for node in shop.cluster.primaries() if node not in (shop.node_of(tenant), last))
    shop.cluster.move_slot(told["slot"], to)
    assert nodes() == [f"127.0.0.1:{to.port}", *before[1:]]
    shop.cluster.replica_of(last).kill()
    last.kill()
    shown = run_ingestd("partitions", "show", "--json", config=shop.config)
    assert shown.returncode == 1
    assert "partitions 04, 05 are out of reach, so the load there is unknown" in shown.stderr
    assert [json.loads(line)["partition"] for line in shown.stdout.splitlines()] == ["00", "01", "02", "03"]


def test_check_describes_the_cluster(shop: ClusterShop) -> None:
    with shop.serve_with(1):
        shown = run_ingestd("check", config=shop.config).stdout
    assert "3 primaries and 3 replicas have 16384 of 16384 slots" in shown
    assert "a trial write is in every partition" in shown
    assert "cluster-require-full-coverage" not in shown
    assert "cluster-migration-barrier" not in shown
    assert "For promotion_grace = 30s after a failover, an answer waits for none" in " ".join(shown.split())


def test_check_warns_of_nodes_that_stop_when_another_is_away(shop: ClusterShop) -> None:
    node = shop.node_of(shop.tenants[0])
    shop.cluster.ask(node, "CONFIG SET", "cluster-require-full-coverage", "yes")
    try:
        with shop.serve_with(1):
            shown = " ".join(run_ingestd("check", config=shop.config).stdout.split())
    finally:
        shop.cluster.ask(node, "CONFIG SET", "cluster-require-full-coverage", "no")
    assert f"cluster-require-full-coverage is yes on 127.0.0.1:{node.port}: one primary that is away" in shown
    assert "Set cluster-require-full-coverage no on every node" in shown


def test_check_and_a_start_warn_of_replicas_that_may_leave_their_primary(shop: ClusterShop) -> None:
    node = shop.cluster.replica_of(shop.cluster.primaries()[0])
    shop.cluster.ask(node, "CONFIG SET", "cluster-migration-barrier", "0")
    try:
        with shop.serve_with(1) as (daemon,):
            shown = " ".join(run_ingestd("check", config=shop.config).stdout.split())
            shop.cluster.ask(node, "CONFIG SET", "cluster-allow-replica-migration", "no")
            without_migration = run_ingestd("check", config=shop.config).stdout
            assert any("cluster-migration-barrier is below wait_replicas = 1" in line for line in daemon.log)
    finally:
        shop.cluster.ask(node, "CONFIG SET", "cluster-migration-barrier", "1")
        shop.cluster.ask(node, "CONFIG SET", "cluster-allow-replica-migration", "yes")
    assert f"cluster-migration-barrier is below wait_replicas = 1 on 127.0.0.1:{node.port}: Redis may give" in shown
    assert "Set cluster-migration-barrier 1 or cluster-allow-replica-migration no on every node" in shown
    assert "cluster-migration-barrier" not in without_migration


def test_a_loss_names_its_partitions_and_the_number_of_their_tenants(shop: ClusterShop) -> None:
    lost = shop.tenants[1]
    node = shop.node_of(lost)
    theirs = [index for index, tenant in enumerate(shop.tenants) if shop.node_of(tenant) is node]
    with shop.serve_with(1) as (daemon,):
        wait_until(lambda: all(post(daemon, tenant, "visitor") == 200 for tenant in shop.tenants), LONG)
        shop.cluster.ask(node, "FLUSHALL")
        wait_until(lambda: daemon.metric("ingestd_store_losses_total") == len(theirs), LONG)
        wait_until(lambda: post(daemon, lost, "visitor") == 200, LONG)
    lines = [line for line in daemon.log if "the store came back empty" in line]
    assert len(lines) == len(theirs)
    assert all(f"partition {index:02} (1 tenant): the store" in "".join(lines) for index in theirs)


@pytest.mark.logs("ingestd.redis ERROR partition 02: the store came back empty")
def test_a_loss_that_stands_names_its_partition_in_check_and_at_the_start(shop: ClusterShop) -> None:
    with shop.serve_with(1):
        pass
    asyncio.run(report_loss(shop, 2))
    shown = " ".join(run_ingestd("check", config=shop.config).stdout.split())
    assert "partition 02 (1 tenant): the store came back empty" in shown
    with shop.serve_with(1) as (daemon,):
        wait_until(lambda: daemon.ops("/readyz").body == b"ok\n", LONG)
    assert sum("a loss of data in partition 02 (1 tenant) is not acknowledged yet" in line for line in daemon.log) == 1
    assert sum("after the loss of data in partition 02 (1 tenant)" in line for line in daemon.log) == 1


async def report_loss(shop: ClusterShop, number: int) -> None:
    backend = cluster_backend(shop.cluster, prefix="shop:")
    await backend.open(serving=True)
    try:
        await backend.backends[number].store.report_loss("came back empty")
    finally:
        await backend.close()
