"""`ingestd partitions place` beside daemons that serve: all that a tenant has goes with it, nothing twice."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.errors import CommandError
from ingestd.api.store import key_digest, use_namespaces
from ingestd.config import load_config
from ingestd.hooks.loader import load_plugins
from ingestd.plugins.tools.placing import TenantMove
from ingestd.storage.backends import open_backends
from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop, key_of
from tests.support.daemon import Daemon, run_ingestd
from tests.support.forked import INGESTD, QUICK_REDIS, Command, short_times
from tests.support.journeys import IDENTIFY, TRACK
from tests.support.ports import own_host
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.told_sink import Told

pytestmark = pytest.mark.usefixtures("told_sink", "quick")

QUICK = 'timeout = "1s"\nretry = { initial = "10ms", max = "100ms" }\nbatch = { max_wait = "0s" }'
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def other_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("other"), primaries=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Each step of a move waits until all daemons know of it."""
    with short_times(placements=0.4, **QUICK_REDIS):
        yield


@pytest.fixture(autouse=True)
def _empty(cluster: RedisCluster) -> None:
    for node in cluster.primaries():
        cluster.ask(node, "FLUSHALL")


class Shops(ClusterShop):
    """Two daemons serve a tenant in each partition. Tests control the sink `crm`."""

    def __init__(self, folder: Path, cluster: RedisCluster) -> None:
        self.crm = Told(folder)
        tables = {"http": 'shutdown_timeout = "500ms"', **self.crm.options(QUICK)}
        super().__init__(folder, tables, host=own_host(), cluster=cluster, partitions=PARTITIONS)
        self.url = cluster.url

    def place(self, tenant: str, partition: int) -> dict[str, Any]:
        return dict(json.loads(self.command("partitions", "place", tenant, "--partition", f"{partition:02}", "--json")))

    def partition_of(self, tenant: str) -> str:
        (shown,) = map(json.loads, self.command("partitions", "show", tenant, "--json").splitlines())
        return str(shown["partition"])

    def copy_to(self, url: str) -> None:
        """Copy all data to another store, which has two partitions or one, and go on with the copy."""
        former = self.folder / "former.toml"
        before = self.config.read_text()
        former.write_text(before)
        self.config.write_text(re.sub("partitions = 3", "partitions = 2", before))
        words = ["store", "copy", "--from", self.url, "--to", url, "--from-config", str(former)]
        done = run_ingestd(*words, config=self.config, timeout=60)
        assert done.returncode == 0, done.stderr
        self.config.write_text(self.config.read_text().replace(f'"{self.url}"', f'"{url}"'))
        self.url = url

    def kill_place(self, tenant: str, partition: int, *, owned: bool = False, halted: bool = False) -> None:
        """Begin a move, and kill the command soon after it has come so far."""
        words = ["partitions", "place", tenant, "--partition", f"{partition:02}", "--config", str(self.config)]
        reached = json.dumps({"owned": owned, "halted": halted}, separators=(",", ":"))[1:-1].encode()
        with Command([INGESTD, *words]) as command:
            wait_until(lambda: reached in self._placements())
            time.sleep(0.1)
            command.kill()

    def _placements(self) -> bytes:
        """The map of moved tenants as it is stored."""
        nodes = self.cluster.primaries()
        return b"".join(
            self.cluster.ask(node, "GET", key)
            for node in nodes
            for key in self.cluster.ask(node, "KEYS", "*tenant-placements*")
        )


class Visitor:
    """A visitor of one tenant. A message is sent until it is answered 200, each time to the other daemon."""

    def __init__(self, shop: ClusterShop, daemons: list[Daemon], tenant: str) -> None:
        self.refused: list[str] = []
        """The messages that were refused at first."""
        self._shop, self._daemons, self._tenant = shop, daemons, tenant
        self._number = 0
        self._sessions: dict[str, str] = {}
        self.orders: dict[str, str] = {}
        """The click that each order must be credited to."""

    def served_by(self, daemon: Daemon) -> None:
        self._daemons = [daemon]

    def send(self, key: str = "Page View", message: str | None = None, path: str = TRACK, **members: Any) -> None:
        self._number += 1
        message = message or f"message-{self._number}"
        body = {"anonymousId": "visitor", "messageId": message, **members}
        if path == TRACK:
            body = {"key": key, "data": {}, **body}
        for attempt in range(400):
            answer = self._daemons[(self._number + attempt) % len(self._daemons)].post(path, body, key_of(self._tenant))
            if answer.status == 200:
                break
            assert answer.status == 503, answer
            assert answer.headers["retry-after"] == "1"
            if attempt == 0:
                self.refused.append(message)
            time.sleep(0.02)
        assert answer.status == 200, answer
        session = answer.json()["session"]["sessionId"]
        assert self._sessions.setdefault(message, session) == session

    def is_refused(self) -> bool:
        before = len(self.refused)
        self.send()
        return len(self.refused) > before

    def click(self, name: str) -> None:
        self.send(dispatchId=name)

    def order(self, name: str, click: str) -> None:
        self.orders[name] = click
        self.send("Order Completed", data={"order_id": name, "revenue": 40})

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Sends all the time."""
        ended, failures = threading.Event(), []

        def run() -> None:
            try:
                while not ended.is_set():
                    self.send()
                    time.sleep(0.005)
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not failures, failures

    def check(self) -> None:
        """Each message was stored once, in one session; each order was attributed once, to its click."""
        records: list[dict[str, Any]] = []

        def found() -> list[dict[str, Any]]:
            return [each for each in records if each["type"] == "attribution"]

        def all_found() -> bool:
            records[:] = self._shop.exported("--tenant", self._tenant)
            return len(found()) >= len(self.orders)

        wait_until(all_found)
        assert {each["orderId"]: (each["touchpoint"] or {}).get("dispatchId") for each in found()} == self.orders
        assert len(found()) == len(self.orders)
        messages = Counter(record["messageId"] for record in records if record.get("messageId"))
        assert messages == dict.fromkeys(self._sessions, 1)
        assert len({*self._sessions.values()}) == 1

    def repeat(self) -> None:
        for message in [*self._sessions]:
            self.send(message=message)


def test_a_tenant_moves_beside_two_daemons(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = Shops(tmp_path, cluster)
    hot, other = shop.tenants[0], shop.tenants[1]
    with shop.serve_with(2) as daemons:
        visitor, neighbour = Visitor(shop, daemons, hot), Visitor(shop, daemons, other)
        for each in (visitor, neighbour):
            each.send(path=IDENTIFY, userId="user")
            each.click("mail")
            each.order("first", "mail")
        shop.crm.tell(fail="away")
        visitor.click("letter")
        with visitor.sending(), neighbour.sending():
            told = shop.place(hot, 1)
        assert told["refusedSeconds"] < 10
        assert shop.partition_of(hot) == "01"
        visitor.order("second", "letter")
        visitor.order("first", "mail")
        neighbour.order("second", "mail")
        visitor.send("Order Refunded", data={"order_id": "first"})
        visitor.check()
        neighbour.check()
        assert visitor.refused
        assert not neighbour.refused
        visitor.repeat()
        visitor.check()
        shop.crm.tell()
        wait_until(lambda: json.loads(shop.command("sinks", "status", "crm", "--json"))["pending"] == 0)
        taken = Counter(record["id"] for record in shop.crm.records())
        assert taken == dict.fromkeys((record["id"] for record in shop.exported()), 1)
        reversals = [each for each in shop.exported() if each["type"] == "attribution_reversal"]
        assert [(each["orderId"], each["userId"]) for each in reversals] == [("first", "user")]
        shop.place(hot, 0)
        visitor.order("third", "letter")
        visitor.repeat()
        visitor.check()
        assert shop.partition_of(hot) == "00"


def test_a_daemon_that_stood_still_stores_nothing_in_the_former_partition(
    tmp_path: Path, cluster: RedisCluster
) -> None:
    shop = Shops(tmp_path, cluster)
    hot = shop.tenants[1]
    with shop.serve_with(2) as daemons:
        visitor = Visitor(shop, daemons, hot)
        visitor.click("mail")
        os.kill(daemons[1].pid, signal.SIGSTOP)
        time.sleep(2 * QUICK_REDIS["redis_lease"])  # until its consumers run in the other daemon
        shop.place(hot, 2)
        os.kill(daemons[1].pid, signal.SIGCONT)
        visitor.send()
        visitor.order("first", "mail")
        visitor.repeat()
        visitor.check()
        visitor.refused.clear()
        wait_until(lambda: not visitor.is_refused())


def test_a_move_can_be_given_up(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = Shops(tmp_path, cluster)
    hot = shop.tenants[2]
    with shop.serve_with(1) as daemons:
        visitor = Visitor(shop, daemons, hot)
        visitor.click("mail")
        shop.kill_place(hot, 0, halted=True)
        done = run_ingestd("partitions", "place", shop.tenants[1], "--partition", "00", config=shop.config)
        assert done.returncode == 1
        assert f"`ingestd partitions place {hot} --partition 00`" in done.stderr
        assert "has not ended" in run_ingestd("check", config=shop.config).stdout
        shop.place(hot, 2)
        visitor.order("first", "mail")
        visitor.check()
        assert shop.partition_of(hot) == "02"
    keys = [key for node in cluster.primaries() for key in cluster.ask(node, "KEYS", "*")]
    assert not [key for key in keys if b"@" in key or key.endswith(b":changed")]


def test_a_killed_move_is_ended_by_the_next_one(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = Shops(tmp_path, cluster)
    hot = shop.tenants[2]
    with shop.serve_with(2) as daemons:
        visitor = Visitor(shop, daemons, hot)
        visitor.click("mail")
        # While it copies, halts the tenant, and has moved it.
        for number, (halted, owned) in enumerate([(False, False), (True, False), (True, True)]):
            with visitor.sending():
                shop.kill_place(hot, number % 2, halted=halted, owned=owned)
                shop.place(hot, number % 2)
            for each in range(number + 1):
                visitor.order(f"order-{each}", "mail")
            visitor.check()
            assert shop.partition_of(hot) == f"{number % 2:02}"


def test_daemons_write_the_places_of_tenants_again_after_a_loss(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = Shops(tmp_path, cluster)
    hot, neighbour = shop.tenants[2], shop.tenants[1]
    with shop.serve_with(2) as daemons:
        visitor, other = Visitor(shop, daemons, hot), Visitor(shop, daemons, neighbour)
        for each in (visitor, other):
            each.click("mail")
        shop.place(hot, 1)
        time.sleep(1)  # until both daemons know that the move has ended
        for node in cluster.primaries():
            for key in cluster.ask(node, "KEYS", "*tenant-placements*"):
                cluster.ask(node, "DEL", key)
        time.sleep(1.5)  # a daemon looks more often
        for each in (visitor, other):
            each.order("first", "mail")
            each.repeat()
            each.check()
        assert shop.partition_of(hot) == "01"


async def test_a_late_command_does_not_undo_an_ended_move(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = ClusterShop(tmp_path, {}, host=own_host(), cluster=cluster, partitions=PARTITIONS)
    hot = shop.tenants[2]
    with shop.serve_with(1) as daemons:
        visitor = Visitor(shop, daemons, hot)
        visitor.click("mail")
        visitor.order("first", "mail")
        place = asyncio.to_thread(shop.command, "partitions", "place", hot, "--partition", "00")
        config = load_config(shop.config)
        plugins = load_plugins(config)
        async with open_backends(config, plugins) as backends:
            moving, stores = asyncio.create_task(place), [each.store for each in backends.partitions]
            while not backends.placements.is_changing:
                await backends.placements.learn(stores)
            with closing(TenantMove(backends, plugins, hot, quiet=True)) as late:
                await moving
                with pytest.raises(CommandError, match="another command has moved"):
                    await late.run(1)
        use_namespaces({})  # of this process
        await asyncio.to_thread(visitor.order, "second", "mail")
        await asyncio.to_thread(visitor.order, "first", "mail")
        await asyncio.to_thread(visitor.repeat)
        await asyncio.to_thread(visitor.check)


def test_commands_and_copies_have_all_of_a_moved_tenant(
    tmp_path: Path, cluster: RedisCluster, other_cluster: RedisCluster
) -> None:
    shop = Shops(tmp_path, cluster)
    hot, other = shop.tenants[:2]
    with shop.serve_with(1) as daemons:
        visitor, neighbour = Visitor(shop, daemons, hot), Visitor(shop, daemons, other)
        for each in (visitor, neighbour):
            each.send(path=IDENTIFY, userId="user", traits={"email": "a@shop.example"})
            each.click("mail")
            each.order("first", "mail")
            each.check()
        shop.place(hot, 1)
        visitor.click("letter")
        visitor.order("second", "letter")
        visitor.send("Order Refunded", data={"order_id": "first"})
        visitor.check()
        wait_until(lambda: len(shop.exported("--tenant", hot, "--type", "attribution_reversal")) == 1)
        for words in ([], ["--tenant", hot]):
            found = shop.command("attribution", "show", "second", *words, "--json").splitlines()
            assert [json.loads(each)["tenant"] for each in found] == [hot]
        found = shop.command("attribution", "show", "first", "--tenant", hot, "--json").splitlines()
        assert [json.loads(each)["type"] for each in found] == ["attribution", "attribution_reversal"]
        journey = json.dumps(daemons[0].ops(f"/journey.json?user=user&tenant={hot}").json())
        assert len(re.findall('"Order Completed"', journey)) == 2
    for url in ("sqlite:copy.db", other_cluster.url):
        shop.copy_to(url)
        with shop.serve() as daemon:
            visitor.served_by(daemon)
            visitor.repeat()
            visitor.click(f"mail to {url}")
            visitor.order(url, f"mail to {url}")
            visitor.order("first", "mail")
            visitor.check()
    counts = json.loads(shop.command("forget", "--user", "user", "--tenant", hot, "--json"))["counts"]
    records = [each for each in shop.exported("--tenant", hot) if each["type"] in {"event", "identify"}]
    assert all(each["erased"] and each["anonymousId"] is None for each in records)
    assert counts["records"] >= len(records)


def test_a_person_of_a_moved_tenant_is_forgotten(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = Shops(tmp_path, cluster)
    hot, other = shop.tenants[:2]
    with shop.serve_with(1) as daemons:
        for tenant in (hot, other):
            visitor = Visitor(shop, daemons, tenant)
            visitor.send(path=IDENTIFY, userId="user", traits={"email": "a@shop.example"})
            visitor.click("mail")
            visitor.order("first", "mail")
            visitor.check()
        shop.place(hot, 1)
        shop.place(hot, 2)
        Visitor(shop, daemons, hot).send(message="late")
        shop.place(other, 2)
        told = json.loads(shop.command("forget", "--user", "user", "--tenant", hot, "--json"))
        assert (told["counts"]["links"], told["anonymousIds"]) == (1, ["visitor"])
        records = [each for each in shop.exported("--tenant", hot) if each["type"] in {"event", "identify"}]
        assert all(each["erased"] and each["anonymousId"] is None for each in records)
        assert not [each for each in shop.exported("--tenant", other) if each.get("erased")]
    keys = [key.decode() for node in cluster.primaries() for key in cluster.ask(node, "KEYS", "*")]
    kept = {tenant: [key for key in keys if key_digest(tenant, "visitor") in key] for tenant in (hot, other)}
    assert kept[other]
    assert not kept[hot]
