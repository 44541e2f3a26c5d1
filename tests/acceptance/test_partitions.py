"""The installed daemon on a store with several partitions: each tenant has one, and they fail independently."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Load, wait_until
from tests.support.daemon import Daemon, run_ingestd
from tests.support.partitioned import PartitionedShop, partitions_installed
from tests.support.sqlite_lock import locked

CONSUMERS = "sink:archive", "attribution"

PICKY = """
from ingestd.api import hookimpl
from ingestd.api.errors import SinkReject
from ingestd.api.sink import Sink


class Picky(Sink):
    async def write(self, batch):
        wrong = {index: "too bad" for index, record in enumerate(batch) if b"spoilt" in record.body}
        if wrong:
            raise SinkReject(wrong)


@hookimpl
def register_sinks(register):
    register("picky", Picky)
"""


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with partitions_installed(tmp_path_factory.mktemp("site"), {"picky": PICKY}):
        yield


@pytest.fixture
def shop(tmp_path: Path) -> PartitionedShop:
    return PartitionedShop(tmp_path)


def page_view(visitor: str, **further: Any) -> dict[str, Any]:
    return {"key": "Page View", "anonymousId": visitor, "data": {}, **further}


def stored(shop: PartitionedShop, index: int) -> list[dict[str, Any]]:
    """The records in the journal of a partition."""
    with closing(sqlite3.connect(f"file:{shop.file(index)}?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT CAST(body AS BLOB) FROM journal ORDER BY position").fetchall()
    return [json.loads(body) for (body,) in rows]


def send(daemon: Daemon, shop: PartitionedShop, visitor: str) -> list[int]:
    """Send an event of each tenant, and return the statuses, by partition."""
    return [daemon.post("/track", page_view(visitor), shop.keys[tenant].id).status for tenant in shop.tenants]


def test_each_tenant_has_its_partition_and_a_sink_gets_the_records_of_all(shop: PartitionedShop) -> None:
    with shop.serve() as daemon:
        for number in range(5):
            assert send(daemon, shop, f"visitor {number}") == [200, 200, 200]
        for tenant in shop.tenants:
            batch = {"events": [page_view("in a batch", messageId=f"message {number}") for number in range(20)]}
            assert daemon.post("/batch", batch, shop.keys[tenant].id).status == 200
            again = daemon.post("/track", page_view("in a batch", messageId="message 3"), shop.keys[tenant].id)
            assert again.status == 200
        wait_until(lambda: shop.is_done(*CONSUMERS))
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == 75)
        wait_until(lambda: daemon.metric("ingestd_journal_records") == 75)
        assert daemon.metric('ingestd_sink_pending{sink="archive"}') == 0
        assert daemon.metric('ingestd_consumer_pending{consumer="attribution"}') == 0
        assert daemon.metric("ingestd_store_up") == 1
        assert daemon.ops("/readyz").body == b"ok\n"
    for index, tenant in enumerate(shop.tenants):
        assert [record["tenant"] for record in stored(shop, index)] == [tenant] * 25
    ids = [record["id"] for index in range(3) for record in stored(shop, index)]
    assert sorted(record["id"] for record in shop.archived()) == sorted(ids)


def test_a_partition_that_cannot_store_refuses_only_its_own_tenants(shop: PartitionedShop) -> None:
    with shop.serve() as daemon:
        with locked(shop.file(1)):
            assert send(daemon, shop, "before") == [200, 503, 200]
            assert send(daemon, shop, "meanwhile") == [200, 503, 200]
            ready = daemon.ops("/readyz")
            assert ready.status == 200
            assert ready.body.startswith(b"ok, but 1 of 3 partitions have a problem: partition 1 (1 tenant): ")
            assert daemon.metric("ingestd_store_up") == pytest.approx(2 / 3)
            wait_until(lambda: len(shop.archived()) == 4)
        wait_until(lambda: send(daemon, shop, "after") == [200, 200, 200])
        wait_until(lambda: daemon.metric("ingestd_store_up") == 1)
        wait_until(lambda: shop.is_done(*CONSUMERS))
    ids = [record["id"] for index in range(3) for record in stored(shop, index)]
    assert sorted(record["id"] for record in shop.archived()) == sorted(ids)


def test_the_counts_of_a_sink_are_those_of_all_partitions(tmp_path: Path) -> None:
    shop = PartitionedShop(tmp_path)
    allowed = json.dumps(shop.tenants[:2])
    shop.config.write_text(
        shop.config.read_text() + f'[sinks.picky]\ntype = "picky"\nfilter = {{ tenants = {allowed} }}\n'
    )

    def count(name: str) -> float:
        return daemon.metric(f'ingestd_sink_{name}{{sink="picky"}}')

    with shop.serve() as daemon:
        for number in range(10):
            assert send(daemon, shop, "spoilt" if number % 5 == 0 else f"visitor {number}") == [200, 200, 200]
        wait_until(lambda: shop.is_done("sink:picky"))
        wait_until(lambda: (count("delivered_total"), count("filtered_total"), count("dead_letters")) == (16, 10, 4))
        wait_until(lambda: daemon.metric("ingestd_journal_records") == 30)
        assert count("pending") == 0
        daemon.read_log()
    assert [line for line in daemon.log if "too bad" in line]


def test_a_daemon_is_not_ready_if_no_partition_can_store(shop: PartitionedShop) -> None:
    with shop.serve() as daemon:
        with locked(shop.file(0)), locked(shop.file(1)), locked(shop.file(2)):
            assert send(daemon, shop, "visitor") == [503, 503, 503]
            assert daemon.ops("/readyz").status == 503
            assert daemon.metric("ingestd_store_up") == 0
        wait_until(lambda: daemon.ops("/readyz").status == 200)


def test_a_daemon_starts_without_a_partition_that_is_away(shop: PartitionedShop) -> None:
    with shop.away(2), shop.serve() as daemon:
        assert send(daemon, shop, "visitor") == [200, 200, 503]
        assert daemon.ops("/readyz").status == 200
        assert daemon.metric("ingestd_store_up") == pytest.approx(2 / 3)
        wait_until(lambda: len(shop.archived()) == 2)
        daemon.read_log()
        told = [line for line in daemon.log if "partition 2" in line]
        assert len(told) < 15, told
    with shop.serve() as daemon:
        assert send(daemon, shop, "visitor") == [200, 200, 200]
        wait_until(lambda: len(shop.archived()) == 5)


def test_a_full_journal_refuses_only_the_tenants_of_its_partition(tmp_path: Path) -> None:
    stuck = 'type = "webhook"\nurl = "http://127.0.0.1:9"'
    tables = {
        "journal": 'max_size = "20kB"\non_full = "refuse"',
        "sinks.stuck": stuck,
        "http": 'shutdown_timeout = "100ms"',
    }
    shop = PartitionedShop(tmp_path, tables)
    with shop.serve() as daemon:
        key = shop.keys[shop.tenants[1]].id
        wait_until(lambda: daemon.post("/track", page_view("x" * 200), key).status == 503)
        assert send(daemon, shop, "visitor") == [200, 503, 200]
        assert b"the journal of partition 1 (1 tenant) is full" in daemon.ops("/readyz").body


def test_no_acknowledged_event_is_lost_by_a_kill(shop: PartitionedShop) -> None:
    with Daemon(shop.config) as daemon, ExitStack() as stack:
        loads = [Load(daemon.port, shop.keys[tenant].id, tenant, threads=2) for tenant in shop.tenants]
        for load in loads:
            stack.enter_context(load)
        wait_until(lambda: all(len(load.answered) > 50 for load in loads))
        daemon.kill()
    with shop.serve():
        wait_until(lambda: shop.is_done(*CONSUMERS))
    archived = {record["id"] for record in shop.archived()}
    for index, load in enumerate(loads):
        assert {record["id"] for record in stored(shop, index)} <= archived
        numbers = {record["data"]["number"] for record in stored(shop, index)}
        assert {sent.number for sent in load.answered} <= numbers


def test_a_reload_exchanges_a_sink_in_all_partitions(shop: PartitionedShop) -> None:
    with Daemon(shop.config, environment={"RUNTIME_DIRECTORY": str(shop.folder)}) as daemon:
        send(daemon, shop, "before")
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == 3)
        text = shop.config.read_text()
        second = '[sinks.second]\ntype = "jsonl"\npath = "second.jsonl"\nstart = "beginning"\n'
        shop.config.write_text(text.replace('path = "archive.jsonl"', 'path = "other.jsonl"') + second)
        done = run_ingestd("reload", "--directory", str(shop.folder))
        assert done.returncode == 0, done.stderr
        send(daemon, shop, "after")
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="archive"}') == 6)
        wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="second"}') == 6)
        assert daemon.terminate() == 0
    assert len(shop.archived()) == 3
    assert len((shop.folder / "other.jsonl").read_text().splitlines()) == 3
    assert len((shop.folder / "second.jsonl").read_text().splitlines()) == 6
