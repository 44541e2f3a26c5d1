"""The parquet sink: typed columns, folders by type and date, each record once."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import stat
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyarrow.fs import FileSelector, FileSystem

from ingestd.api.errors import ConfigError, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.sink import Sink, Span
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.testing.records import make_records_of_every_type, placed
from ingestd.testing.sinks import SinkContract, make_records
from ingestd.testing.writes import span_of
from tests.support.azurite import azurite
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.disks import small_disk
from tests.support.gcs_server import gcs_server
from tests.support.s3_server import S3Server, s3_server
from tests.support.sinks import READING, configured, lines_to_read, options_shown

PAGE = Path(__file__).parents[4] / "docs" / "sinks" / "parquet.md"


def records_in(folder: Path) -> list[dict[str, Any]]:
    """All records of a lake, by position."""
    # pyarrow closes a file that it opened some time after the answer, and a test unmounts its disk.
    files = [pa.BufferReader(path.read_bytes()) for path in folder.rglob("*.parquet")]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [json.loads(row["record"]) for row in sorted(rows, key=lambda row: row["position"])]


def fetched(query: str) -> list[Any]:
    found = duckdb.sql(query)
    assert found is not None
    return found.fetchall()


def numbers_in(folder: Path) -> list[int]:
    return [record["data"]["number"] for record in records_in(folder)]


def lake(folder: Path, **options: Any) -> ParquetSink:
    return configured(ParquetSink, "lake", {"path": "lake", **options}, folder)


async def store(sink: Sink, records: list[Record], span: Span | None = None) -> None:
    await sink.write(records)
    await sink.flush(span or span_of(records))


class TestParquetSink(SinkContract):
    exactly_once = True

    def make_sink(self, folder: Path) -> Sink:
        return lake(folder)

    async def read_back(self, folder: Path) -> list[dict[str, Any]]:
        return records_in(folder / "lake")

    def make_rejected(self) -> Record | None:
        return Record("shop:receipt", 0, b'{"number":1}', 1)


class TestParquetSinkWithFsspec(SinkContract):
    """Another file system of fsspec, here the local disk through it."""

    exactly_once = True

    def make_sink(self, folder: Path) -> Sink:
        return configured(
            ParquetSink, "lake", {"url": f"local://{folder}/lake", "storage": {"auto_mkdir": "true"}}, folder
        )

    async def read_back(self, folder: Path) -> list[dict[str, Any]]:
        return records_in(folder / "lake")


def test_the_page_shows_the_options_and_its_queries_work(tmp_path: Path) -> None:
    page = PAGE.read_text()
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 1
    text = re.sub(r"\{ credential = \S+ \}", '"key"', page.partition("## The files")[0])
    text = text.replace('timeout = "5m"\n', "")  # an option of every sink
    options = options_shown(text, "parquet", ParquetSink, tmp_path)
    assert options.storage["access_key"] == "key"

    async def scenario() -> None:
        sink = lake(tmp_path)
        await sink.open()
        orders = [{"order_id": f"o-{number}", "total": 12.5, "currency": "EUR"} for number in range(4)]
        records = [placed(make_records(1, key="Order Completed", data=order)[0]) for order in orders]
        await store(sink, [*records, *map(placed, make_records_of_every_type())])
        await sink.close()

    asyncio.run(scenario())
    (query,) = lines_to_read("Query Parquet files", "sql")
    rows = fetched(query.replace("s3://shop-lake/events", str(tmp_path / "lake")))
    assert [(str(date), currency, float(total)) for date, currency, total in rows] == [("2026-11-21", "EUR", 50.0)]
    (beginning,) = re.findall(r'duckdb.sql\(\\"(.*?)\\"\)', READING)
    counted = fetched(beginning.replace("lake/", f"{tmp_path}/lake/"))
    assert sum(count for *_, count in counted) == 9


async def test_columns_have_types_and_folders_are_named_by_type_and_date(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    (event,) = make_records(1, userId="u-1")
    odd = [
        Record("shop:a/b ż", 1_795_219_199_999, b'{"id":"1","timestamp":"soon","tenant":7,"key":null}', 8),
        Record("shop:a/b ż", 1_795_219_200_000, '{"id":"2","text":"ż"}'.encode(), 9),
    ]
    await store(sink, [replace(event, position=7), *odd], Span(5, 9, 1))
    await sink.close()
    files = sorted(str(path.relative_to(tmp_path / "lake")) for path in (tmp_path / "lake").rglob("*.parquet"))
    name = "000000000000005-000000000000009-1.parquet"
    assert files == [
        f"type=event/date=2026-11-21/{name}",
        f"type=shop%3Aa%2Fb%20%C5%BC/date=2026-11-20/{name}",
        f"type=shop%3Aa%2Fb%20%C5%BC/date=2026-11-21/{name}",
    ]
    assert all(stat.S_IMODE((tmp_path / "lake" / file).stat().st_mode) & 0o137 == 0 for file in files)
    (row,) = pq.read_table(tmp_path / "lake" / files[0], partitioning=None).to_pylist()
    assert row.pop("received_at").timestamp() * 1000 == event.at
    assert row.pop("timestamp").isoformat() == "2026-11-21T04:05:06+00:00"
    assert row == {
        "id": event.envelope().id, "tenant": "shop", "key": "Page View", "anonymous_id": "visitor-1", "user_id": "u-1",
        "session_id": "5c3f1f0e-3f0a-4f0c-8f53-3a4a4c7f0a11", "position": 7, "record": event.body.decode(),
        "type": "event", "date": "2026-11-21",
    }  # fmt: skip
    (row,) = pq.read_table(tmp_path / "lake" / files[1], partitioning=None).to_pylist()
    assert (row["id"], row["tenant"], row["timestamp"]) == ("1", None, None)
    types = fetched(f"SELECT DISTINCT type, date FROM '{tmp_path}/lake/**/*.parquet' ORDER BY ALL")
    assert [type_ for type_, _ in types] == ["event", "shop:a/b ż", "shop:a/b ż"]


async def test_an_imported_record_keeps_its_time_and_date(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    mark = {"endpoint": "track", "at": "2026-11-21T04:05:06.000Z", "state": False}
    await store(sink, make_records(1, receivedAt="2024-02-29T23:59:59.000Z", **{"import": mark}), Span(1, 1, 1))
    await sink.close()
    (file,) = (tmp_path / "lake" / "type=event" / "date=2024-02-29").iterdir()
    (row,) = pq.read_table(file, partitioning=None).to_pylist()
    assert row["received_at"].isoformat() == "2024-02-29T23:59:59+00:00"


@pytest.mark.parametrize(
    "body", [b'{"number":1}', b"[1]", b'{"id":7}', b"{", b'{"id":"\xff"}', b'{"id":"1","x":"\xff"}'], ids=repr
)
async def test_a_record_that_is_no_record_is_rejected(body: bytes, tmp_path: Path) -> None:
    sink = lake(tmp_path)
    await sink.open()
    good = make_records(2)
    with pytest.raises(SinkReject) as raised:
        await sink.write([good[0], Record("odd", 0, body, 9), good[1]])
    assert [*raised.value.reasons] == [1]
    await store(sink, good)
    await sink.close()
    assert numbers_in(tmp_path / "lake") == [1, 2]


async def test_a_replay_writes_only_what_the_lake_does_not_have(tmp_path: Path) -> None:
    """Also after other tools have merged files, and after files were deleted."""
    sink, folder = lake(tmp_path), tmp_path / "lake"
    await sink.open()
    records = [placed(each) for each in make_records(30)]
    await store(sink, records[:10])
    await store(sink, records[10:20])

    async def replay(some: list[Record]) -> None:
        await sink.write(some)
        await sink.flush(None)

    await replay(records[5:25])
    assert numbers_in(folder) == [*range(1, 26)]
    await replay(records[5:25])
    assert numbers_in(folder) == [*range(1, 26)]
    (event,) = folder.rglob("date=*")
    merged = pa.concat_tables([pq.read_table(path, partitioning=None) for path in event.iterdir()])
    shutil.rmtree(event)
    event.mkdir()
    pq.write_table(merged.slice(0, 15), event / "merged.parquet")
    await replay(records)
    assert sorted(numbers_in(folder)) == [*range(1, 31)]
    await sink.close()


async def test_many_days_and_types_share_the_memory(tmp_path: Path) -> None:
    sink = lake(tmp_path, max_size="500kB")
    await sink.open()
    day = 86_400_000
    records = [replace(each, at=each.at + number % 40 * day) for number, each in enumerate(make_records(2000))]
    assert not sink.is_full()
    await sink.write(records)
    assert sink.is_full()
    await sink.flush(span_of(records))
    assert not sink.is_full()
    await sink.close()
    assert len([*(tmp_path / "lake").rglob("*.parquet")]) == 40
    assert sorted(numbers_in(tmp_path / "lake")) == [*range(1, 2001)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "sinks.lake.path: give either path, a local folder, or url, such as s3://bucket/folder"),
        ({"path": "x", "url": "s3://a/b"}, "sinks.lake.path: give either path"),
        ({"path": "x", "storage": {"region": "eu"}}, "sinks.lake.storage: has no effect without url"),
    ],
)
def test_options_that_can_never_work_are_refused(table: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        configured(ParquetSink, "lake", table, tmp_path)


async def test_a_folder_that_vanishes_is_a_failure_until_it_is_back(tmp_path: Path) -> None:
    sink, folder = lake(tmp_path), tmp_path / "lake"
    await sink.open()
    records = make_records(3)
    await sink.write(records)
    folder.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(SinkRetry, match="lake has gone"):
            await sink.flush(span_of(records))
    (tmp_path / "elsewhere").rename(folder)
    await sink.flush(span_of(records))
    await sink.close()
    assert numbers_in(folder) == [1, 2, 3]


@pytest.mark.parametrize("place", ["missing/lake", "file/lake", "file"])
async def test_a_folder_that_cannot_be_made_is_a_failure_of_the_sink(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sink = lake(tmp_path, path=place)
    with pytest.raises(SinkRetry):
        await sink.check()
    with pytest.raises(SinkRetry):
        await sink.open()
    await sink.close()


async def test_a_full_disk_is_a_failure_until_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", megabytes=1):
        sink = lake(tmp_path, path="disk/lake")
        await sink.open()
        filling = tmp_path / "disk" / "filling"
        filling.write_bytes(b"x" * 1_000_000)
        texts = [random.randbytes(3000).hex() for _ in range(40)]
        records = [
            placed(make_records(1, data={"number": number, "text": text})[0]) for number, text in enumerate(texts)
        ]
        await sink.write(records)
        with pytest.raises(SinkRetry, match="No space left"):
            await sink.flush(span_of(records))
        assert not [*(tmp_path / "disk").rglob("*.part")], "no unfinished file stays"
        filling.unlink()
        await sink.flush(span_of(records))
        await sink.close()
        assert numbers_in(tmp_path / "disk" / "lake") == [*range(40)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"id": pa.int64()},
            "the column id of type=event/date=2026-11-21/a.parquet is int64, and the sink writes string",
        ),
        ({"id": None}, "type=event/date=2026-11-21/a.parquet has no column id, so it is not of this sink"),
    ],
)
async def test_files_with_another_schema_are_a_failure_until_they_are_moved(
    schema: dict[str, pa.DataType | None], message: str, tmp_path: Path
) -> None:
    sink = lake(tmp_path)
    await sink.open()
    records = make_records(1)
    await store(sink, records)
    await sink.close()
    (path,) = (tmp_path / "lake").rglob("*.parquet")
    table = pq.read_table(path, partitioning=None)
    ((name, type_),) = schema.items()
    table = table.drop_columns([name]) if type_ is None else table.set_column(0, name, pa.array([1], type_))
    other = path.with_name("a.parquet")
    pq.write_table(table, other)
    path.unlink()
    with pytest.raises(SinkRetry, match=re.escape(message)):
        await sink.check()
    with pytest.raises(SinkRetry, match=re.escape(message)):
        await sink.open()
    other.unlink()
    await sink.open()
    await store(sink, records)
    await sink.close()
    assert numbers_in(tmp_path / "lake") == [1]


MERGED: dict[str, dict[str, pa.DataType]] = {
    "duckdb": {"received_at": pa.timestamp("us", "Europe/Warsaw"), "timestamp": pa.timestamp("us", "UTC")},
    "polars": {"id": pa.large_string(), "record": pa.string_view(), "date": pa.date32(), "type": pa.large_string()},
    "pandas": {"received_at": pa.timestamp("ns"), "key": pa.dictionary(pa.int8(), pa.large_string())},
    "delta": {"id": pa.string_view(), "timestamp": pa.timestamp("us"), "position": pa.int32()},
    "earlier version": {"type": pa.null(), "date": pa.null()},
}


@pytest.mark.parametrize("tool", MERGED)
async def test_files_that_another_tool_has_merged_are_taken(tool: str, tmp_path: Path) -> None:
    """One meaning is one type of column, however a tool stores it."""
    sink = lake(tmp_path)
    await sink.open()
    records = make_records(3)
    await store(sink, records)
    await sink.close()
    (path,) = (tmp_path / "lake").rglob("*.parquet")
    table = pq.read_table(path, partitioning=None)
    for name, type_ in MERGED[tool].items():
        index = table.schema.get_field_index(name)
        column = None if type_ == pa.null() else table[name].cast(pa.string() if index > 9 else table[name].type)
        table = table.drop_columns([name])
        if column is not None:
            table = table.append_column(name, column.cast(type_, safe=False))
    path.unlink()
    pq.write_table(table, path.with_name("merged.parquet"))
    await sink.check()
    await sink.open()
    await sink.write(records)  # as in a replay
    await sink.flush(None)
    await store(sink, [placed(each) for each in make_records(2)])
    await sink.close()
    assert (
        len(fetched(f"SELECT id FROM '{tmp_path}/lake/*/*/*.parquet' WHERE type = 'event' AND date >= '2026-11-21'"))
        == 5
    )


async def test_records_of_many_days_in_any_order_need_memory_for_their_bytes_only(tmp_path: Path) -> None:
    """Such as a history that was sorted by visitor. An open file for each day would take tens of kilobytes."""
    sink = lake(tmp_path)
    await sink.open()
    day = 86_400_000
    batch = [
        replace(each, at=each.at - number * 7919 % 1000 * day, position=number)
        for number, each in enumerate(make_records(2000), 1)
    ]
    before = pa.total_allocated_bytes()
    for start in range(0, len(batch), 500):
        await sink.write(batch[start : start + 500])
    sink._buffer.compress()
    most = 0
    for _, file in sink._buffer.finish(()):
        file.content()
        most = max(most, pa.total_allocated_bytes() - before)
    await sink.close()
    size = sum(len(each.body) for each in batch)
    assert most < 8 * size, f"{most} bytes for {size} bytes of JSON"


async def test_a_file_that_is_not_parquet_is_a_failure_that_names_it(tmp_path: Path) -> None:
    sink = lake(tmp_path)
    other = tmp_path / "lake" / "type=event" / "date=2026-11-21" / "a.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"no parquet")
    with pytest.raises(SinkRetry, match=r"a\.parquet"):
        await sink.open()
    await sink.close()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def numbers_in_bucket(s3: S3Server, folder: str) -> list[int]:
    return numbers_in_files(s3.files(), folder)


def numbers_in_files(files: FileSystem, folder: str) -> list[int]:
    infos = files.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
    numbers = []
    for info in infos:
        if info.path.endswith(".parquet"):
            with files.open_input_file(info.path) as file:
                numbers += [json.loads(text)["data"]["number"] for text in pq.read_table(file)["record"].to_pylist()]
    return sorted(numbers)


def in_bucket(s3: S3Server, folder: Path, name: str, **storage: str) -> ParquetSink:
    table = {"url": f"s3://shop/{name}", "storage": {**s3.storage, **storage}}
    return configured(ParquetSink, "lake", table, folder)


async def test_object_storage_has_each_record_once(s3: S3Server, tmp_path: Path) -> None:
    sink = in_bucket(s3, tmp_path, "once")
    await sink.check()
    await sink.open()
    records = [placed(each) for each in make_records(20)]
    await store(sink, records[:10])
    await store(sink, records[:10])
    await sink.write(records[5:])
    await sink.flush(None)
    await sink.check()
    await sink.close()
    assert numbers_in_bucket(s3, "shop/once") == [*range(1, 21)]


async def test_object_storage_is_compacted(s3: S3Server, tmp_path: Path) -> None:
    storage = "\n".join(f'{name} = "{value}"' for name, value in s3.storage.items())
    url = "s3://shop/compacted"
    shop = Shop(tmp_path, {"sinks.lake": f'type = "parquet"\nurl = "{url}"', "sinks.lake.storage": storage})
    sink = configured(ParquetSink, "lake", {"url": url, "storage": s3.storage}, tmp_path)
    await sink.open()
    for position, each in enumerate(make_records(3), 1):
        await store(sink, [replace(each, position=position)])
    assert json.loads(shop.command("lake", "compact", "--json"))["written"] == 1
    assert len(sink.lake.files("type=event/date=2026-11-21")) == 1
    await sink.close()
    assert numbers_in_bucket(s3, "shop/compacted") == [1, 2, 3]


async def test_google_cloud_storage_has_each_record_once(tmp_path: Path) -> None:
    with gcs_server(tmp_path) as server:
        missing = configured(ParquetSink, "lake", {"url": "gs://missing/lake", "storage": server.storage}, tmp_path)
        with pytest.raises(SinkRetry, match="there is no bucket missing"):
            await missing.open()
        await missing.close()
        sink = configured(ParquetSink, "lake", {"url": "gs://shop/once", "storage": server.storage}, tmp_path)
        await sink.check()
        await sink.open()
        records = [placed(each) for each in make_records(20)]
        await store(sink, records[:10])
        await store(sink, records[:10])
        await sink.write(records[5:])
        await sink.flush(None)
        await sink.close()
        assert numbers_in_files(server.files(), "shop/once") == [*range(1, 21)]


@pytest.mark.long
async def test_azure_has_each_record_once(tmp_path: Path) -> None:
    with azurite(tmp_path / "azure") as server:
        keys = {key: text for key, text in server.storage.items() if key != "account_key"}

        def in_azure(url: str = "abfss://shop/once", **credentials: str) -> ParquetSink:
            return configured(ParquetSink, "lake", {"url": url, "storage": {**keys, **credentials}}, tmp_path)

        signature = "d3Jvbmcvc2VjcmV0"
        for wrong, message in (
            (in_azure("abfss://missing/lake", account_key=server.storage["account_key"]), "there is no bucket missing"),
            (in_azure(account_key=signature), "AuthorizationFailure"),
            (in_azure(account_key=signature[1:]), "Base64"),
            (in_azure(sas_token=f"sv=2021-12-02&sig={signature}&ss=b"), "AuthorizationFailure"),
            (in_azure(client_id="shop", tenant_id="shop", client_secret=signature), "Authentication"),
        ):
            with pytest.raises(SinkRetry, match=message) as refused:
                await wrong.open()
            assert signature[1:] not in str(refused.value)
            await wrong.close()
        records = [placed(each) for each in make_records(20)]
        sink = in_azure("abfss://shop@shopaccount.dfs.core.windows.net/once", sas_token=server.token())
        await sink.check()
        await sink.open()
        await store(sink, records[:10])
        await store(sink, records[:10])
        await sink.write(records[5:])
        server.stop()
        with pytest.raises(SinkRetry, match="Could not connect"):
            await sink.flush(None)
        server.start()
        await sink.flush(None)
        await sink.close()
        assert numbers_in_files(server.files(), "shop/once") == [*range(1, 21)]


async def test_a_url_may_have_all_that_pyarrow_takes_in_it(s3: S3Server, tmp_path: Path) -> None:
    storage = s3.storage
    url = (
        f"s3://{storage['access_key']}:{storage['secret_key']}@shop/all?endpoint_override={s3.endpoint}"
        f"&scheme=http&region=eu-1"
    )
    sink = configured(ParquetSink, "lake", {"url": url}, tmp_path)
    await sink.open()
    await store(sink, make_records(2))
    await sink.close()
    assert numbers_in_bucket(s3, "shop/all") == [1, 2]


@pytest.mark.parametrize(
    "wrong", [{"secret_key": "another-secret"}, {"access_key": "another-key"}, {"endpoint_override": "127.0.0.1:9"}]
)
async def test_a_storage_that_refuses_is_a_failure_of_the_sink_without_secrets(
    wrong: dict[str, str], s3: S3Server, tmp_path: Path
) -> None:
    sink = in_bucket(s3, tmp_path, "refused", **wrong, request_timeout="1", connect_timeout="1.5")
    for attempt in (sink.check, sink.open):
        with pytest.raises(SinkRetry) as raised:
            await attempt()
        for name in ("secret_key", "access_key"):
            assert {**s3.storage, **wrong}[name] not in str(raised.value)
    await sink.close()


async def test_a_missing_bucket_is_a_failure_of_the_sink_until_it_exists(s3: S3Server, tmp_path: Path) -> None:
    table = {"url": "s3://missing/lake", "storage": s3.storage}
    sink = configured(ParquetSink, "lake", table, tmp_path)
    for attempt in (sink.check, sink.open):
        with pytest.raises(SinkRetry, match="there is no bucket missing"):
            await attempt()
    s3.files().create_dir("missing")
    await sink.check()
    await sink.open()
    await store(sink, make_records(1))
    await sink.close()
    assert numbers_in_bucket(s3, "missing/lake") == [1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"url": "s3://a/b", "storage": {"acess_key": "x"}}, "the file system cannot be used: .*acess_key"),
        ({"url": "nowhere://a/b"}, "nowhere"),
    ],
)
async def test_a_file_system_that_cannot_be_used_is_a_failure_that_says_why(
    table: dict[str, Any], message: str, tmp_path: Path
) -> None:
    sink = configured(ParquetSink, "lake", table, tmp_path)
    with pytest.raises(SinkRetry, match=message):
        await sink.check()
    await sink.close()


def test_duckdb_reads_the_lake_of_a_daemon_that_was_killed_amid_flushes(s3: S3Server, tmp_path: Path) -> None:
    """Through the installed command, with an outage of the server on the way."""
    storage = "\n".join(f'{name} = "{value}"' for name, value in s3.storage.items())
    tables = {
        "plugins": 'enabled = ["keys", "identity", "session", "sqlite"]',
        "http": 'shutdown_timeout = "20s"',
        "sinks.lake": 'type = "parquet"\nurl = "s3://shop/daemon"\nflush_every = "300ms"\nmax_size = "20kB"\n'
        'batch = { max_wait = "0s" }\nretry = { initial = "50ms", max = "300ms" }',
        "sinks.lake.storage": storage + '\nrequest_timeout = "1.0"\nconnect_timeout = "1.0"',
    }
    shop = Shop(tmp_path, tables)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            event = {"key": "Page View", "anonymousId": f"v-{sent}", "data": {"number": sent}}
            assert daemon.post("/track", event, shop.public.id).status == 200

    for _ in range(3):
        with Daemon(shop.config) as daemon:
            send(40)
            wait_until(lambda: daemon.metric('ingestd_sink_delivered_total{sink="lake"}') > 0)
            send(40)
            daemon.kill()
    with shop.serve() as daemon:
        s3.kill()
        send(40)
        wait_until(lambda: daemon.metric('ingestd_sink_retries_total{sink="lake"}') > 1)
        assert daemon.metric('ingestd_sink_dead_letters{sink="lake"}') == 0
        status = json.loads(shop.command("sinks", "status", "lake", "--json"))
        assert status["state"] == "failing"
        assert status["pending"] >= 40
        assert s3.storage["secret_key"] not in json.dumps(status) + "\n".join(daemon.log)
        s3.start()
        wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="lake"}') == 0)
        send(5)
    status = json.loads(shop.command("sinks", "status", "lake", "--json"))
    assert (status["delivered"], status["pending"], status["deadLetters"]) == (sent, 0, 0)
    assert numbers_in_bucket(s3, "shop/daemon") == [*range(1, sent + 1)]
    shop.command("sinks", "replay", "lake", "--from", "1")
    assert numbers_in_bucket(s3, "shop/daemon") == [*range(1, sent + 1)]


def test_a_backfill_needs_bounded_memory(tmp_path: Path) -> None:
    """The buffer has the records compressed. So after the first ones, more records need little more memory.

    What counts is the memory in use. The process has tens of megabytes more or less, because pyarrow's allocator
    returns free memory to the system later.
    """
    sink = lake(tmp_path)
    at = 0

    async def fill(batches: int) -> int:
        """Write batches, and return the most memory in use after one of them, in bytes."""
        nonlocal at
        most = 0
        for _ in range(batches):
            batch = [replace(each, position=(at := at + 1)) for each in make_records(500, extra={"text": "abc " * 400})]
            await sink.write(batch)
            most = max(most, pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0])
        return most

    async def scenario() -> tuple[int, int]:
        await sink.open()
        peaks = await fill(20), await fill(30)
        await sink.flush(Span(1, at, 1))
        await sink.close()
        return peaks

    tracemalloc.start()
    try:
        before, after = asyncio.run(scenario())
    finally:
        tracemalloc.stop()
    assert after - before < 10 << 20, f"{before} to {after} bytes while 27 MB were written"
