"""Others who write to the tables of an iceberg sink, clocks that jump, and names that nobody expects."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyiceberg.types import NestedField, StringType

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.api.sink import Span
from ingestd.plugins.sinks.iceberg import IcebergSink
from ingestd.testing.sinks import make_records
from tests.support.sinks import configured

from .test_iceberg import SCHEMAS, lake, of_every_table, rows_in, store

EVENTS = ("ingestd", "events")


def named(folder: Path, name: str) -> IcebergSink:
    """Another sink with the same tables."""
    catalog = {"uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/lake"}
    sink = configured(IcebergSink, name, {"catalog": catalog}, folder)
    sink.schemas = SCHEMAS
    return sink


def events(positions: range, **members: Any) -> list[Record]:
    made = make_records(len(positions), **members)
    return [replace(each, position=position) for each, position in zip(made, positions, strict=True)]


def complete(sink: IcebergSink) -> dict[str, int]:
    snapshot = sink.tables.load("events").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    found = json.loads(snapshot.summary.additional_properties["ingestd.complete-to"])
    return {partition: each["position"] for partition, each in found.items()}


def compact_as_others_do(sink: IcebergSink) -> Table:
    """Replace all files by a snapshot with no property of a sink."""
    table = sink.tables.load("events")
    with table.transaction() as change, change.update_snapshot().overwrite() as overwrite:
        for task in table.scan().plan_files():
            overwrite.delete_data_file(task.file)
            overwrite.append_data_file(task.file)
    return table


async def test_the_positions_of_all_partitions_outlive_the_snapshots_of_the_sink(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    await store(sink, events(range(1, 4)), Span(1, 3, 1_795_233_906_000, "00"))
    await store(sink, events(range(1, 5)), Span(1, 4, 1_795_233_906_000, "01"))
    compact_as_others_do(sink)
    await store(sink, events(range(4, 6)), Span(4, 5, 1_795_233_907_000, "00"))
    assert complete(sink) == {"00": 5, "01": 4}
    table = compact_as_others_do(sink)
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in table.snapshots()[:-1]]).commit()
    assert len(sink.tables.load("events").snapshots()) == 1
    await store(sink, events(range(6, 8)), Span(6, 7, 1_795_233_907_000, "00"))
    assert complete(sink) == {"00": 7, "01": 4}
    assert [row["position"] for row in rows_in(sink)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7]
    await sink.close()


@pytest.mark.logs("the table events is gone")
async def test_a_table_that_is_gone_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = lake(tmp_path)
    await sink.open()
    batch = of_every_table(range(1, 9))
    await store(sink, batch)
    sink.tables.catalog.drop_table(EVENTS)
    await sink.check()
    with caplog.at_level(logging.WARNING):
        await store(sink, of_every_table(range(9, 17)))
    assert "a replay writes what it had" in caplog.text
    assert [row["position"] for row in rows_in(sink, "events")] == [14, 15, 16]
    await sink.write(batch)
    await sink.flush(None)
    assert [row["position"] for row in rows_in(sink)] == [*range(1, 17)]
    await sink.close()


async def test_a_table_of_somebody_else_gets_nothing(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    await store(sink, events(range(1, 3)))
    sink.tables.catalog.drop_table(EVENTS)
    sink.tables.catalog.create_table(EVENTS, Schema(NestedField(1, "name", StringType())))
    await sink.write(events(range(3, 5)))
    for attempt in (sink.check, lambda: sink.flush(Span(3, 4, 0))):
        with pytest.raises(SinkRetry, match="the table events has no column id, so it is not of this sink"):
            await attempt()
    sink.tables.catalog.drop_table(EVENTS)
    await sink.open()
    await store(sink, events(range(3, 5)))
    assert [row["position"] for row in rows_in(sink)] == [3, 4]
    await sink.close()


async def test_a_table_with_other_partitions_gets_nothing(tmp_path: Path) -> None:
    """Files in a partition that they do not belong to would be missing in the answers of readers."""
    sink = lake(tmp_path)
    await sink.open()
    await store(sink, events(range(1, 3)))
    with sink.tables.load("events").update_spec() as update:
        update.remove_field("received_at_day").remove_field("tenant")
        update.add_field("received_at", MonthTransform(), "month").add_field("tenant", IdentityTransform(), "shop")
    await sink.write(events(range(3, 5)))
    for attempt in (sink.check, lambda: sink.flush(Span(3, 4, 0))):
        with pytest.raises(SinkRetry, match="events is not partitioned by the day of received_at and the tenant"):
            await attempt()
    assert len(rows_in(sink)) == 2
    await sink.close()


async def test_a_table_that_is_replaced_before_a_commit_gets_files_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the first attempt have the numbers of the columns of a table that is gone."""
    sink, meetings = lake(tmp_path), list[Callable[[], None]]()
    await sink.open()
    await store(sink, events(range(1, 3)))
    whole = SqlCatalog.commit_table

    def commit_table(catalog: SqlCatalog, table: Table, *arguments: Any) -> Any:
        if meetings:
            meetings.pop()()
        return whole(catalog, table, *arguments)

    def replaced() -> None:
        table = sink.tables.load("events")
        fields = [replace_number(each, number) for number, each in enumerate(reversed(table.schema().fields), 1)]
        schema = Schema(*fields)
        ids = [schema.find_field(name).field_id for name in ("received_at", "tenant")]
        transforms = [each.transform for each in table.spec().fields]
        spec = PartitionSpec(*map(PartitionField, ids, (1000, 1001), transforms, ("received_at_day", "tenant")))
        sink.tables.catalog.drop_table(EVENTS)
        sink.tables.catalog.create_table(EVENTS, schema, partition_spec=spec)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    batch = events(range(3, 5))
    meetings.append(replaced)
    await sink.write(batch)
    with pytest.raises(SinkRetry, match="another writer has replaced events"):
        await sink.flush(Span(3, 4, 0))
    await sink.flush(Span(3, 4, 0))
    assert [(row["position"], row["id"]) for row in rows_in(sink)] == [
        (each.position, json.loads(each.body)["id"]) for each in batch
    ]
    await sink.close()


def replace_number(field: NestedField, number: int) -> NestedField:
    return NestedField(number, field.name, field.field_type, required=field.required)


async def test_check_tells_that_another_writer_rolled_a_table_back(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    batch = events(range(1, 10))
    for start in (0, 3, 6):
        await store(sink, batch[start : start + 3])
    table = sink.tables.load("events")
    table.manage_snapshots().set_current_snapshot(table.snapshots()[0].snapshot_id).commit()
    await sink.check()
    assert "events: another writer rolled it back, so it lacks positions 4 to 9 of partition 0" in sink.risks()[0]
    await sink.write(batch)
    await sink.flush(None)
    assert [row["position"] for row in rows_in(sink)] == [*range(1, 10)]
    await store(sink, events(range(10, 12)))
    await sink.check()
    assert sink.risks() == []
    await sink.close()


async def test_columns_that_others_drop_rename_or_retype_hold_up_no_record(tmp_path: Path) -> None:
    shop = {"Shop Survey": {"type": "object", "properties": {"score": {"type": "number"}, "mood": {"type": "string"}}}}
    sink = lake(tmp_path, shop)
    await sink.open()

    async def sent(position: int) -> None:
        data = {"score": position, "mood": "fine", "total": 1}
        await store(sink, events(range(position, position + 1), key="Shop Survey", data=data))

    await sent(1)
    with sink.tables.load("events").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("mood").rename_column("context_page_url", "page")
        update.delete_column("score")
    with sink.tables.load("events").update_schema() as update:
        update.add_column("score", StringType())
    await sent(2)
    await sent(3)
    rows = rows_in(sink, "events")
    assert [(row["mood"], row["score"], json.loads(row["record"])["data"]["score"]) for row in rows] == [
        (None, None, 1),
        ("fine", None, 2),
        ("fine", None, 3),
    ]
    await sink.close()


async def test_snapshots_never_go_back_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers in Java refuse such a table, and their catalogue refuses the commit."""
    sink, now = lake(tmp_path), time.time()
    await sink.open()
    for position, ahead in enumerate((0.0, 86_400.0, 0.0, -3600.0), 1):
        monkeypatch.setattr(time, "time", partial(float, now + ahead))
        await store(sink, events(range(position, position + 1)))
    sink.upkeep().compact(None)
    table = sink.tables.load("events")
    times = [each.timestamp_ms for each in table.metadata.snapshot_log]
    assert len(times) == 5
    assert times == sorted({*times})
    await sink.close()


async def test_another_sink_with_the_same_tables_repeats_no_record(tmp_path: Path) -> None:
    """Such as this sink under a new name, which gets all records once more."""
    first, second = named(tmp_path, "first"), named(tmp_path, "second")
    await first.open()
    batches = [of_every_table(range(start, start + 8)) for start in (1, 9, 17)]
    for batch in batches:
        await store(first, batch)
    await second.open()
    for batch in batches:
        await store(second, batch)
    assert [row["position"] for row in rows_in(first)] == [*range(1, 25)]
    await first.write(more := of_every_table(range(25, 33)))
    await second.write(more)
    await second.flush(Span(25, 32, 0))
    await first.flush(Span(25, 32, 0))
    assert [row["position"] for row in rows_in(first)] == [*range(1, 33)]
    await first.check()
    assert first.risks() == []
    await second.check()
    assert "events: the sink first has written to it, too" in " ".join(second.risks())
    await first.close()
    await second.close()


def folders_of(table: Table) -> int:
    """How many folders of a day and a tenant have files. No file is elsewhere."""
    root = Path(table.location().removeprefix("file://"))
    found = {path.parent for path in root.glob("data/*/*/*.parquet")}
    assert {*root.parents[1].rglob("*.parquet")} == {*root.glob("data/*/*/*.parquet")}
    return len(found)


async def test_tenants_with_any_name_have_partitions(tmp_path: Path) -> None:
    """The names of a plugin's tenants may be anything."""
    sink = lake(tmp_path)
    await sink.open()
    tenants = [
        "a/b",
        "..",
        ".",
        "",
        "x" * 2000,
        "x" * 2001,
        "ü" * 300,
        "München 🍺",
        "a=b%2F?#&",
        "null",
        "\x01",
        "'; --",
        None,
    ]
    batch = [
        replace(each, position=position)
        for position, tenant in enumerate(tenants, 1)
        for each in make_records(1, tenant=tenant)
    ]
    await store(sink, batch)
    sink.upkeep().compact(None)
    assert [row["tenant"] for row in rows_in(sink)] == tenants
    table = sink.tables.load("events")
    for tenant in tenants[:-1]:
        assert tenant is not None
        quoted = tenant.replace("'", "''")
        (row,) = table.scan(f"tenant = '{quoted}'").to_arrow().to_pylist()
        assert row["tenant"] == tenant
    assert folders_of(table) == len(tenants) - 1  # no tenant, and the tenant null
    await sink.close()


async def test_schemas_with_any_names_make_columns(tmp_path: Path) -> None:
    names = [f"member {number}" for number in range(1000)]
    names += ["Size", "size", "SIZE", "a.b", "a/b", "a b", "date", "type", "id", "record", "ß", "日付", "", "x" * 3000]
    properties = {name: {"type": "string"} for name in names} | {"size": {"type": "number"}}
    sink = lake(tmp_path, {"Shop Survey": {"type": "object", "properties": properties}})
    await sink.open()
    data: dict[str, Any] = {name: f"value of {name}" for name in names} | {"size": 5}
    await store(sink, events(range(1, 2), key="Shop Survey", data=data))
    (row,) = rows_in(sink, "events")
    assert [row[f"member_{number}"] for number in range(1000)] == [data[f"member {number}"] for number in range(1000)]
    assert (row["size"], row["data_date"], row["data_type"]) == ("value of Size", "value of date", "value of type")
    assert json.loads(row["record"])["data"] == data
    await sink.close()
    again = lake(tmp_path, {"Shop Survey": {"type": "object", "properties": properties}})
    await again.open()
    assert len(again.tables.load("events").schema().fields) == len(row)
    with pytest.raises(NoSuchTableError):
        again.tables.catalog.load_table(("ingestd", "event"))
    await again.close()
