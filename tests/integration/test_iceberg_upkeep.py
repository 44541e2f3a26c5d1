"""The upkeep of an iceberg sink's tables: fewer files, the same records, and nothing of a person who was forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from msgspec.structs import replace
from pyiceberg.table import Table

from ingestd.testing.sinks import make_records
from tests.support.clients import wait_until
from tests.support.daemon import Shop

from .test_iceberg import DAY, NAMES, lake, of_every_table, rows_in, store

LAKE = """type = "iceberg"
catalog = {{ uri = "sqlite:///{0}/lake.db", warehouse = "file://{0}/lake" }}
flush_every = "200ms"
"""


def files_of(table: Table) -> list[str]:
    return sorted(task.file.file_path.removeprefix("file://") for task in table.scan().plan_files())


def on_disk(folder: Path, kind: str) -> list[str]:
    return sorted(str(path) for path in folder.rglob(kind))


async def test_small_files_become_one_and_the_sink_goes_on(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    records = [
        replace(each, position=position, at=each.at + position // 20 * DAY)
        for position, each in enumerate(make_records(40), 1)
    ]
    for start in range(0, 40, 5):
        await store(sink, records[start : start + 5])
    upkeep = sink.upkeep()
    before = rows_in(sink)
    assert upkeep.compact(None) == {"read": 10, "merged": 9, "written": 2}
    assert rows_in(sink) == before
    assert upkeep.compact(None) == {"read": 3}
    events = sink.tables.load("events")
    assert len(files_of(events)) == 3
    summary = events.current_snapshot().summary  # type: ignore[union-attr]
    assert json.loads(summary.additional_properties["ingestd.complete-to"])["0"]["position"] == 40  # type: ignore[union-attr]

    await store(sink, records[35:])  # a flush that a crash interrupted behind its commit
    await sink.write(records[:5])
    await sink.flush(None)  # a replay
    assert rows_in(sink) == before
    await store(sink, of_every_table(range(41, 49)))
    assert len(on_disk(tmp_path, "*.parquet")) == 17
    assert upkeep.expire(0.0)["snapshots"] == 9
    assert on_disk(tmp_path, "*.parquet") == sorted(file for name in NAMES for file in files_of(sink.tables.load(name)))
    assert len(rows_in(sink)) == 48
    await sink.close()


def test_a_person_who_is_forgotten_is_in_no_file_any_more(tmp_path: Path) -> None:
    shop = Shop(tmp_path, {"sinks.tables": LAKE.format(tmp_path)})
    order = {"order_id": "o-1", "total": 50, "revenue": 40, "currency": "EUR"}
    events: list[dict[str, Any]] = [
        {"key": "Page View", "anonymousId": "visitor-1", "context": {"campaign": {"source": "google"}}},
        {"key": "Order Completed", "anonymousId": "visitor-1", "userId": "u-17", "data": order},
        {"key": "Page View", "anonymousId": "visitor-2"},
    ]
    with shop.serve() as daemon:

        def settle() -> None:
            wait_until(lambda: shop.is_done("attribution", "sink:tables"))

        identify = {"anonymousId": "visitor-1", "userId": "u-17", "traits": {"email": "anna@example.org"}}
        assert daemon.post("/identify/public", identify, shop.public.id).status == 200
        for event in events:
            assert daemon.post("/track", {"data": {}, **event}, shop.public.id).status == 200
        settle()
        before = texts_in(tmp_path)
        shop.command("forget", "--user", "u-17")
        settle()
        counts = json.loads(shop.command("lake", "compact", "--json"))
        assert (counts["erasures"], counts["blanked"]) == (1, 4)
        assert daemon.post("/track", {"data": {}, **events[2]}, shop.public.id).status == 200
        settle()
    assert lake(tmp_path).upkeep().expire(0.0)["files"] > 4
    assert all(text in before for text in ("visitor-1", "u-17", "anna@example.org", "visitor-2"))
    after = texts_in(tmp_path)
    assert [text in after for text in ("visitor-1", "u-17", "anna@example.org", "visitor-2")] == [False] * 3 + [True]
    rows = rows_in(lake(tmp_path))
    assert sorted(row["type"] for row in rows) == ["attribution", "erasure", *["event"] * 4, "identify"]
    (attribution,) = [row for row in rows if row["type"] == "attribution"]
    assert (attribution["revenue"], attribution["channel"]) == (40, "Organic Search")


def texts_in(folder: Path) -> str:
    """The content of all data files, those that no snapshot has included."""
    return "".join(str(pq.read_table(path).to_pylist()) for path in folder.rglob("*.parquet"))
