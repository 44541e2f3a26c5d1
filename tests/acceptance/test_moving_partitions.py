"""`ingestd store copy` from and to a Redis Cluster: all that the tenants have goes on there, nothing twice."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingestd.api.contents import Entry
from ingestd.api.store import Field, state_key
from ingestd.api.times import now
from ingestd.plugins.stores.sqlite import SqliteBackend
from tests.support.clients import wait_until
from tests.support.cluster_shop import ClusterShop, key_of
from tests.support.daemon import Daemon, run_ingestd
from tests.support.forked import INGESTD, Command
from tests.support.journeys import IDENTIFY, TRACK
from tests.support.ports import own_host
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.told_sink import Told

pytestmark = pytest.mark.usefixtures("told_sink")

SQLITE = "sqlite:ingestd.db"
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


@pytest.fixture(autouse=True)
def _empty(cluster: RedisCluster, other_cluster: RedisCluster) -> None:
    for each in (cluster, other_cluster):
        for node in each.primaries():
            each.ask(node, "FLUSHALL")


class Shops(ClusterShop):
    """A shop of several tenants, which begins on SQLite. Tests control its sink `crm`."""

    def __init__(self, folder: Path, cluster: RedisCluster) -> None:
        self.crm = Told(folder)
        tables = {"http": 'shutdown_timeout = "500ms"', **self.crm.options(QUICK)}
        super().__init__(folder, tables, host=own_host(), cluster=cluster, partitions=PARTITIONS)
        self.url = cluster.url
        self.name(SQLITE)

    def name(self, url: str) -> None:
        """Let the configuration name this store."""
        text = self.config.read_text()
        assert f'"{self.url}"' in text
        self.config.write_text(text.replace(f'"{self.url}"', f'"{url}"'))
        self.url = url

    def move(self, url: str) -> dict[str, Any]:
        """Copy to another store, and go on with the copy. Returns what the command printed."""
        done = run_ingestd(
            "store", "copy", "--from", self.url, "--to", url, "--json", config=self.config, timeout=60
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.name(url)
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """The records of each tenant."""
        exported = self.exported()
        return {tenant: [each for each in exported if each["tenant"] == tenant] for tenant in self.tenants}

    def status(self) -> dict[str, int]:
        told = json.loads(self.command("sinks", "status", "crm", "--json"))
        return {name: told[name] for name in ("delivered", "pending", "deadLetters")}


class Visits:
    """A visitor of each tenant, who comes again after each move."""

    def __init__(self, shop: Shops) -> None:
        self._shop = shop
        self._answers: dict[tuple[str, str], Any] = {}
        self._number = 0

    def visit(self, daemon: Daemon) -> None:
        """Each visitor repeats the last message, sends a new one, clicks on a mail, and orders, also again."""
        number = self._number
        self._number += 1
        for tenant in self._shop.tenants:
            for each in range(max(0, number - 1), number + 1):
                self._send(daemon, tenant, f"message-{each}", data={"number": f"{tenant} {each}"})
            if number == 0:
                body = {"anonymousId": "visitor", "userId": "user"}
                assert daemon.post(IDENTIFY, body, key_of(tenant)).status == 200
            self._send(daemon, tenant, f"mail-{number}", dispatchId=f"mail-{number}")
            for each in range(number + 1):
                order = {"order_id": f"order-{each}", "revenue": 40, "number": f"{tenant} order"}
                self._send(daemon, tenant, f"order-{number}-{each}", key="Order Completed", data=order)
        wait_until(self._is_attributed)

    def _send(self, daemon: Daemon, tenant: str, message: str, **members: Any) -> None:
        body = {"key": "Page View", "data": {}, "anonymousId": "visitor", "messageId": message, **members}
        answer = daemon.post(TRACK, body, key_of(tenant))
        assert answer.status == 200
        known = self._answers.setdefault((tenant, message), answer.json())
        assert known["session"]["sessionId"] == answer.json()["session"]["sessionId"]

    def _is_attributed(self) -> bool:
        found = Counter((record["tenant"], record["orderId"]) for record in self._shop.archived('"attribution"'))
        return len(found) == len(self._shop.tenants) * self._number

    def check(self) -> None:
        """Each order was attributed once, to the mail before it; each message has one record, in one session."""
        records = self._shop.exported()
        orders = [record for record in records if record["type"] == "attribution"]
        mails = {(record["tenant"], record["orderId"]): record["touchpoint"]["dispatchId"] for record in orders}
        assert len(orders) == len(mails) == len(self._shop.tenants) * self._number
        assert all(mail == order.replace("order", "mail") for (_, order), mail in mails.items())
        messages = [(record["tenant"], record["messageId"]) for record in records if record.get("messageId")]
        assert len(messages) == len({*messages}) == len(self._answers)
        assert len({(record["tenant"], record["sessionId"]) for record in records if record.get("messageId")}) == len(
            self._shop.tenants
        )
        late = [record for record in records if (record.get("messageId") or "").startswith("mail")]
        assert {record["userId"] for record in late} == {"user"}
        archived = [record["id"] for record in self._shop.archived()]
        assert len(archived) == len({*archived})


def test_a_shop_moves_to_a_cluster_and_to_another_one(
    tmp_path: Path, cluster: RedisCluster, other_cluster: RedisCluster
) -> None:
    shop = Shops(tmp_path, cluster)
    visits, tenants = Visits(shop), shop.tenants
    shop.crm.tell(reject={f"{tenants[1]} 0": "no", f"{tenants[2]} 0": "no", f"{tenants[2]} order": "no"})
    with shop.serve() as daemon:
        visits.visit(daemon)
        wait_until(lambda: shop.is_done("sink:archive", "sink:crm", "attribution"))
        shop.crm.tell(fail="away")
        shop.command("sinks", "pause", "crm")
        visits.visit(daemon)
        wait_until(lambda: shop.is_done("sink:archive", "attribution"))
    before, records = shop.status(), shop.records()
    assert before["deadLetters"] == 3
    assert before["pending"] > 0
    for number, url in enumerate((cluster.url, other_cluster.url)):
        printed = shop.move(url)
        assert len(printed["partitions"]) == PARTITIONS
        assert shop.status() == before
        assert shop.records() == records
        if number == 0:
            with shop.serve() as daemon:
                visits.visit(daemon)
            before, records = shop.status(), shop.records()
        visits.check()
    shop.crm.tell()
    with shop.serve() as daemon:
        shop.command("sinks", "resume", "crm")
        visits.visit(daemon)
        wait_until(lambda: shop.status()["pending"] == 0)
        for letter in ("01:1", "02:2-3"):
            shop.command("sinks", "dead-letters", "retry", "crm", letter)
        wait_until(lambda: shop.status()["deadLetters"] == 0)
    visits.check()
    taken = Counter(record["id"] for record in shop.crm.records())
    assert taken == dict.fromkeys((record["id"] for record in shop.exported()), 1)


def copy(shop: Shops, url: str, *arguments: str, code: int) -> str:
    """The output of a copy to another store, or the reason for this exit code."""
    command = ["store", "copy", "--from", shop.url, "--to", url, *arguments]
    done = run_ingestd(*command, config=shop.config, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stderr.splitlines()[-1] if code else done.stdout


def kill_copy(shop: Shops, url: str, *arguments: str) -> None:
    """Begin a copy to another store, and kill it among the records."""
    command = [INGESTD, "store", "copy", "--from", shop.url, "--to", url, *arguments, "--config", str(shop.config)]
    with Command(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stderr is not None
        line = killed.stderr.readline()
        assert line.endswith("records\n"), line
        killed.kill()


async def test_what_a_copy_leaves_out_and_how_it_continues(tmp_path: Path, cluster: RedisCluster) -> None:
    shop = Shops(tmp_path, cluster)
    with shop.serve() as daemon:
        Visits(shop).visit(daemon)
        wait_until(lambda: shop.is_done("sink:archive", "sink:crm", "attribution"))
    backend = SqliteBackend(shop.folder / "ingestd.db", cache=1000, busy_timeout=1.0)
    await backend.open(serving=False)
    assert backend.contents is not None
    profile = {"plan": Field(1, '"free"')}
    unknown = [Entry(state_key("user-profile", "gone", user), fields=profile) for user in ("a", "b")]
    passing = Entry(state_key("session", "gone", "visitor"), "session", expires=now() + 3_600_000)
    await backend.contents.replace([*unknown, passing])
    await backend.close()
    kill_copy(shop, cluster.url, "--prepare")
    assert copy(shop, cluster.url, "--prepare", code=0).startswith("prepared:")
    assert "cannot be found (2 user-profile)" in copy(shop, cluster.url, code=1)
    shop.name(cluster.url)
    done = run_ingestd("serve", config=shop.config)
    assert done.returncode == 78
    assert "is unfinished" in done.stderr
    shop.name(SQLITE)
    printed = copy(shop, cluster.url, "--leave-unknown", code=0)
    assert "left out, because their tenant is unknown: 2 user-profile" in printed
    shop.name(cluster.url)
    done = run_ingestd("store", "compare", "--from", SQLITE, "--to", cluster.url, config=shop.config)
    assert done.returncode == 1
    assert all(f"{each.key} is missing" in done.stderr for each in unknown)
    with shop.serve():
        pass


def test_a_shop_moves_between_different_numbers_of_partitions(
    tmp_path: Path, cluster: RedisCluster, other_cluster: RedisCluster
) -> None:
    shop = Shops(tmp_path, cluster)
    shop.name(cluster.url)
    visits, tenants = Visits(shop), shop.tenants
    shop.crm.tell(reject={f"{tenants[1]} 0": "no", f"{tenants[2]} 0": "no", f"{tenants[2]} order": "no"})
    with shop.serve() as daemon:
        visits.visit(daemon)
        wait_until(lambda: shop.status()["pending"] == 0)
        shop.crm.tell(fail="away")
        shop.command("sinks", "pause", "crm")
    for url, partitions in ((other_cluster.url, PARTITIONS - 1), ("sqlite:back.db", 1)):
        before = shop.folder / f"before-{partitions}.toml"
        before.write_text(shop.config.read_text())
        own = ["--from-config", str(before)]
        with shop.serve() as daemon:
            body = {"key": "Page View", "anonymousId": "forgotten", "data": {"note": f"private {partitions}"}}
            assert daemon.post(TRACK, body, key_of(tenants[0])).status == 200
            visits.visit(daemon)
            text = before.read_text()
            shop.config.write_text(re.sub(r"partitions = \d+", f"partitions = {partitions}", text))
            kill_copy(shop, url, "--prepare", *own)
            assert copy(shop, url, "--prepare", *own, code=0).startswith("prepared:")
            shop.config.write_text(text)
            shop.command("forget", "--anonymous", "forgotten", "--tenant", tenants[0])
            visits.visit(daemon)
        status, records = shop.status(), shop.records()
        report = shop.command("attribution", "report", "--since", "2d")
        assert status["deadLetters"] == 3
        assert status["pending"] > 0
        shop.config.write_text(re.sub(r"partitions = \d+", f"partitions = {partitions}", text))
        assert "copied, and the same on both sides" in copy(shop, url, *own, code=0)
        done = run_ingestd(
            "store", "compare", "--from", shop.url, "--to", url, *own, config=shop.config, timeout=60
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        shop.name(url)
        assert shop.status() == status
        assert shop.records() == records
        assert "private" not in str(records)
        # A journal of another position at the beginning may be without earlier records, and the report says so.
        reports = [report, shop.command("attribution", "report", "--since", "2d")]
        rows = [text.partition("\nthe journal begins at")[0].rstrip("\n") for text in reports]
        assert rows[0] == rows[1]
    shop.crm.tell()
    with shop.serve() as daemon:
        shop.command("sinks", "resume", "crm")
        visits.visit(daemon)
        wait_until(lambda: shop.status()["pending"] == 0)
        shop.command("sinks", "dead-letters", "retry", "crm", "1-3")
        wait_until(lambda: shop.status()["deadLetters"] == 0)
    visits.check()
    taken = Counter(record["id"] for record in shop.crm.records())
    assert taken == dict.fromkeys((record["id"] for record in shop.exported()), 1)
