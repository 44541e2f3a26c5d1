"""The journal's limits: a full journal refuses or drops records as configured, and its totals survive a kill."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.support.clients import Load, wait_until
from tests.support.daemon import Daemon, Shop

PENDING = 'ingestd_sink_pending{sink="archive"}'
DELIVERED = 'ingestd_sink_delivered_total{sink="archive"}'
LOST = 'ingestd_journal_lost_total{consumer="sink:archive"}'


def post(daemon: Daemon, shop: Shop, number: int) -> int:
    event = {"key": "Page View", "anonymousId": "visitor", "data": {"number": number}}
    return daemon.post("/track", event, shop.public.id).status


def numbers(records: list[dict[str, dict[str, int]]]) -> list[int]:
    return [record["data"]["number"] for record in records]


def recounted(database: Path) -> tuple[tuple[int, int], tuple[int, int]]:
    """The journal's stored totals of records and bytes, and the counted ones."""
    connection = sqlite3.connect(database)
    stored = connection.execute("SELECT records, bytes FROM totals").fetchone()
    counted = connection.execute("SELECT count(*), coalesce(sum(length(body) + 32), 0) FROM journal").fetchone()
    connection.close()
    return stored, counted


def test_a_full_journal_refuses_events_until_the_sink_continues(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'max_size = "50kB"'})
    shop.archive.mkdir()  # a folder in place of the file, so the sink cannot write
    with shop.serve() as daemon:
        accepted = 0
        while post(daemon, shop, accepted) == 200:
            accepted += 1
            assert accepted < 5000
        assert daemon.metric("ingestd_journal_bytes") >= 50_000
        refused = daemon.post("/identify/public", {"anonymousId": "visitor"}, shop.public.id)
        assert refused.status == 503
        assert refused.json()["detail"] == "The journal is full. Send the request again later."
        assert int(refused.headers["retry-after"]) > 0
        problem = "the journal is full ([journal] max_size = 50kB) and waits for sink:archive"
        wait_until(lambda: problem in daemon.ops("/readyz").body.decode())  # when attribution has read the journal
        assert daemon.ops("/readyz").status == 503
        assert daemon.ops("/livez").status == 200
        wait_until(lambda: daemon.metric(PENDING) == accepted)
        shop.archive.rmdir()
        wait_until(lambda: daemon.ops("/readyz").status == 200)
        assert post(daemon, shop, accepted) == 200
        wait_until(lambda: daemon.metric(DELIVERED) == accepted + 1)
        assert daemon.metric(LOST) == 0
    assert numbers(shop.archived()) == [*range(accepted + 1)]
    assert len([line for line in daemon.log if "the journal is full" in line]) == 1
    assert len([line for line in daemon.log if "the journal has room again" in line]) == 1


def test_a_journal_that_drops_records_counts_the_losses_of_the_sink(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'max_size = "50kB"\non_full = "drop"'})
    shop.archive.mkdir()
    with shop.serve() as daemon:
        sent = 0
        while not daemon.metric(LOST) or sent % 100:
            assert post(daemon, shop, sent) == 200
            sent += 1
            assert sent < 5000
        assert daemon.ops("/readyz").status == 200
        shop.archive.rmdir()
        wait_until(lambda: daemon.metric(DELIVERED) + daemon.metric(LOST) == sent)
        lost = int(daemon.metric(LOST))
        assert daemon.metric(PENDING) == 0
        assert post(daemon, shop, sent) == 200
    delivered = numbers(shop.archived())
    assert lost > 0
    assert delivered == sorted({*delivered})
    assert len(delivered) == sent + 1 - lost
    assert any("sink:archive: " in line and "removed from the journal" in line for line in daemon.log)


def test_a_kill_while_records_are_removed_leaves_the_totals_right(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'keep_size = "30kB"'})
    with Daemon(shop.config) as daemon, Load(daemon.port, shop.public.id) as load:
        wait_until(lambda: daemon.metric('ingestd_journal_removed_total{reason="size"}') > 200)
        daemon.kill()
    stored, counted = recounted(shop.database)
    assert stored == counted
    with shop.serve() as again:
        wait_until(lambda: again.metric("ingestd_journal_bytes") <= 30_000)
    stored, counted = recounted(shop.database)
    assert stored == counted
    # Removed records are in the archive. A kill may deliver some records twice.
    assert {sent.number for sent in load.answered} <= {record["data"]["number"] for record in shop.archived()}


def test_an_export_while_records_are_removed(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'keep_size = "30kB"'})
    with shop.serve() as daemon, Load(daemon.port, shop.public.id) as load:
        wait_until(lambda: daemon.metric('ingestd_journal_removed_total{reason="size"}') > 0)
        exported = [record["id"] for record in shop.exported()]
        load.stop()
    archived = [record["id"] for record in shop.archived()]
    indices = [archived.index(each) for each in exported]
    assert indices
    assert indices == sorted({*indices})


def test_old_records_are_removed_until_the_journal_is_empty(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"journal": 'keep_for = "500ms"'})
    with shop.serve() as daemon:
        for number in range(3):
            assert post(daemon, shop, number) == 200
        wait_until(lambda: daemon.metric('ingestd_journal_removed_total{reason="age"}') == 3)
        wait_until(
            lambda: daemon.metric("ingestd_journal_records") == 0
        )  # the daemon updates the metric after the removal
        assert daemon.metric("ingestd_journal_oldest_seconds") == 0
        assert post(daemon, shop, 3) == 200
    assert numbers(shop.archived()) == [0, 1, 2, 3]
