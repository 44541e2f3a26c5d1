"""A daemon that is killed at any moment: each record is in the tables of its lake once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.plugins.sinks.iceberg import IcebergSink
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.iceberg_catalogues import JavaCatalogue, WeedCatalogue, catalogue
from tests.support.sinks import configured

pytestmark = pytest.mark.long

KILLS = 40
_PATIENCE = 120.0


@pytest.fixture(params=["sqlite", WeedCatalogue, JavaCatalogue], ids=lambda kind: getattr(kind, "__name__", kind))
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {"uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"file://{tmp_path}/lake"}
        return
    (folder := tmp_path / "catalogue").mkdir()
    with catalogue(request.param, folder) as server:
        yield server.properties()


@pytest.mark.logs(".*")
def test_forty_kills_lose_and_repeat_nothing(properties: dict[str, str], tmp_path: Path) -> None:
    section = 'type = "iceberg"\nflush_every = "300ms"\ncatalog = { '
    section += ", ".join(f'"{name}" = "{value}"' for name, value in properties.items()) + " }"
    shop = Shop(tmp_path, {"sinks.tables": section})
    sink = configured(IcebergSink, "tables", {"catalog": properties}, tmp_path)
    order = {"order_id": "o", "total": 50, "currency": "EUR"}
    moments, number, commits = random.Random(63), 0, 0

    def newest() -> int | None:
        table = sink.tables.find("events")
        return None if table is None else table.metadata.current_snapshot_id

    for kill in range(KILLS):
        with Daemon(shop.config) as daemon:
            # Every other kill comes soon after a start, the others within the flushes behind the first commit.
            before, end = newest(), time.monotonic() + (moments.uniform(0.0, 2.0) if kill % 2 else _PATIENCE)
            while time.monotonic() < end:
                number += 1
                event = {"key": "Order Completed", "data": order, "anonymousId": f"v{number}"}
                assert daemon.post("/track", event, shop.public.id).status == 200
                if before not in {newest(), 0}:
                    commits, before = commits + 1, 0
                    end = time.monotonic() + moments.uniform(0.0, 1.0)
            daemon.kill()
    with shop.serve():
        wait_until(lambda: shop.is_done("attribution", "sink:tables"), 120.0)
    stored = {record["id"] for record in shop.stored()}
    tables = [sink.tables.load(name) for name in ("events", "attributions", "records")]
    found = Counter(id_ for table in tables for id_, _ in sink.tables.ids(table, 0, 10**14))
    assert found == dict.fromkeys(stored, 1)
    assert len(found) >= number
    assert commits >= KILLS // 2
    sink.tables.close()
