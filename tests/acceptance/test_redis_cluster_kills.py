"""Three daemons over a Redis Cluster of six nodes: whichever daemons and nodes die, and when, the promises hold.

Each seed draws a schedule. `make test-long` runs a second one, and `INGESTD_CLUSTER_SEEDS=20` makes that 20.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.test_redis_cluster import Customers, post
from tests.support.attribution import agrees
from tests.support.attribution_reference import Reference, Rules
from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop
from tests.support.daemon import run_ingestd
from tests.support.forked import QUICK_REDIS, short_times
from tests.support.ports import own_host
from tests.support.redis_cluster import RedisCluster, redis_cluster

SEEDS = int(os.environ.get("INGESTD_CLUSTER_SEEDS", "2"))
EVENTS = 3  # of a schedule

KILL_DAEMON, STOP_DAEMON, KILL_PRIMARY, KILL_REPLICA, FAIL_OVER = "kill", "stop", "primary", "replica", "fail over"
OF_DAEMONS = (KILL_DAEMON, STOP_DAEMON)


class Event(NamedTuple):
    what: str
    target: int
    """The daemon (modulo three), or the partition whose node it is."""
    orders: int
    """The orders of each tenant before it."""


def draw(seed: int) -> list[Event]:
    """A schedule with events of daemons and of nodes."""
    chance = random.Random(seed)
    kinds = [KILL_DAEMON, KILL_PRIMARY]
    kinds += chance.choices([*OF_DAEMONS, KILL_PRIMARY, KILL_REPLICA, FAIL_OVER], k=EVENTS - len(kinds))
    chance.shuffle(kinds)
    return [Event(what, chance.randrange(6), chance.randrange(6)) for what in kinds]


class Run:
    """A shop with three daemons, to which a schedule happens."""

    def __init__(self, shop: ClusterShop, stack: ExitStack) -> None:
        self.shop = shop
        self.daemons = [stack.enter_context(shop.start(number)) for number in range(3)]
        self._stack = stack
        self._numbers = count()

    def happen(self, event: Event) -> None:
        if event.what in OF_DAEMONS:
            self._end_daemon(event.target % 3, kill=event.what == KILL_DAEMON)
            return
        self.shop.cluster.settle()  # so that no partition loses both its nodes
        primary = self.shop.node_of(self.shop.tenants[event.target])
        if event.what == KILL_PRIMARY:
            primary.kill()
        elif event.what == KILL_REPLICA:
            self.shop.cluster.replica_of(primary).kill()
        else:
            self.shop.cluster.fail_over(primary)

    def _end_daemon(self, number: int, *, kill: bool) -> None:
        """End a daemon, wait until the others do its work, and start it again."""
        self.shop.cluster.settle()  # the wait is for a daemon, whose leases last 8 seconds, not for a node
        daemon = self.daemons[number]
        if kill:
            daemon.kill()
        else:
            assert daemon.terminate() == 0, "\n".join(daemon.log)
        self._await_work((number + 1) % 3)
        self.daemons[number] = self._stack.enter_context(self.shop.start(number))

    def _await_work(self, number: int) -> None:
        """Wait until an order of each tenant, sent now to that daemon, is attributed by any of the daemons."""
        orders = {}
        for tenant in self.shop.tenants:
            orders[tenant] = order = f"{tenant} awaited {next(self._numbers)}"
            self._send(number, tenant, order, key="Page View", data={}, dispatchId="mail")
            self._send(number, tenant, order, key="Order Completed", data={"order_id": order, "revenue": 40})
        wait_until(lambda: {*orders.values()} <= {each["orderId"] for each in derived(self.shop)})

    def _send(self, number: int, tenant: str, order: str, **members: Any) -> None:
        message = f"{order} {members['key']}"
        wait_until(lambda: post(self.daemons[number], tenant, order, messageId=message, **members) == 200)


def derived(shop: ClusterShop) -> list[dict[str, Any]]:
    """The attributions of all tenants."""
    return [record for record in shop.stored('"attribution"') if record["type"] == "attribution"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def shop(cluster: RedisCluster, tmp_path: Path) -> Iterator[ClusterShop]:
    # Requests to the port of an ended daemon must not reach another program.
    with short_times(**QUICK_REDIS):
        yield ClusterShop(tmp_path, cluster=cluster, host=own_host())
    cluster.settle()
    for node in cluster.primaries():
        cluster.ask(node, "FLUSHALL")


def check(shop: ClusterShop, orders: dict[str, list[str]]) -> None:
    """The journal has each answered event once, each order is attributed as by the reference, and sinks have all."""
    answered = {order for some in orders.values() for order in some}
    wait_until(lambda: answered <= {each["orderId"] for each in derived(shop)})
    journal = shop.stored()
    messages = Counter(record["messageId"] for record in journal if record["type"] == "event")
    assert {*messages.values()} == {1}
    assert {message for order in answered for message in (order, f"{order} mail")} <= {*messages}
    for tenant in shop.tenants:
        own = [record for record in journal if record["tenant"] == tenant]
        reference = Reference(Rules(), [record for record in own if record["type"] == "event"])
        agrees([json.dumps(record).encode() for record in own if record["type"] != "event"], reference)
        assert {*orders[tenant]} <= {each["orderId"] for each in reference.derived}
    ids = {record["id"] for record in journal}
    assert len(ids) == len(journal)
    wait_until(lambda: ids <= {record["id"] for number in range(3) for record in shop.archived_by(number)})
    records = Counter(record["tenant"] for record in journal)
    wait_until(lambda: delivered(shop) == [(records[tenant], 0, 0) for tenant in shop.tenants])


def delivered(shop: ClusterShop) -> list[tuple[int, int, int]]:
    """Of each partition: the records that the archive has got, has given up, and lacks."""
    told = run_ingestd("sinks", "status", "archive", "--json", config=shop.config)
    assert told.returncode == 0, told.stderr
    return [(part["delivered"], part["givenUp"], part["pending"]) for part in json.loads(told.stdout)["partitions"]]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, SEEDS + 1))])
def test_whoever_dies_nothing_is_lost_or_doubled_and_attribution_is_right(shop: ClusterShop, seed: int) -> None:
    schedule = draw(seed)
    print(schedule)  # noqa: T201 - shown when the test fails
    with ExitStack() as stack:
        run = Run(shop, stack)
        with Customers(shop, run.daemons) as customers:
            for event in schedule:
                customers.more(event.orders)
                run.happen(event)
            shop.cluster.settle()
            customers.more(5)
        check(shop, customers.orders)
        for daemon in run.daemons:
            assert daemon.terminate() == 0, "\n".join(daemon.log)
