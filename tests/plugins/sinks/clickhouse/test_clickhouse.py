"""The clickhouse sink on a real server: every record is a row, despite failures of the server and of its table."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Secret, Url
from ingestd.api.record_batch import Batch
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.clickhouse.errors import failure
from ingestd.plugins.sinks.columns import DataRefused
from ingestd.support.ids import time_uuid
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.chdb_server import ChdbServer, chdb_server
from tests.support.clickhouse_server import ClickHouseServer, clickhouse_server
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.sinks import ids_of, lines_to_read

ROOT = Path(__file__).parents[4]
_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouseServer]:
    with clickhouse_server() as server:
        yield server


class Warehouse:
    """A separate table for each test."""

    def __init__(self, server: ClickHouseServer) -> None:
        self.server = server
        self.table = f"records_{next(_numbers)}"

    def sink(self, **options: Any) -> ClickHouseSink:
        given = {"url": Url(self.server.url), "password": Secret(self.server.password), "table": self.table, **options}
        return ClickHouseSink("warehouse", ClickHouseSink.Options(**given))

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[ClickHouseSink]:
        sink = self.sink(**options)
        try:
            await sink.open()
            yield sink
        finally:
            await sink.close()

    def rows(self, columns: str, more: str = "") -> list[Any]:
        return self.server.rows(f"SELECT {columns} FROM {self.table} FINAL {more} ORDER BY position, id")

    def values(self) -> list[Any]:
        return [json.loads(row["record"]) for row in self.rows("record")]

    def ids(self) -> list[str]:
        return [row["id"] for row in self.rows("id")]

    def alter(self, change: str) -> None:
        self.server.sql(f"ALTER TABLE {self.table} {change}")


@pytest.fixture
def warehouse(server: ClickHouseServer) -> Warehouse:
    return Warehouse(server)


def with_data(data: bytes) -> Record:
    return Record("event", 1_795_233_906_000, b'{"id":"%s","data":%s}' % (time_uuid().encode(), data), 1)


class TestContract(SinkContract):
    """On ClickHouse 18.16, which knows no tokens: a repeated batch is stored once because the table replaces rows."""

    exactly_once = True

    @pytest.fixture(autouse=True)
    def _warehouse(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse

    def make_sink(self, folder: Path) -> ClickHouseSink:
        return self.warehouse.sink()

    async def read_back(self, folder: Path) -> list[Any]:
        return self.warehouse.values()

    async def interrupt(self, folder: Path) -> None:
        self.warehouse.server.kill()
        self.warehouse.server.start()

    def make_rejected(self) -> Record:
        return with_data(b'"\\ud800"')


async def test_the_members_that_most_records_have_are_columns(warehouse: Warehouse) -> None:
    members = {"timestamp": "2026-11-21T05:04:05.500+01:00", "userId": "u-1", "sessionId": "s-1", "anonymousId": "v-1"}
    (event,) = make_records(1, **members, data={"a": [1]}, context={"b": "c"})
    derived = Record("refund", 1_795_233_906_001, b'{"id": "refund-1", "type": "refund", "amount": 1.50}', 7)
    async with warehouse.opened() as sink:
        await sink.write([event, derived])
    columns = "type, tenant, key, toUnixTimestamp(received_at) AS received, toUnixTimestamp(timestamp) AS sent"
    first, second = warehouse.rows(f"{columns}, anonymous_id, user_id, session_id, position, data, context, record")
    assert first == {
        "type": "event", "tenant": "shop", "key": "Page View", "received": 1_795_233_906, "sent": 1_795_233_845,
        "anonymous_id": "v-1", "user_id": "u-1", "session_id": "s-1", "position": "1", "data": '{"a":[1]}',
        "context": '{"b":"c"}', "record": event.body.decode(),
    }  # fmt: skip
    nothing = {**dict.fromkeys(("sent", "anonymous_id", "user_id", "session_id")), "tenant": "", "key": ""}
    fixed = {"type": "refund", "received": 1_795_233_906, "position": "7", "record": derived.body.decode()}
    assert second == {**fixed, **nothing, "data": "", "context": ""}


ATTRIBUTION = {
    "id": "a-1", "type": "attribution", "tenant": "shop", "decidedAt": "2026-11-21T04:05:06.000Z", "orderId": "o-1",
    "orderAt": "2026-11-21T04:05:05.000Z", "anonymousId": "v-1", "userId": None, "model": "last_touch",
    "value": {"revenue": 40.5, "total": 50, "currency": "EUR"},
    "touchpoint": {"eventId": "e-1", "source": "google", "medium": "cpc", "channel": "Paid Search"},
    "credits": {"last_touch": [{"eventId": "e-1", "weight": 1.0}]},
}  # fmt: skip


async def test_data_of_a_derived_record_has_its_members_without_a_column(warehouse: Warehouse) -> None:
    async with warehouse.opened() as sink:
        await sink.write([Record("attribution", 1_795_233_906_000, json.dumps(ATTRIBUTION).encode(), 1)])
    (row,) = warehouse.rows("data")
    members = ("orderId", "model", "value", "touchpoint", "credits")
    assert json.loads(row["data"]) == {name: ATTRIBUTION[name] for name in members}


async def test_a_recent_server_has_typed_paths_of_data_and_takes_values_of_other_types() -> None:
    orders = [
        {"order_id": "o-1", "total": 19.99, "currency": "EUR", "products": [{"price": 1}], "number": 1 << 60},
        {"order_id": 7, "total": "12 EUR", "currency": {"code": "EUR"}, "value": 5},
        {"total": 1e300, "value": {"revenue": "much"}, "touchpoint": "none"},
    ]
    batch = [record for order in orders for record in make_records(1, key="Order Completed", data=order)]
    batch.append(Record("attribution", 1_795_233_906_000, json.dumps(ATTRIBUTION).encode(), 4))
    batch = [replace(each, position=position) for position, each in enumerate(batch, 1)]
    with chdb_server() as server:
        sink = ClickHouseSink("warehouse", ClickHouseSink.Options(url=Url(server.url)))
        await sink.open()
        await sink.write(Batch(batch))
        await sink.write(Batch(batch[:2]))
        await sink.close()
        paths = (
            "data.order_id AS id, data.total AS total, data.currency AS currency, data.value.revenue AS revenue,"
            " data.touchpoint.channel AS channel"
        )
        every = "FROM ingestd_records FINAL ORDER BY position"
        nothing = dict.fromkeys(("id", "total", "currency", "revenue", "channel"))
        assert server.rows(f"SELECT {paths} {every}") == [
            {**nothing, "id": "o-1", "total": 19.99, "currency": "EUR"},
            {**nothing, "id": "7", "currency": '{"code":"EUR"}'},
            {**nothing, "total": 1e300},
            {**nothing, "revenue": 40.5, "channel": "Paid Search"},
        ]
        bodies = [row["record"].encode() for row in server.rows(f"SELECT record {every}")]
        assert bodies == [each.body for each in batch]
        assert "EUR\t1\t19.99" in server.sql(_example("Orders by day, with typed"))
        assert server.sql(_example("Revenue by channel")) == "Paid Search\tEUR\t1\t40.5\n"
        selected = server.rows(f"SELECT {paths} {every}")
        for type_ in ("JSON", "String"):
            await _move_a_table(server, batch, type_)
            assert [row["record"].encode() for row in server.rows(f"SELECT record {every}")] == bodies
            assert server.rows(f"SELECT {paths} {every}") == selected
            assert server.rows("SELECT data.number AS number FROM ingestd_records WHERE position = 1") == [
                {"number": 1 << 60}
            ], "no number becomes a text"
        _a_query_for_a_key_reads_its_granules(server)


async def _move_a_table(server: ChdbServer, batch: Sequence[Record], type_: str) -> None:
    """Write to a table of an earlier version, and carry out the documented statements."""
    label, time = "LowCardinality(Nullable(String))", "DateTime64(3, 'UTC')"
    server.sql("DROP TABLE ingestd_records")
    server.sql(
        "CREATE TABLE ingestd_records (id String, type LowCardinality(String), tenant LowCardinality(Nullable(String)),"
        f" key {label}, received_at {time}, timestamp Nullable({time}), anonymous_id Nullable(String),"
        f" user_id Nullable(String), session_id Nullable(String), position Int64, data {type_}, context {type_},"
        " record String) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(received_at) ORDER BY (received_at, id)"
    )
    rename, copy, drop = _example("of an earlier version").split(";")
    sink = ClickHouseSink("warehouse", ClickHouseSink.Options(url=Url(server.url)))
    await sink.write(Batch(batch[:-2]))
    _insert_as_an_earlier_version(server, "ingestd_records", batch[-1])
    server.sql(rename)
    with pytest.raises(SinkRetry, match="does not exist"):
        await sink.write(Batch(batch[1:-1]))
    await sink.write(Batch(batch[1:-1]))  # to a new table
    await sink.close()
    server.sql(copy)
    server.sql(drop)


def _insert_as_an_earlier_version(server: ChdbServer | ClickHouseServer, table: str, record: Record) -> None:
    """Of a record without `data`, that column stayed empty."""
    server.sql(
        f"INSERT INTO {table} (id, type, tenant, received_at, position, record)"
        f" VALUES ('a-1', '{record.type}', 'shop', '2026-11-21 04:05:06', {record.position}, '{record.body.decode()}')"
    )


async def test_a_table_of_an_earlier_version_is_moved_on_an_old_server(warehouse: Warehouse) -> None:
    label, time = "Nullable(String)", "DateTime('UTC')"
    warehouse.server.sql(
        f"CREATE TABLE {warehouse.table} (id String, type String, tenant {label}, key {label}, received_at {time},"
        f" timestamp Nullable({time}), anonymous_id {label}, user_id {label}, session_id {label}, position Int64,"
        " data String, context String, record String)"
        " ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(received_at) ORDER BY (received_at, id)"
    )
    batch = [replace(each, position=position) for position, each in enumerate(make_records(3, data={"a": 1}), 1)]
    attribution = Record("attribution", 1_795_233_906_000, json.dumps(ATTRIBUTION).encode(), 4)
    rename, copy, drop = [
        re.sub(r",?\s*(type_json|max_partitions)_\w+ = \d", "", each).replace("ingestd_records", warehouse.table)
        for each in _example("of an earlier version").split(";")
    ]
    async with warehouse.opened() as sink:
        await sink.write(batch[:2])
        _insert_as_an_earlier_version(warehouse.server, warehouse.table, attribution)
        warehouse.server.sql(rename)
        with pytest.raises(SinkRetry, match="doesn't exist"):
            await sink.write(batch[2:])
        await sink.write(batch[2:])
    warehouse.server.sql(copy)
    warehouse.server.sql(drop)
    assert warehouse.ids() == sorted(ids_of([*batch, attribution]))
    (row,) = [each for each in warehouse.rows("type, tenant, key, data") if each["type"] == "attribution"]
    assert (row["tenant"], row["key"], json.loads(row["data"])["value"]) == ("shop", "", ATTRIBUTION["value"])


def _a_query_for_a_key_reads_its_granules(server: ChdbServer) -> None:
    """Of eight granules, one in eight has the key. In the order of earlier versions each granule had each key."""
    server.sql("TRUNCATE TABLE ingestd_records")
    server.sql(
        "INSERT INTO ingestd_records (id, type, tenant, key, received_at, record)"
        " SELECT toString(number), 'event', 'shop', concat('Key ', toString(number % 8)),"
        " toDateTime64('2026-11-01 00:00:00', 3, 'UTC') + number, '{}' FROM numbers(65536)"
    )
    marks = [
        server.rows(f"EXPLAIN ESTIMATE SELECT id FROM ingestd_records WHERE {which}")[0]["marks"]
        for which in ("id != ''", "tenant = 'shop' AND type = 'event' AND key = 'Key 3'")
    ]
    assert marks[0] >= 8
    assert marks[1] <= 2


@pytest.mark.parametrize(
    "members",
    [
        '"timestamp": "yesterday"',
        '"timestamp": 1795233906',
        '"timestamp": "2026-11-21T04:05:06"',
        '"timestamp": "9999-12-31T23:59:59.999Z"',
        '"timestamp": "0000-01-01T00:00:00Z"',
        '"key": 5, "tenant": {}, "anonymousId": [], "userId": true, "sessionId": 1.5',
    ],
)
async def test_a_member_that_does_not_fit_its_column_is_only_in_the_record(warehouse: Warehouse, members: str) -> None:
    text = '{"id": "r-1", ' + members + "}"
    async with warehouse.opened() as sink:
        await sink.write([Record("event", 1_795_233_906_000, text.encode(), 1)])
    (row,) = warehouse.rows("timestamp, anonymous_id, user_id, session_id, key, tenant")
    assert [*row.values()] == [None] * 4 + [""] * 2
    assert warehouse.values() == [json.loads(text)]


async def test_one_faulty_record_of_a_thousand_is_rejected_and_the_others_are_stored(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.columns._SIFTING", 600.0)  # however slow the machine is
    batch = [replace(each, position=position) for position, each in enumerate(make_records(1000))]
    async with warehouse.opened() as sink:
        # A rule of the table. The server names no row for this error.
        warehouse.alter("ADD COLUMN rule UInt8 MATERIALIZED throwIf(position IN (0, 517, 999))")
        with pytest.raises(SinkReject) as caught:
            await sink.write(batch)
    assert caught.value.reasons.keys() == {0, 517, 999}
    assert caught.value.written == len(batch)
    assert sorted(warehouse.ids()) == sorted(
        ids_of([each for each in batch if each not in (batch[0], batch[517], batch[999])])
    )


async def test_a_record_that_cannot_be_read_is_rejected_without_the_server(warehouse: Warehouse) -> None:
    bad = {
        1: b'{"id":5}', 2: b'{"key":"x"}', 3: b'["id"]', 4: b'{"id":"x"', 5: b'{"id":"x","data":"\xff"}',
        6: b'{"id":"x","data":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    }  # fmt: skip
    batch = make_records(8)
    for index, body in bad.items():
        batch[index] = replace(batch[index], body=body)
    async with warehouse.opened() as sink:
        with pytest.raises(SinkReject) as caught:
            await sink.write(batch)
    assert caught.value.reasons.keys() == bad.keys()
    assert warehouse.ids() == ids_of([batch[0], batch[7]])


async def test_reasons_do_not_show_the_record(warehouse: Warehouse) -> None:
    async with warehouse.opened() as sink:
        with pytest.raises(SinkReject) as caught:
            await sink.write([with_data(b'"anna.kowalska \\ud800 anna.kowalska"')])
    assert "cannot be read" in caught.value.reasons[0]
    assert "kowalska" not in caught.value.reasons[0]


CHANGES = {
    "DROP COLUMN user_id": "o(?: such)? column user_id",
    "MODIFY COLUMN user_id UInt64": "column user_id of type UInt64, not String",
    "MODIFY COLUMN data Array(String)": r"column data of type Array\(String\)",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_column_is_the_sinks_trouble_until_it_is_right_again(warehouse: Warehouse, change: str) -> None:
    first, second = make_records(2), make_records(3, userId="u-1")
    async with warehouse.opened() as sink:
        await sink.write(first)
        warehouse.server.sql(f"TRUNCATE TABLE {warehouse.table}")
        warehouse.alter(change)
        for _ in range(2):
            with pytest.raises(SinkRetry, match=CHANGES[change]):
                await sink.write(second)
        with pytest.raises(SinkRetry, match=CHANGES[change]):
            await sink.check()
        assert warehouse.ids() == []
        kind = change.split(maxsplit=1)[0]
        warehouse.alter("ADD COLUMN user_id Nullable(String)" if kind == "DROP" else _restoring(change))
        await sink.write(second)
    assert warehouse.ids() == ids_of(second)


def _restoring(change: str) -> str:
    return f"MODIFY COLUMN {change.split()[2]} String"


async def test_a_column_that_the_sink_does_not_know_gets_its_default(warehouse: Warehouse) -> None:
    async with warehouse.opened() as sink:
        await sink.write(make_records(1))
        warehouse.alter("ADD COLUMN arrived DateTime DEFAULT now(), ADD COLUMN note String DEFAULT 'none'")
        await sink.write(make_records(2)[1:])
    assert [row["note"] for row in warehouse.rows("note")] == ["none", "none"]


async def test_a_table_that_is_gone_is_created_again(warehouse: Warehouse) -> None:
    batch = make_records(3)
    async with warehouse.opened() as sink:
        await sink.write(make_records(3))
        warehouse.server.sql(f"DROP TABLE {warehouse.table}")
        with pytest.raises(SinkRetry, match=r"doesn't exist.*code 60"):
            await sink.write(batch)
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)


async def test_a_table_of_an_operator_is_used_as_it_is(warehouse: Warehouse) -> None:
    columns = (
        "more String DEFAULT 'x', record String, context String, data String, position UInt64, session_id String,"
        " user_id String, anonymous_id String, timestamp DateTime, received_at DateTime, key String, tenant String,"
        " type String, id String"
    )
    warehouse.server.sql(f"CREATE TABLE {warehouse.table} ({columns}) ENGINE = MergeTree ORDER BY id")
    batch = make_records(2)
    async with warehouse.opened() as sink:
        await sink.write(batch)
    rows = warehouse.server.rows(
        f"SELECT user_id, toUnixTimestamp(received_at) AS at, record FROM {warehouse.table} ORDER BY position"
    )
    # Its columns have the time zone of the server, which is not UTC.
    assert rows == [{"user_id": "", "at": 1_795_233_906, "record": each.body.decode()} for each in batch]


@pytest.mark.parametrize("engine", ["Memory", "Buffer(default, none, 1, 1, 1, 1, 1, 1, 1)"])
async def test_a_table_that_does_not_last_is_refused(warehouse: Warehouse, engine: str) -> None:
    columns = "id String, type String"
    warehouse.server.sql(f"CREATE TABLE {warehouse.table} ({columns}) ENGINE = {engine}")
    with pytest.raises(SinkRetry, match=f"has the engine {engine.partition('(')[0]}.*; it has no column tenant"):
        await warehouse.sink().open()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"password": Secret("wrong-word")}, r"Wrong password.*code 193"),
        ({"user": "nobody"}, r"Unknown user.*code 192"),
        ({"database": "nowhere"}, r"nowhere"),
        ({"user": "reader"}, r"may only read|readonly|code 164"),
        ({"url": Url("http://127.0.0.1:9")}, "connection to 127.0.0.1:9 failed"),
    ],
)
async def test_wrong_options_are_the_sinks_trouble(warehouse: Warehouse, options: dict[str, Any], message: str) -> None:
    sink = warehouse.sink(**options)
    for attempt in (sink.open(), sink.check(), sink.write(make_records(1))):
        with pytest.raises(SinkRetry, match=message) as caught:
            await attempt
        assert "wrong-word" not in str(caught.value)
        assert warehouse.server.password not in str(caught.value)


async def test_user_and_password_may_be_in_the_url(warehouse: Warehouse) -> None:
    url = warehouse.server.url.replace("//", "//default:correct%2Fhorse%3Abattery%40staple@")
    async with warehouse.opened(url=Url(url), password=None) as sink:
        await sink.write(make_records(1))
        await sink.check()
    assert len(warehouse.ids()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": Url("tcp://ch:9000")}, "expected an HTTP URL"),
        ({"url": Url("http://ch:8123/?database=shop")}, "takes no parameters"),
        ({"url": Url("http://a:b@ch:8123"), "user": "c"}, "either in the url or as options"),
        ({"table": "shop.records"}, "table: expected ASCII letters"),
        ({"database": "a`b"}, "database: expected ASCII letters"),
        ({"ca_file": Path("/nowhere")}, "has no effect"),
    ],
)
def test_options_that_can_never_work_stop_the_start(
    warehouse: Warehouse, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        warehouse.sink(**options)


async def test_a_cancelled_write_ends_its_request(warehouse: Warehouse) -> None:
    batch = make_records(3)
    async with warehouse.opened() as sink:
        warehouse.server.hold()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sink.write(batch), 0.1)
        finally:
            warehouse.server.release()
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)


def make_certificates(folder: Path) -> None:
    for name in ("server", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", folder / f"{name}.key",
             "-out", folder / f"{name}.crt"],
            check=True, capture_output=True,
        )  # fmt: skip


@pytest.mark.logs("SSL Error")  # of Tornado, for each refused certificate
async def test_tls_is_used_and_certificates_are_verified() -> None:
    with clickhouse_server() as server:
        make_certificates(server.folder)
        server.kill()
        server.configure(tls=True)
        server.start()
        warehouse, batch = Warehouse(server), make_records(3)
        url = Url(f"https://127.0.0.1:{server.tls_port}")
        for options in ({}, {"ca_file": server.folder / "other.crt"}):
            with pytest.raises(SinkRetry, match=r"certificate of 127\.0\.0\.1:.* is not trusted"):
                await warehouse.sink(url=url, **options).open()
        async with warehouse.opened(url=url, ca_file=server.folder / "server.crt") as sink:
            await sink.write(batch)
        assert warehouse.ids() == ids_of(batch)


class Recorded:
    """An HTTP server that answers like a recent ClickHouse, and keeps the requests."""

    def __init__(self) -> None:
        self.inserts: list[tuple[dict[str, list[str]], bytes, bytes]] = []
        self.answers: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)

    async def answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parameters = parse_qs(urlsplit(head.split(b" ")[1].decode()).query)
        query = parameters["query"][0]
        status, text = b"200 OK", b""
        if query.startswith("INSERT"):
            body = await reader.readuntil(b"\r\n0\r\n\r\n")
            self.inserts.append((parameters, head, body))
            if self.answers:
                status, text = b"500 Internal Server Error", self.answers.pop(0)
        elif "version()" in query:
            text = b'{"version":"25.8.1.1"}\n'
        elif "system.columns" in query:
            types = dict.fromkeys(
                ("id", "type", "tenant", "key", "anonymous_id", "user_id", "session_id", "record"), "String"
            )
            times = dict.fromkeys(("received_at", "timestamp"), "DateTime64(3, 'UTC')")
            types |= {**times, "position": "Int64", "data": "JSON(max_dynamic_paths=10)", "context": "Nullable(JSON)"}
            text = b"".join(json.dumps({"name": name, "type": kind}).encode() + b"\n" for name, kind in types.items())
        elif "system.settings" in query:
            names = re.findall(r"'(\w+)'", query)
            text = b"".join(json.dumps({"name": name}).encode() + b"\n" for name in names)
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def recorded(**options: Any) -> AsyncIterator[tuple[ClickHouseSink, Recorded]]:
    server = Recorded()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listener:
        url = Url(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        yield ClickHouseSink("warehouse", ClickHouseSink.Options(url=url, **options)), server


async def test_an_insert_has_the_token_of_its_batch_and_is_sent_in_chunks() -> None:
    """A server that takes a request as whole although it was cut off would remember the token of missing rows."""
    batch = Batch(make_records(3, data={"a": 1}))
    async with recorded() as (sink, server):
        for _ in range(2):
            await sink.write(batch)
    for parameters, head, body in server.inserts:
        assert parameters["insert_deduplication_token"] == [batch.token]
        assert parameters["async_insert"] == ["0"]
        assert parameters["input_format_skip_unknown_fields"] == ["0"]
        assert b"Transfer-Encoding: chunked" in head
        assert b'"data":{"a":1},"context":{}' in body


async def test_a_refusal_amid_an_insert_is_told_although_the_server_closes_the_connection() -> None:
    """Rows are made while others are sent, so the answer comes before the last row is made."""
    text = b"Code: 241. DB::Exception: Memory limit (total) exceeded: would use 2.00 GiB."

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"INSERT" not in head:
            await Recorded().answer(head, reader, writer)
            return
        await reader.readexactly(100_000)
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        url = Url(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        sink = ClickHouseSink("warehouse", ClickHouseSink.Options(url=url))
        with pytest.raises(SinkRetry, match=r"Memory limit \(total\) exceeded"):
            await sink.write(Batch(make_records(10_000, data={"text": "x" * 1000})))


async def test_batches_of_two_partitions_are_two_batches_although_their_ids_are_equal() -> None:
    batches = [Batch(make_records(3), name) for name in ("00", "01")]
    async with recorded() as (sink, server):
        for batch in batches:
            await sink.write(batch)
    tokens = [parameters["insert_deduplication_token"] for parameters, _, _ in server.inserts]
    assert tokens == [[batch.token] for batch in batches]
    assert tokens[0] != tokens[1]


async def test_records_beside_a_rejected_one_have_the_same_token_each_time() -> None:
    """So they are stored once, even if the daemon is killed before it knows of the rejection."""
    batch = Batch(make_records(4))
    refusal = b"Code: 117. DB::Exception: Cannot insert data into JSON column: ... (at row 2)"
    async with recorded() as (sink, server):
        for _ in range(2):
            server.answers = [refusal, refusal, refusal]
            with pytest.raises(SinkReject) as caught:
                await sink.write(batch)
            assert caught.value.reasons.keys() == {1}
            assert caught.value.written == 4
    tokens = [parameters["insert_deduplication_token"] for parameters, _, _ in server.inserts]
    assert tokens[0] == [batch.token]
    assert tokens[: len(tokens) // 2] == tokens[len(tokens) // 2 :]
    assert tokens[0] != tokens[3]


ANSWERS = [
    (500, b"Code: 252, e.displayText() = DB::Exception: Too many parts (300)., e.what() = DB::Exception", SinkRetry),
    (500, b"Code: 241. DB::Exception: Memory limit (for query) exceeded: would use 4.00 MiB", SinkRetry),
    (403, b"Code: 516. DB::Exception: shop: Authentication failed", SinkRetry),
    (500, b"Code: 497. DB::Exception: shop: Not enough privileges", SinkRetry),
    (500, b"Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space", SinkRetry),
    (500, b"Code: 439. DB::Exception: Cannot schedule a task: no free thread", SinkRetry),
    (500, b"Code: 499. DB::Exception: Message: Please reduce your request rate.", SinkRetry),
    (500, b"Code: 172. DB::Exception: Cannot create directory: No space left on device", SinkRetry),
    (500, b"Code: 242. DB::Exception: Table is in readonly mode", SinkRetry),
    (500, b"Code: 16. DB::Exception: No such column user_id in table", SinkRetry),
    (502, b"<html>Bad gateway</html>", SinkRetry),
    (413, b"too large", SinkFailure),
    (500, b"Code: 49. DB::Exception: Logical error: 'secret-of-anna'", SinkFailure),
    (400, b"Code: 27. DB::Exception: Cannot parse input: expected ',' before: 'anna': (at row 3)", DataRefused),
    (500, b"Code: 469. DB::Exception: Constraint `c` is violated at row 1. Expression: a != 'anna'", DataRefused),
    (500, b"Code: 6. DB::Exception: Cannot parse string 'anna' as UInt64: syntax error", DataRefused),
]  # fmt: skip


@pytest.mark.parametrize(("status", "text", "kind"), ANSWERS)
def test_an_answer_tells_whether_the_server_or_a_row_is_at_fault(
    status: int, text: bytes, kind: type[Exception]
) -> None:
    found = failure("ch.example", status, None, text)
    assert type(found) is kind
    assert "anna" not in str(found)
    assert "DB::" not in str(found)


def _example(title: str) -> str:
    """The documented statements whose first line has these words."""
    (block,) = [block for block in lines_to_read("Query ClickHouse", "sql") if title in block.partition("\n")[0]]
    return block.strip().removesuffix(";")


async def test_the_documented_queries_work(warehouse: Warehouse) -> None:
    """Except those for the JSON type, which the server of this test does not have."""
    order: dict[str, Any] = {"key": "Order Completed", "data": {"order_id": "o-1", "total": 49.9, "currency": "EUR"}}
    batch = [
        *make_records(2, userId="u-17", anonymousId="visitor-1"),
        *make_records(1, anonymousId="visitor-2"),
        *make_records(1, anonymousId="visitor-3", **order),
    ]
    person: dict[str, Any] = {"tenant": "shop", "userId": "u-17", "anonymousIds": ["visitor-1"]}
    erasure = replace(make_records(1, type="erasure", **person, anonymousId=None)[0], type="erasure")
    everything = [replace(each, position=position) for position, each in enumerate([*batch, erasure], 1)]
    async with warehouse.opened() as sink:
        await sink.write(everything)
        await sink.write(everything[:2])

    def run(title: str) -> str:
        return warehouse.server.sql(_example(title).replace("ingestd_records", warehouse.table))

    assert run("each record once") == "event\t4\nerasure\t1\n"
    assert run("where data is text") == "2026-11-21\tEUR\t1\t49.9\n"
    run("before an erasure")
    wait_until(lambda: warehouse.ids() == ids_of(everything[2:]))


def test_a_daemon_delivers_each_record_to_a_server_that_starts_late_and_is_killed(tmp_path: Path) -> None:
    with clickhouse_server() as server:
        warehouse = Warehouse(server)
        server.kill()
        options = {"url": server.url, "password": server.password, "table": warehouse.table}
        lines = "".join(f'{name} = "{value}"\n' for name, value in options.items())
        shop = Shop(tmp_path, {"sinks.warehouse": 'type = "clickhouse"\nretry.max = "300ms"\n' + lines})
        sent = 0

        def send(daemon: Daemon, count: int) -> None:
            nonlocal sent
            for _ in range(count):
                sent += 1
                event = {"key": "Page View", "anonymousId": "visitor", "data": {"number": sent, "text": "a\0b"}}
                assert daemon.post("/track", event, shop.public.id).status == 200

        def delivered() -> bool:
            return len(warehouse.ids()) == sent

        with shop.serve() as daemon:
            send(daemon, 20)
            wait_until(lambda: daemon.metric('ingestd_sink_retries_total{sink="warehouse"}') > 1)
            server.start()
            wait_until(lambda: warehouse.table in server.sql("SHOW TABLES"))
            wait_until(delivered)
            server.kill()
            send(daemon, 20)
            wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="warehouse"}') >= 20)
            wait_until(lambda: "connection to 127.0.0.1" in shop.command("sinks", "status", "warehouse", "--json"))
            assert daemon.metric('ingestd_sink_dead_letters{sink="warehouse"}') == 0
            server.start()
            wait_until(delivered)
        journal = shop.exported()
        assert warehouse.values() == journal
        assert not any(server.password in line for line in daemon.log)
        shop.command("sinks", "replay", "warehouse", "--from", "1")
        assert warehouse.values() == journal
        server.sql(f"TRUNCATE TABLE {warehouse.table}")
        shop.command("sinks", "replay", "warehouse", "--from", "1")
        assert warehouse.values() == journal
