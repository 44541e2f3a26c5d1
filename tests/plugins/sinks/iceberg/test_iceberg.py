"""The iceberg sink: typed tables, each record once, and the position of the journal in each snapshot."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from ingestd.api.errors import ConfigError, SinkRetry
from ingestd.api.events import Record
from ingestd.api.sink import Sink, Span
from ingestd.plugins.sinks.iceberg import IcebergSink
from ingestd.testing.crashes import killed_after
from ingestd.testing.records import make_records_of_every_type, placed
from ingestd.testing.sinks import SinkContract, make_records
from ingestd.testing.writes import span_of
from ingestd.validation.schema_files import complete_schemas
from tests.support.gcs_server import gcs_server
from tests.support.s3_server import s3_server
from tests.support.sinks import configured, ids_of, options_shown

PAGE = Path(__file__).parents[4] / "docs" / "sinks" / "iceberg.md"
SCHEMAS = complete_schemas(None)
SKUS = '[{"sku":"s"}]'
NAMES = ("attributions", "identifies", "events", "records")
DAY = 86_400_000
EPOCH_OF_YEAR_1, END_OF_9999 = -62_135_596_800_000, 253_402_300_799_999
EARLY, LATE = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"
"""They have no year of four digits in UTC."""


def lake(folder: Path, schemas: dict[str, Any] | None = None, **options: Any) -> IcebergSink:
    catalog = {"uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/lake"}
    sink = configured(IcebergSink, "lake", {"catalog": catalog, **options}, folder)
    sink.schemas = SCHEMAS | (schemas or {})
    return sink


def rows_in(sink: IcebergSink, *names: str) -> list[dict[str, Any]]:
    """The rows of these tables, or of all, by position."""
    tables = [sink.tables.find(name) for name in names or NAMES]
    rows = [row for table in tables if table is not None for row in table.scan().to_arrow().to_pylist()]
    sink.tables.close()
    return sorted(rows, key=lambda row: int(row["position"]))


async def store(sink: IcebergSink, records: list[Record], span: Span | None = None) -> None:
    await sink.write(records)
    await sink.flush(span or span_of(records))


def of_every_table(positions: range) -> list[Record]:
    """Records with these positions, among them one for each table."""
    records = [*make_records_of_every_type(), *make_records(len(positions))][: len(positions)]
    return [replace(each, position=position) for each, position in zip(records, positions, strict=True)]


class TestIcebergSink(SinkContract):
    exactly_once = True

    def make_sink(self, folder: Path) -> Sink:
        return lake(folder)

    async def read_back(self, folder: Path) -> list[dict[str, Any]]:
        return [json.loads(row["record"]) for row in rows_in(lake(folder))]

    def make_rejected(self) -> Record | None:
        return Record("shop:receipt", 0, b'{"number":1}', 1)


def test_the_page_shows_the_options(tmp_path: Path) -> None:
    text = PAGE.read_text().replace('timeout = "5m"\n', "")  # an option of every sink
    options = options_shown(text, "iceberg", IcebergSink, tmp_path)
    assert options.namespace == "ingestd"
    with pytest.raises(ConfigError, match="needs uri"):
        configured(IcebergSink, "lake", {"catalog": {"warehouse": "x"}}, tmp_path)
    with pytest.raises(ConfigError, match="needs warehouse"):
        configured(IcebergSink, "lake", {"catalog": {"uri": "sqlite:////lake.db"}}, tmp_path)


@pytest.mark.parametrize(
    ("uri", "risk"),
    [
        ("postgresql+psycopg2://lake:a-secret@db.example/lake", "the certificate of db.example is not verified"),
        ("postgresql+psycopg2://lake:a-secret@db.example/lake?sslmode=verify-full", ""),
        ("postgresql+psycopg2://lake:a-secret@127.0.0.1/lake", ""),
        ("http://catalog.example/api", "uri names catalog.example without TLS"),
        ("https://catalog.example/api", ""),
    ],
)
def test_check_warns_of_a_catalogue_that_others_can_read_or_replace(tmp_path: Path, uri: str, risk: str) -> None:
    catalog = {"uri": uri, "warehouse": "s3://lake"}
    (told,) = configured(IcebergSink, "lake", {"catalog": catalog}, tmp_path).risks() or [""]
    assert risk in told
    assert bool(told) == bool(risk)
    assert "a-secret" not in told


@pytest.mark.parametrize(
    "catalog",
    [
        {"uri": "sqlite:////missing/s3cr3t:of-the-catalogue/lake.db?password=s3cr3t:of-the-catalogue"},
        {"uri": "https://user:s3cr3t%3Aof-the-catalogue@127.0.0.1:1/s3cr3t:of-the-catalogue"},
        {"uri": "http://127.0.0.1:1/s3cr3t:of-the-catalogue", "header.Authorization": "s3cr3t:of-the-catalogue"},
    ],
)
async def test_no_error_has_a_secret_of_the_catalogue(tmp_path: Path, catalog: dict[str, str]) -> None:
    sink = configured(IcebergSink, "lake", {"catalog": {"warehouse": "file:///missing", **catalog}}, tmp_path)
    with pytest.raises(SinkRetry) as refused:
        await sink.check()
    assert "s3cr3t:of-the-catalogue" not in str(refused.value)
    await sink.close()


async def test_columns_have_the_types_of_the_schemas(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    order = {
        "order_id": "o-1",
        "total": 12.1,
        "tax": 1e300,
        "currency": 5,
        "products": json.loads(SKUS),
        "coupon": None,
    }
    campaign = {"campaign": {"source": "google", "medium": 7}, "page": "none"}
    events = [
        *make_records(1, key="Order Completed", data=order, context=campaign, signed=True),
        *make_records(1, key="Promotion Viewed", data={"position": "top"}),
        *make_records(1, key="Product Viewed", data={"position": 2, "price": 10**25}, timestamp=EARLY),
        *make_records(1, key="Product Viewed", data=[], context=None, timestamp=LATE),
        *make_records(1, key="Shop's own", data={"total": 5}),
    ]  # fmt: skip
    others = make_records_of_every_type()
    await store(sink, [replace(each, position=position) for position, each in enumerate([*events, *others], 1)])
    table = sink.tables.load("events")
    first, promotion, viewed, strange, own = rows_in(sink, "events")
    named = ("order_id", "total", "tax", "currency", "coupon", "signed", "context_campaign_source")
    assert [first[name] for name in named] == ["o-1", Decimal("12.1"), None, None, None, True, "google"]
    assert (first["products"], first["context_campaign_medium"], first["context_page_url"]) == (
        '[{"sku":"s"}]',
        None,
        None,
    )
    assert first["received_at"] == datetime(2026, 11, 21, 4, 5, 6, 1000, UTC)
    assert (promotion["data_position_text"], viewed["data_position"], viewed["price"]) == ("top", 2, None)
    assert (viewed["timestamp"], strange["timestamp"]) == (None, None)
    assert (strange["price"], own["total"], json.loads(own["record"])["data"]) == (None, None, {"total": 5})
    assert {str(each.transform) for each in table.spec().fields} == {"day", "identity"}
    assert str(table.schema().find_type("total")) == "decimal(38, 18)"
    (identify,) = rows_in(sink, "identifies")
    assert identify["email"] == "ada@shop.example"
    attribution, _ = rows_in(sink, "attributions")
    assert (attribution["revenue"], attribution["credits"]) == (40, "{}")
    assert [row["type"] for row in rows_in(sink, "records")] == ["erasure", "shop:receipt"]
    await sink.close()


async def test_files_are_of_a_day_and_a_tenant_and_sorted_by_key(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    records = [
        replace(each, position=position, at=each.at + position % 3 * DAY)
        for position, each in enumerate([*make_records(6, key="b"), *make_records(6, key="a", tenant=None)], 1)
    ]
    await store(sink, records)
    table = sink.tables.load("events")
    tasks = [*table.scan().plan_files()]
    found = {(task.file.partition[0], task.file.partition[1], task.file.record_count) for task in tasks}
    assert found == {(day, tenant, 2) for day in (20778, 20779, 20780) for tenant in (None, "shop")}
    await sink.close()


async def test_days_have_their_borders_in_utc_in_all_years(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    times = (EPOCH_OF_YEAR_1, -1, 0, DAY - 1, DAY, END_OF_9999, 1_795_233_906_001)
    records = [
        replace(each, position=position, at=times[position - 1], body=_without_time(each))
        for position, each in enumerate(make_records(len(times)), 1)
    ]
    await store(sink, records)
    days = {task.file.partition[0] for task in sink.tables.load("events").scan().plan_files()}
    assert days == {at // DAY for at in times}
    assert len(await sink.ids(-1, DAY)) == 3
    await sink.close()


def _without_time(record: Record) -> bytes:
    return json.dumps({name: value for name, value in record.decode().items() if name != "receivedAt"}).encode()


async def test_each_snapshot_says_up_to_which_position_the_tables_are_complete(tmp_path: Path) -> None:
    first, second = lake(tmp_path), lake(tmp_path)
    await first.open()
    await second.open()

    def complete() -> Any:
        table = first.tables.load("events")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return json.loads(snapshot.summary.additional_properties["ingestd.complete-to"])

    records = of_every_table(range(1, 11))
    await store(first, records, Span(1, 10, 1_795_233_906_000, "00"))
    await store(second, of_every_table(range(4, 9)), Span(4, 12, 1_795_233_907_000, "01"))
    at = {"00": "2026-11-21T04:05:06.000Z", "01": "2026-11-21T04:05:07.000Z"}
    assert complete() == {"00": {"position": 10, "at": at["00"]}, "01": {"position": 12, "at": at["01"]}}
    # A flush without events moves the position, too.
    await store(first, of_every_table(range(13, 18)), Span(11, 17, 1_795_233_906_000, "00"))
    assert complete()["00"]["position"] == 17
    await store(first, records[:3])  # a replay
    assert complete()["00"]["position"] == 17
    assert len(rows_in(first)) == 20
    await first.close()
    await second.close()


def test_a_kill_at_any_file_of_a_flush_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The kill comes at the k-th fsync, of data, metadata or folders. The next daemon makes the same flush again."""
    kills, position, written = 0, 1, []
    asyncio.run(_opened(tmp_path))
    for point in range(0, 36, 3):
        batch = of_every_table(range(position, position + 8))
        position += 8
        written += batch
        kills += killed_after(1, partial(_killed_at, point, batch, tmp_path)) == 1
        asyncio.run(_opened(tmp_path, batch))
    assert kills >= 12
    assert [row["id"] for row in rows_in(lake(tmp_path))] == ids_of(written)


async def _opened(folder: Path, batch: list[Record] | None = None) -> None:
    sink = lake(folder)
    await sink.open()
    if batch is not None:
        await store(sink, batch)
    await sink.close()


async def _killed_at(point: int, batch: list[Record], folder: Path, report: Callable[[], None]) -> None:
    sink = lake(folder)
    await sink.open()
    await sink.write(batch)
    whole, calls = os.fsync, [0]

    def sync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] > point:
            report()
            os.kill(os.getpid(), signal.SIGKILL)
        whole(descriptor)

    os.fsync = sync  # type: ignore[assignment]  # all callers have a descriptor
    await sink.flush(span_of(batch))
    report()
    report()


async def test_a_shop_s_new_schemas_add_columns_and_change_none(tmp_path: Path) -> None:
    def of(**properties: Any) -> dict[str, Any]:
        return {"Shop Survey": {"type": "object", "properties": properties}}

    async def sent(schemas: dict[str, Any], data: dict[str, Any]) -> None:
        sink = lake(tmp_path, schemas)
        await sink.open()
        await store(sink, [placed(each) for each in make_records(1, key="Shop Survey", data=data)])
        await sink.close()

    await sent({}, {"score": 1})
    await sent(of(score={"type": "number"}, Farbe={"type": "string"}), {"score": 2, "Farbe": "rot"})
    day = {"type": "string", "format": "date"}
    changed = of(score={"type": "string"}, deep={"type": "object", "properties": {"day": day}})
    await sent(changed, {"score": "3", "deep": {"day": "2026-02-28"}})
    await sent({}, {"score": 4})  # the schema is gone, its columns stay
    names = ("score", "score_text", "farbe", "deep_day")
    assert [tuple(row[name] for name in names) for row in rows_in(lake(tmp_path), "events")] == [
        (None, None, None, None),
        (2, None, "rot", None),
        (None, "3", None, date(2026, 2, 28)),
        (None, None, None, None),
    ]


async def test_check_tells_what_another_writer_has_changed(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.check()  # nothing is there yet
    assert not (tmp_path / "lake").exists()
    await sink.open()
    batch = of_every_table(range(1, 9))
    await store(sink, batch)
    await sink.check()
    assert sink.risks() == []
    table = sink.tables.load("events")
    table.delete("position <= 8")
    await sink.check()
    (risk,) = sink.risks()
    assert "events: 1 commit of another writer (delete)" in risk
    await store(sink, of_every_table(range(9, 17)))
    await sink.check()
    assert sink.risks() == []
    with sink.tables.load("events").update_schema() as update:
        update.delete_column("total")
        update.rename_column("session_id", "session")
    with pytest.raises(SinkRetry, match="the table events has no column session_id"):
        await sink.check()
    await sink.close()


class LocksOfDaemons:
    """The sinks of two daemons have no lock in common."""

    def __getitem__(self, _: object) -> Lock:
        return Lock()


async def test_a_flush_that_meets_another_writer_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is a compaction, and then a daemon that had the partition before and writes the same span."""
    sink, other = lake(tmp_path), lake(tmp_path)
    await sink.open()
    await other.open()
    meetings: list[Callable[[], None]] = []
    whole = SqlCatalog.commit_table

    def commit_table(catalog: SqlCatalog, table: Table, *arguments: Any) -> Any:
        if table.name()[-1] == "events" and meetings:
            meetings.pop()()
        return whole(catalog, table, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    monkeypatch.setattr("ingestd.plugins.sinks.iceberg.tables._COMMITS", LocksOfDaemons())
    first, second, third = (of_every_table(range(start, start + 8)) for start in (1, 9, 17))
    await store(sink, first)
    meetings.append(lambda: other.tables.load("events").delete("position <= 8"))
    await store(sink, second)
    await other.write(third)
    buffer = other._buffer
    assert buffer is not None
    meetings.append(lambda: other._store(buffer, span_of(third)))
    await store(sink, third)
    assert meetings == []
    assert [row["position"] for row in rows_in(sink)] == [*range(1, 6), *range(9, 25)]
    await sink.close()
    await other.close()


async def written_and_kept(catalog: dict[str, str], folder: Path) -> None:
    sink = configured(IcebergSink, "lake", {"catalog": catalog}, folder)
    await sink.open()
    batch = of_every_table(range(1, 11))
    await store(sink, batch[:5])
    await store(sink, batch[5:])
    await store(sink, batch[5:])
    sink.upkeep().compact(None)
    assert sink.upkeep().old.expire(0.0)["files"] > 0
    assert [row["id"] for row in rows_in(sink)] == ids_of(batch)
    await sink.close()


async def test_tables_in_object_storage(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3") as s3:
        keys = {"endpoint": f"http://{s3.endpoint}", "access-key-id": s3.storage["access_key"]}
        keys |= {"secret-access-key": s3.storage["secret_key"], "region": s3.storage["region"]}
        catalog = {"uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "s3://shop/tables"}
        catalog |= {f"s3.{name}": value for name, value in keys.items()}
        await written_and_kept(catalog, tmp_path)
        wrong = {**catalog, "s3.secret-access-key": "a-wrong-secret"}
        sink = configured(IcebergSink, "lake", {"catalog": wrong}, tmp_path)
        with pytest.raises(SinkRetry) as refused:
            await sink.open()
        assert "a-wrong-secret" not in str(refused.value)
        await sink.close()


async def test_tables_in_google_cloud_storage(tmp_path: Path) -> None:
    with gcs_server(tmp_path) as server:
        token = {"gcs.oauth2.token": "a token", "gcs.oauth2.token-expires-at": "4000000000000"}
        endpoint = {"gcs.service.host": f"http://{server.storage['endpoint_override']}"}
        catalog = {"uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "gs://shop/tables", **token, **endpoint}
        await written_and_kept(catalog, tmp_path)


def test_clickhouse_reads_the_tables(tmp_path: Path) -> None:
    asyncio.run(_opened(tmp_path, of_every_table(range(1, 9))))
    query = "SELECT type, revenue, currency FROM icebergLocal('lake/ingestd/attributions') ORDER BY position"
    program = f"import chdb; print(chdb.query({query!r}))"
    found = subprocess.run(  # the engine reads below the folder in which it starts
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ['"attribution",40,"EUR"', '"attribution_reversal",40,"EUR"']
