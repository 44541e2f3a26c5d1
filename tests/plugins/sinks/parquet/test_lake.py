"""`ingestd lake compact`: fewer files, the same records, and nothing of a person who was forgotten."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.api.times import format_time
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.plugins.sinks.parquet.lake import Lake, LocalFolder
from ingestd.plugins.tools.lake import Compaction
from ingestd.support.unusable_ids import UnusableIds
from ingestd.testing.sinks import make_records
from ingestd.testing.writes import span_of
from tests.support.clients import wait_until
from tests.support.daemon import Shop, run_ingestd
from tests.support.sinks import configured, ids_of

DAY = 86_400_000


def compacted(folder: Path) -> dict[str, int]:
    """The counts, without those that are zero."""
    compaction = Compaction(Lake(LocalFolder(folder), []), UnusableIds())
    compaction.run()
    return dict(+compaction.counts)


def records_in(folder: Path) -> list[dict[str, Any]]:
    found = duckdb.sql(f"SELECT record, type, date FROM '{folder}/*/*/*.parquet' ORDER BY position")
    assert found is not None
    return [json.loads(record) for record, *_ in found.fetchall()]


def shop_with_lake(folder: Path, more: str = "") -> Shop:
    return Shop(folder, {"sinks.lake": f'type = "parquet"\npath = "lake"\n{more}'})


async def store_in_files(sink: ParquetSink, records: list[Record], size: int) -> None:
    for start in range(0, len(records), size):
        await sink.write(records[start : start + size])
        await sink.flush(span_of(records[start : start + size]))


async def test_the_files_of_a_day_become_one_and_each_record_stays(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    records = [
        replace(each, position=position, at=each.at + position // 20 * DAY)
        for position, each in enumerate(make_records(40), 1)
    ]
    sink = configured(ParquetSink, "lake", {"path": "lake"}, tmp_path)
    await sink.open()
    await store_in_files(sink, records, 5)
    # A file of another tool, with other types for the same.
    first = min(folder.rglob("*.parquet"))
    table = pq.read_table(first, partitioning=None).drop_columns(["type", "date"])
    table = table.set_column(0, "id", table["id"].cast(pa.large_string()))
    time = table["received_at"].cast(pa.timestamp("us", "Europe/Warsaw"))
    pq.write_table(table.set_column(7, "received_at", time), first.with_name("data_0.parquet"))
    first.unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}

    assert compacted(folder) == {"read": 10, "merged": 9, "written": 2}
    assert len([*folder.rglob("*.parquet")]) == 3
    assert [each["id"] for each in records_in(folder)] == ids_of(records)
    assert compacted(folder) == {"read": 3}
    for path, content in [*before.items()][:4]:  # as a kill behind the first merged file leaves it
        path.write_bytes(content)
    (first.parent / ".1-40-merged-0123456789ab.parquet.part").write_bytes(b"PAR1")
    (folder / "type=event" / "date=unknown").mkdir()
    compacted(folder)
    assert [each["id"] for each in records_in(folder)] == ids_of(records)
    assert not [*folder.rglob("*.part")]
    (merged,) = first.parent.iterdir()
    assert pq.read_metadata(merged).num_row_groups == 1

    await sink.close()
    await sink.open()
    await store_in_files(sink, records[35:], 5)  # a flush that a crash interrupted behind its files
    await sink.close()
    assert [each["id"] for each in records_in(folder)] == ids_of(records)


async def test_two_compactions_of_the_same_files_leave_each_record_once(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    records = [replace(each, position=position) for position, each in enumerate(make_records(15), 1)]
    sink = configured(ParquetSink, "lake", {"path": "lake"}, tmp_path)
    await sink.open()
    await store_in_files(sink, records, 5)
    await sink.close()
    with sink.lake.locked(), pytest.raises(SinkRetry, match="another compaction runs"):
        compacted(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    # In object storage, one of them may have seen a file less, and both store what they have merged.
    late = max(files)
    late.unlink()
    compacted(folder)
    (one,) = folder.rglob("*.parquet")
    merged = one.read_bytes()
    one.unlink()
    for path, content in files.items():
        path.write_bytes(content)
    compacted(folder)
    one.write_bytes(merged)
    compacted(folder)
    assert [each["id"] for each in records_in(folder)] == ids_of(records)


def test_an_erasure_reaches_the_files_of_the_lake(tmp_path: Path) -> None:
    shop, folder = shop_with_lake(tmp_path, 'flush_every = "200ms"'), tmp_path / "lake"
    order = {"order_id": "o-1", "total": 50, "revenue": 40, "currency": "EUR"}
    events: list[dict[str, Any]] = [
        {"key": "Page View", "anonymousId": "visitor-1", "context": {"campaign": {"source": "google"}}},
        {"key": "Order Completed", "anonymousId": "visitor-1", "userId": "u-17", "data": order},
        {"key": "Page View", "anonymousId": "visitor-2"},
    ]
    with shop.serve() as daemon:

        def settle() -> None:
            wait_until(lambda: shop.is_done("attribution", "sink:lake"))

        identify = {"anonymousId": "visitor-1", "userId": "u-17", "traits": {"email": "anna@example.org"}}
        assert daemon.post("/identify/public", identify, shop.public.id).status == 200
        for event in events:
            assert daemon.post("/track", {"data": {}, **event}, shop.public.id).status == 200
        settle()
        shop.command("forget", "--user", "u-17")
        assert daemon.post("/track", {"data": {}, **events[0]}, shop.public.id).status == 200
        settle()
        assert len([each for each in records_in(folder) if "visitor-1" in json.dumps(each)]) == 6
        counts = json.loads(shop.command("lake", "compact", "--json"))
    assert (counts["erasures"], counts["blanked"]) == (1, 4)
    found = records_in(folder)
    assert [each["type"] for each in found if "visitor-1" in json.dumps(each)] == ["erasure", "event"]
    assert "anna@example.org" not in json.dumps(found)
    (attribution,) = [each for each in found if each["type"] == "attribution"]
    assert attribution["value"]["revenue"] == 40
    assert [each["anonymousId"] for each in found if each.get("anonymousId")] == ["visitor-2", "visitor-1"]
    ids = [row["anonymous_id"] for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert ids.count("visitor-1") == 1
    assert "erasures" not in compacted(folder)


def record_of(position: int, visitor: str, **more: Any) -> Record:
    at = 1_795_000_000_000 + position
    times = dict.fromkeys(("receivedAt", "timestamp", "erasedAt"), format_time(at))
    body = {"id": f"r{position}", "tenant": "shop", "anonymousId": visitor, **times, **more}
    return Record(more.get("type", "event"), at, json.dumps(body).encode(), position)


async def test_a_record_that_comes_late_meets_the_erasures_of_before(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    late, first, second = record_of(1, "v-é"), record_of(2, "v-é"), record_of(3, "v-2")
    nobody = record_of(4, "null", type="erasure", erasedAt="soon")  # of a plugin
    erasure = record_of(5, "v-é", type="erasure")
    plain, its_erasure = record_of(6, "v-4", tenant=None), record_of(7, "v-4", type="erasure", tenant=None)
    sink = configured(ParquetSink, "lake", {"path": "lake"}, tmp_path)
    await sink.open()
    await store_in_files(sink, [first, second, nobody, erasure, plain, its_erasure], 6)
    counts = compacted(folder)
    assert (counts["merged"], counts["erasures"], counts["blanked"]) == (1, 3, 2)
    assert compacted(folder) == {"read": 2}
    await store_in_files(sink, [late], 1)  # such as of another partition, or of a replay
    counts = compacted(folder)
    assert counts == {"read": 3, "merged": 2, "written": 1, "blanked": 1}
    events = [each for each in records_in(folder) if not each.get("type")]
    assert [each["anonymousId"] for each in events] == [None, None, "v-2", None]
    (folder / "_erasures").write_text("[")
    assert "blanked" not in compacted(folder)
    await sink.close()


async def test_a_flush_that_failed_behind_its_file_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    records = [record_of(position, "v") for position in range(1, 5)]
    sink = configured(ParquetSink, "lake", {"path": "lake"}, tmp_path)
    await sink.open()
    await store_in_files(sink, records[:2], 1)
    put = sink.lake.put

    def put_and_fail(path: str, content: pa.Buffer | bytes) -> None:
        put(path, content)
        raise SinkRetry("the answer was lost")

    await sink.write(records[2:])
    sink.lake.put = put_and_fail  # type: ignore[method-assign]
    with pytest.raises(SinkRetry):
        await sink.flush(span_of(records[2:]))
    compacted(folder)
    sink.lake.put = put  # type: ignore[method-assign]
    await sink.flush(span_of(records[2:]))
    await sink.close()
    assert [each["id"] for each in records_in(folder)] == ["r1", "r2", "r3", "r4"]


async def test_files_that_a_compaction_removes_meanwhile_are_read_as_merged(tmp_path: Path) -> None:
    records = [record_of(position, "v" * 20_000) for position in range(1, 1001)]
    sink = configured(ParquetSink, "lake", {"path": "lake"}, tmp_path)
    await sink.open()
    await store_in_files(sink, records, 500)
    names = sink.lake._folder.names
    of_day = "type=event/date=2026-11-18"

    def names_before(folder: str) -> Mapping[str, int]:
        found = names(folder)
        if folder == of_day:
            sink.lake._folder.names = names  # type: ignore[method-assign]
            compacted(tmp_path / "lake")
        return found

    sink.lake._folder.names = names_before  # type: ignore[method-assign]
    assert len(await sink.ids(0, 1 << 60)) == 1000
    (merged,) = sink.lake.files(of_day)
    sizes = [each.nbytes for each in sink.lake.tables(of_day, merged)]
    assert max(sizes) < 20 << 20 < sum(sizes), "memory is bounded by bytes"
    await sink.close()


async def test_an_erasure_is_stored_behind_the_records_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    first, second = make_records(2)
    records = [replace(first, position=1), replace(second, position=2, type="erasure")]
    sink = configured(ParquetSink, "lake", {"path": "lake"}, tmp_path)
    await sink.open()
    (folder / "type=event").write_text("")  # a storage that fails for now
    await sink.write(records)
    with pytest.raises(SinkRetry):
        await sink.flush(span_of(records))
    assert not (folder / "type=erasure").exists()
    (folder / "type=event").unlink()
    await sink.flush(span_of(records))
    await sink.close()
    assert len([*folder.rglob("*.parquet")]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"), [(["other"], "name a sink of the type parquet or iceberg: there are lake"), ([], None)]
)
def test_the_sink_must_be_a_lake(arguments: list[str], message: str | None, tmp_path: Path) -> None:
    shop = shop_with_lake(tmp_path)
    done = run_ingestd("lake", "compact", *arguments, config=shop.config)
    assert (done.returncode == 0) == (message is None)
    assert message is None or message in done.stderr
