"""The upkeep of an iceberg sink's tables: fewer files, the same records, and nothing of a person who was forgotten."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions.visitors import _ManifestEvalVisitor
from pyiceberg.table import Table

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.plugins.sinks.iceberg import sorting
from ingestd.plugins.sinks.iceberg import upkeep as upkeep_module
from ingestd.plugins.sinks.iceberg.upkeep import Upkeep
from ingestd.testing.sinks import make_records
from tests.support.clients import wait_until
from tests.support.daemon import Shop
from tests.support.forked import with_libraries

from .test_iceberg import DAY, NAMES, lake, of_every_table, rows_in, store

PATIENCE = 120.0
"""To import the libraries takes seconds of CPU time, in each command."""
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
    assert upkeep.old.expire(0.0)["snapshots"] == 9
    assert on_disk(tmp_path, "*.parquet") == sorted(file for name in NAMES for file in files_of(sink.tables.load(name)))
    assert len(rows_in(sink)) == 48
    await sink.close()


async def test_threads_that_look_for_the_replaced_files_find_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake(tmp_path)
    await sink.open()
    for position, each in enumerate(make_records(6), 1):
        await store(sink, [replace(each, position=position, at=each.at + position * DAY)])
    before = rows_in(sink)

    def slow(name: str, seconds: Iterator[float]) -> None:
        method = getattr(_ManifestEvalVisitor, name)

        def slowly(*arguments: object, **named: object) -> bool:
            time.sleep(next(seconds))
            return bool(method(*arguments, **named))

        monkeypatch.setattr(_ManifestEvalVisitor, name, slowly)

    # A thread looks at each manifest. They begin one after another, and compare one file each in the time between.
    slow("eval", cycle(0.01 * number for number in range(6)))
    slow("visit_equal", repeat(0.005))
    assert sink.upkeep().compact(None, all_files=True) == {"read": 6, "merged": 6, "written": 6}
    assert rows_in(sink) == before
    await sink.close()


async def test_the_order_of_rows_does_not_depend_on_the_memory_for_sorting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(4)
    sink = lake(tmp_path)
    await sink.open()
    for begin in range(1, 121, 30):
        records = make_records(30, data={"title": "t" * 300})
        await store(
            sink,
            [
                replace(each, position=position, at=each.at + chance.randrange(5), body=_with_key(each, chance))
                for position, each in enumerate(records, begin)
            ],
        )
    before = rows_in(sink)
    monkeypatch.setattr(sorting, "_RUN", 9_000)
    monkeypatch.setattr(sorting, "_WINDOW", 1_500)
    monkeypatch.setattr(upkeep_module, "ROW_GROUP", 5_000)
    assert sink.upkeep().compact(None)["written"] == 1
    assert rows_in(sink) == before
    (path,) = files_of(sink.tables.load("events"))
    rows = [(row["key"], row["received_at"]) for row in pq.read_table(path).to_pylist()]
    assert rows == sorted(rows)
    groups = pq.ParquetFile(path).metadata
    bounds = [groups.row_group(each).column(2).statistics for each in range(groups.num_row_groups)]
    assert len(bounds) > 5
    assert any(each.max < "b" for each in bounds)  # a reader of one key leaves out the others
    await sink.close()


def _with_key(record: Record, chance: random.Random) -> bytes:
    return json.dumps({**record.decode(), "key": chance.choice("abc")}).encode()


def test_memory_has_a_bound_however_well_the_rows_compress(tmp_path: Path) -> None:
    """The files have some megabytes, their rows 210. Without the bound, the program needs 640."""
    program = f"""
import asyncio, pyarrow as pa
from pathlib import Path
from msgspec.structs import replace
from ingestd.testing.sinks import make_records
from tests.plugins.sinks.iceberg.test_iceberg import lake, store
async def fill():
    sink = lake(Path({str(tmp_path)!r}), max_size="1GiB")
    await sink.open()
    for begin in range(0, 14_000, 2_000):
        records = make_records(2_000, data={{"title": "t" * 15_000}})
        await store(sink, [replace(each, position=begin + number) for number, each in enumerate(records, 1)])
    await sink.close()
    assert sink.upkeep().compact(None)["written"] == 1
asyncio.run(fill())
print(pa.default_memory_pool().max_memory())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert int(found.stdout) < 200 << 20


async def test_an_expiry_amid_a_compaction_does_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a delete by another writer does: the row would be there again."""
    sink = lake(tmp_path)
    await sink.open()
    for begin in (1, 9, 17):
        await store(sink, of_every_table(range(begin, begin + 8)))
    before = rows_in(sink)
    upkeep, whole = sink.upkeep(), Upkeep._replace

    def amid(work: Callable[[], object]) -> None:
        def replaced(self: Upkeep, *arguments: Any) -> None:
            work()
            whole(self, *arguments)

        monkeypatch.setattr(Upkeep, "_replace", replaced)

    amid(lambda: lake(tmp_path).upkeep().old.expire(0.0))
    assert upkeep.compact(None)["merged"] > 0
    assert rows_in(sink) == before
    for begin in (25, 33):
        await store(sink, of_every_table(range(begin, begin + 8)))
    amid(lambda: sink.tables.load("attributions").delete("position > 32"))
    with pytest.raises(SinkRetry, match="another writer has changed attributions"):
        upkeep.compact(None)
    assert max(row["position"] for row in rows_in(sink, "attributions")) <= 32
    await sink.close()


async def test_a_compaction_writes_no_files_for_partitions_that_another_writer_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake(tmp_path)
    await sink.open()
    for begin in (1, 9):
        await store(sink, of_every_table(range(begin, begin + 8)))
    before, whole = rows_in(sink), Upkeep._replace

    def replaced(self: Upkeep, table: Table, *arguments: Any) -> None:
        if table.name()[-1] == "events":
            with sink.tables.load("events").update_spec() as update:
                update.remove_field("tenant")
        whole(self, table, *arguments)

    monkeypatch.setattr(Upkeep, "_replace", replaced)
    with pytest.raises(SinkRetry, match="another writer has changed events meanwhile"):
        sink.upkeep().compact(None)
    with pytest.raises(SinkRetry, match="events is not partitioned by the day of received_at and the tenant"):
        sink.upkeep().compact(None)
    assert rows_in(sink) == before
    await sink.close()


async def test_a_snapshot_that_two_expire_at_once_stops_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake(tmp_path)
    await sink.open()
    meetings: list[Callable[[], object]] = []
    whole = SqlCatalog.commit_table

    def commit_table(catalog: SqlCatalog, table: Table, *arguments: Any) -> Any:
        if meetings:
            meetings.pop()()
        return whole(catalog, table, *arguments)

    def expire() -> object:
        return lake(tmp_path).upkeep().old.expire(0.0)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    for begin in range(1, 33, 8):
        await store(sink, of_every_table(range(begin, begin + 8)))
    meetings.append(expire)
    expire()
    for begin in range(33, 57, 8):
        await store(sink, of_every_table(range(begin, begin + 8)))
    await sink.close()
    hasty = lake(tmp_path, keep_snapshots="1ms")
    await hasty.open()
    meetings.append(expire)
    await store(hasty, of_every_table(range(57, 65)))
    assert meetings == []
    assert len(rows_in(hasty)) == 64
    await hasty.close()


async def test_an_expiry_removes_what_crashes_have_left_after_a_day(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    batch = of_every_table(range(1, 9))
    await store(sink, batch)
    await store(sink, of_every_table(range(9, 17)))
    folder = tmp_path / "lake" / "ingestd" / "events"
    data = next(folder.rglob("*.parquet"))
    left = [data.with_name("x.parquet"), folder / "metadata/x.avro", folder / "metadata/00007-x.metadata.json"]
    own = [path for path in folder.rglob("*") if path.is_file()]
    for path in left:
        path.write_bytes(data.read_bytes())
    assert sink.upkeep().old.expire(86_400.0) == {"snapshots": 0}
    for path in [*own, *left]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert sink.upkeep().old.expire(86_400.0) == {"snapshots": 0, "files": 3}
    assert [path.exists() for path in left] == [False] * 3
    assert all(path.exists() for path in own)
    assert len(rows_in(sink)) == 16
    await sink.close()


async def test_a_rewrite_fills_the_columns_of_a_schema_that_came_later(tmp_path: Path) -> None:
    def survey(**properties: Any) -> dict[str, Any]:
        return {"Shop Survey": {"type": "object", "properties": properties}}

    sink = lake(tmp_path, survey(mood={"type": "string"}))
    await sink.open()
    records = make_records(3, key="Shop Survey", data={"score": 4, "mood": "good"})
    await store(sink, [replace(each, position=number) for number, each in enumerate(records, 1)])
    await sink.close()
    # The schema of `mood` is gone, and its column stays as it is.
    sink = lake(tmp_path, survey(score={"type": "integer"}))
    await sink.open()
    assert [(row["score"], row["mood"]) for row in rows_in(sink, "events")] == [(None, "good")] * 3
    before = rows_in(sink)
    assert sink.upkeep().compact(None, all_files=True) == {"read": 1, "merged": 1, "written": 1}
    assert rows_in(sink) == [{**row, "score": 4} for row in before]
    await sink.close()


def test_the_metadata_of_a_table_names_nobody(tmp_path: Path) -> None:
    """Columns by which a reader chooses files have bounds in the manifests, and others have none."""
    asyncio.run(_stored(tmp_path, of_every_table(range(1, 9))))
    sink = lake(tmp_path)
    texts = []
    for name in NAMES:
        table = sink.tables.load(name)
        files = [task.file for task in table.scan().plan_files()]
        bounds = {number for file in files for number in {**file.lower_bounds, **file.upper_bounds}}
        named = {table.schema().find_column_name(number) for number in bounds}
        assert named <= {"id", "key", "received_at", "tenant", "timestamp", "type", "position"}
        texts += [str(file.lower_bounds) + str(file.upper_bounds) for file in files]
    assert "ada@shop.example" in str(rows_in(sink, "identifies"))
    assert "ada@" not in str(texts)


async def _stored(folder: Path, records: list[Record]) -> None:
    sink = lake(folder)
    await sink.open()
    await store(sink, records)
    await sink.close()


@pytest.fixture
def _libraries() -> Iterator[None]:
    """For commands of lakes. Each would need a second of CPU time to import them."""
    with with_libraries("ingestd.plugins.sinks.iceberg.upkeep", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"):
        yield


@pytest.mark.usefixtures("_libraries")
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
            wait_until(lambda: shop.is_done("attribution", "sink:tables"), PATIENCE)

        identify = {"anonymousId": "visitor-1", "userId": "u-17", "traits": {"email": "anna@example.org"}}
        assert daemon.post("/identify/public", identify, shop.public.id).status == 200
        for event in events:
            assert daemon.post("/track", {"data": {}, **event}, shop.public.id).status == 200
        settle()
        before = texts_in(tmp_path)
        shop.command("forget", "--user", "u-17", "--dry-run")
        told = shop.command("forget", "--user", "u-17")
        (until,) = re.findall(r"`ingestd lake expire tables`, at the earliest after (\S+)\n", told)
        assert 47 < hours_until(until) <= 48.1
        settle()
        assert "in the tables until `ingestd lake compact`" in shop.command("lake", "erasures", timeout=PATIENCE)
        counts = json.loads(shop.command("lake", "compact", "--json", timeout=PATIENCE))
        assert (counts["erasures"], counts["blanked"]) == (1, 4)
        (erasure,) = json.loads(shop.command("lake", "erasures", "--json", timeout=PATIENCE))
        assert erasure["snapshots"] > 0
        assert 47 < hours_until(erasure["until"]) <= 48.1
        assert f"after {erasure['until']}" in shop.command("lake", "erasures", timeout=PATIENCE)
        assert (
            json.loads(shop.command("lake", "expire", "--json", timeout=PATIENCE))["personsUntil"] == erasure["until"]
        )
        assert daemon.post("/track", {"data": {}, **events[2]}, shop.public.id).status == 200
        settle()
    expired = json.loads(shop.command("lake", "expire", "--older-than", "0s", "--json", timeout=PATIENCE))
    assert (expired["files"] > 4, expired["personsUntil"]) == (True, None)
    (erasure,) = json.loads(shop.command("lake", "erasures", "--json", timeout=PATIENCE))
    assert (erasure["snapshots"], erasure["files"], erasure["until"]) == (0, 0, None)
    assert "gone; blanked at" in shop.command("lake", "erasures", timeout=PATIENCE)
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


def hours_until(text: str) -> float:
    return (datetime.fromisoformat(text) - datetime.now(UTC)).total_seconds() / 3600
