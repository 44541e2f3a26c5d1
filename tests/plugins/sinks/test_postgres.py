"""The postgres sink: every record is one row, despite failures of the server and changes of table and rights."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Url, read_options
from ingestd.plugins.sinks.postgres import PostgresSink
from ingestd.support.ids import time_uuid
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.clients import wait_until
from tests.support.daemon import Daemon, Shop
from tests.support.journals import until
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.sinks import ids_of, lines_to_read
from tests.support.tcp_proxy import tcp_proxy

asyncpg: Any = import_module("asyncpg")  # asyncpg has no types

ROOT = Path(__file__).parents[3]
_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


class Warehouse:
    """A separate user, and a schema of the same name for the sink's table."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.user = f"shop_{next(_numbers)}"
        self.password = "p@ss/word"
        self.url = server.url(self.user, self.password)
        server.sql(f"CREATE ROLE {self.user} LOGIN PASSWORD '{self.password}'; CREATE SCHEMA AUTHORIZATION {self.user}")

    def sink(self, table: str = "ingestd_records", more: str = "") -> PostgresSink:
        return PostgresSink("warehouse", PostgresSink.Options(url=Url(self.url + more), table=table))

    @asynccontextmanager
    async def opened(self, table: str = "ingestd_records", more: str = "") -> AsyncIterator[PostgresSink]:
        sink = self.sink(table, more)
        try:
            await sink.open()
            yield sink
        finally:
            await sink.close()

    def sql(self, commands: str) -> list[str]:
        return self.server.sql(commands, schema=self.user)

    def values(self, table: str = "ingestd_records") -> list[Any]:
        return [json.loads(line) for line in self.sql(f"SELECT record FROM {table} ORDER BY position")]

    def ids(self, table: str = "ingestd_records") -> list[str]:
        return self.sql(f"SELECT id FROM {table} ORDER BY id")

    async def make_table(self) -> None:
        """Let the sink create the table."""
        async with self.opened():
            pass

    async def disconnect(self) -> None:
        """End the sink's sessions, and let the event loop notice it."""
        self.end_sessions()
        await until(lambda: self.sessions() == 0)
        await turns()

    def end_sessions(self) -> None:
        self.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{self.user}'")

    def sessions(self) -> int:
        return int(self.sql(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.user}'")[0])

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[Any]:
        """Another session has locked the table."""
        other = await asyncpg.connect(self.server.url())
        try:
            await other.execute(f"BEGIN; LOCK TABLE {self.user}.ingestd_records IN ACCESS EXCLUSIVE MODE")
            yield other
        finally:
            other.terminate()

    def waiting(self) -> int:
        """The number of sessions that wait for a lock."""
        return int(self.sql("SELECT count(*) FROM pg_locks WHERE NOT granted")[0])

    @asynccontextmanager
    async def held_up(self, sink: PostgresSink, batch: Sequence[Record]) -> AsyncIterator[asyncio.Task[None]]:
        """A write that waits for the table, because another session has locked it."""
        async with self.locked():
            write = asyncio.create_task(sink.write(batch))
            await until(lambda: self.waiting() > 0)
            yield write


@pytest.fixture
def warehouse(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> Iterator[Warehouse]:
    yield Warehouse(server)
    gc.collect()  # asyncio logs an exception that nobody has retrieved once its future is gone
    assert [record.getMessage() for record in caplog.get_records("teardown")] == []


async def turns(count: int = 10) -> None:
    """Let the event loop handle the received bytes."""
    for _ in range(count):
        await asyncio.sleep(0)


def record(body: bytes) -> Record:
    return Record("event", 1_795_233_906_000, body, 1)


def with_data(data: bytes) -> Record:
    return record(b'{"id":"%s","data":%s}' % (time_uuid().encode(), data))


def without_null(value: Any) -> Any:
    """The value without null characters, by the sink's rule."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [without_null(each) for each in value]
    if isinstance(value, dict):
        return {without_null(name): without_null(each) for name, each in value.items()}
    return value


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def _warehouse(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse

    def make_sink(self, folder: Path) -> PostgresSink:
        return self.warehouse.sink()

    async def read_back(self, folder: Path) -> list[Any]:
        return self.warehouse.values()

    def expected(self, record: Record) -> Any:
        return without_null(record.decode())

    async def interrupt(self, folder: Path) -> None:
        self.warehouse.end_sessions()

    def make_rejected(self) -> Record:
        return with_data(b"1e200000")


async def test_the_most_used_members_have_a_column(warehouse: Warehouse) -> None:
    members = {"timestamp": "2026-11-21T05:04:05.500+01:00", "userId": "u-1", "sessionId": "s-1", "anonymousId": "v-1"}
    (event,) = make_records(1, **members)
    derived = Record("refund", 1_795_233_906_001, b'{"id": "refund-1", "type": "refund", "amount": 1.50}', 7)
    async with warehouse.opened() as sink:
        await sink.write([event, derived])
    columns = "type, tenant, key, received_at, timestamp, anonymous_id, user_id, session_id, position, record->'amount'"
    rows = warehouse.sql(f"SET timezone = 'UTC'; SELECT {columns} FROM ingestd_records ORDER BY position")
    assert rows == [
        "event|shop|Page View|2026-11-21 04:05:06.001+00|2026-11-21 04:04:05.5+00|v-1|u-1|s-1|1|",
        "refund|||2026-11-21 04:05:06.001+00||||||7|1.50".replace("||||||7", "|||||7"),
    ]


@pytest.mark.parametrize(
    "members",
    [
        '"timestamp": "yesterday"',
        '"timestamp": 1795233906',
        '"timestamp": "2026-11-21T04:05:06"',
        '"key": 5, "tenant": {}, "anonymousId": [], "userId": true, "sessionId": 1.5',
    ],
)
async def test_a_member_that_does_not_fit_its_column_is_only_in_the_record(warehouse: Warehouse, members: str) -> None:
    text = '{"id": "r-1", ' + members + "}"
    async with warehouse.opened() as sink:
        await sink.write([record(text.encode())])
    columns = "timestamp, key, tenant, anonymous_id, user_id, session_id"
    assert warehouse.sql(f"SELECT {columns} FROM ingestd_records") == ["|||||"]
    assert warehouse.values() == [json.loads(text)]


async def test_a_time_at_either_end_of_the_calendar_is_stored(warehouse: Warehouse) -> None:
    times = [
        "0000-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999Z",
        "9999-12-31T23:59:59-23:59", "2016-12-31T23:59:60Z",
    ]  # fmt: skip
    async with warehouse.opened() as sink:
        bodies = [json.dumps({"id": f"r-{number}", "timestamp": text}) for number, text in enumerate(times)]
        await sink.write([record(body.encode()) for body in bodies])
    assert [value["timestamp"] for value in warehouse.values()] == times
    (found,) = warehouse.sql("SET timezone = 'UTC'; SELECT timestamp FROM ingestd_records WHERE id = 'r-3'")
    assert found == "9999-12-31 23:59:59.999+00"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.text(st.sampled_from('\0\\"u0/ż\n') | st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('\0\\"u0')), inner, max_size=4),
    max_leaves=12,
)


def test_null_characters_become_replacement_characters_and_nothing_else_changes(warehouse: Warehouse) -> None:
    with asyncio.Runner() as runner:
        sink = warehouse.sink()
        runner.run(sink.open())
        reader = runner.run(asyncpg.connect(warehouse.url))

        @given(json_values, st.text(st.sampled_from('\0\\u0"') | st.characters(codec="utf-8")), st.booleans())
        def holds(value: Any, text: str, ascii: bool) -> None:
            whole = {"id": time_uuid(), "key": text, "userId": f"u{text}", "data": value}
            runner.run(sink.write([record(json.dumps(whole, ensure_ascii=ascii).encode())]))
            row = runner.run(reader.fetchrow("SELECT * FROM ingestd_records WHERE id = $1", whole["id"]))
            assert json.loads(row["record"]) == without_null(whole)
            assert row["key"] == text.replace("\0", "\ufffd")
            assert row["user_id"] == f"u{text}".replace("\0", "\ufffd")

        holds()
        runner.run(reader.close())
        runner.run(sink.close())


async def test_null_characters_in_type_and_id_are_replaced_too(warehouse: Warehouse) -> None:
    async with warehouse.opened() as sink:
        for _ in range(2):  # the repeated record is recognised
            await sink.write([Record("a\0b", 0, b'{"id":"c\\u0000d"}')])
            await sink.close()
    assert warehouse.sql("SELECT type, id FROM ingestd_records") == ["a\ufffdb|c\ufffdd"]


REFUSED = {
    "half of a surrogate pair": (with_data(b'"\\ud800"'), "cannot be read"),
    "a number beyond numeric": (with_data(b"1e200000"), "22003"),
    "nested deeper than the sink's parser allows": (with_data(b"[" * 5000 + b"]" * 5000), "nested too deeply"),
    "nested deeper than the server allows": (with_data(b"[" * 900 + b"]" * 900), "54001"),
    "not JSON": (record(b'{"id":"x"'), "cannot be read"),
    "not JSON in a skipped part": (with_data(b"nul"), "cannot be read"),
    "no object": (record(b'["id"]'), "cannot be read"),
    "a text": (record(b'"timestamp"'), "cannot be read"),
    "not UTF-8": (with_data(b'"\xff"'), "22021"),
    "a key that is not UTF-8": (record(b'{"id":"x","key":"\xff"}'), "cannot be read"),
    "no id": (record(b'{"key":"x"}'), "id"),
    "an id that is no text": (record(b'{"id":5}'), "id"),
    "an id too long for an index": (record(b'{"id":"%s"}' % os.urandom(9000).hex().encode()), "54000"),
    "a value against a CHECK of the table": (record(b'{"id":"y","tenant":"other"}'), "23514"),
    "a value that another unique index has": (record(b'{"id":"z","userId":"taken"}'), "23505"),
    "a value without its foreign key": (record(b'{"id":"w","tenant":"nobody"}'), "23503"),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_only_refused_records_of_a_batch_are_rejected(warehouse: Warehouse, why: str) -> None:
    bad, reason = REFUSED[why]
    await warehouse.make_table()
    warehouse.sql(f"""
        ALTER ROLE {warehouse.user} SET max_stack_depth = '100kB';
        CREATE TABLE tenants (tenant text PRIMARY KEY);
        INSERT INTO tenants VALUES ('shop'), ('other');
        GRANT SELECT ON tenants TO {warehouse.user};
        ALTER TABLE ingestd_records ADD CHECK (tenant <> 'other'), ADD FOREIGN KEY (tenant) REFERENCES tenants;
        CREATE UNIQUE INDEX ON ingestd_records (user_id);
        INSERT INTO ingestd_records (id, type, received_at, position, record, user_id)
        VALUES ('0', 'event', now(), 0, '{{}}', 'taken')
    """)
    good = make_records(7)
    batch = [*good[:2], bad, *good[2:6], bad, good[6]]
    async with warehouse.opened() as sink:
        with pytest.raises(SinkReject) as caught:
            await sink.write(batch)
        assert [*caught.value.reasons] == [2, 7] or sorted(caught.value.reasons) == [2, 7]
        assert all(reason in each for each in caught.value.reasons.values()), caught.value.reasons
        # The batch comes again without them, with later records.
        more = make_records(2)
        await sink.write([*good, *more])
    assert warehouse.ids() == ["0", *ids_of([*good, *more])]


async def test_reasons_do_not_show_the_row(warehouse: Warehouse) -> None:
    await warehouse.make_table()
    warehouse.sql("ALTER TABLE ingestd_records ADD CHECK (user_id <> 'anna.kowalska')")
    async with warehouse.opened() as sink:
        with pytest.raises(SinkReject) as caught:
            await sink.write(make_records(1, userId="anna.kowalska"))
    assert "kowalska" not in str(caught.value.reasons)


async def test_the_search_in_a_batch_of_many_refused_records_has_a_time_limit(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write finds some of the refused records, and blames no good one."""
    monkeypatch.setattr("ingestd.plugins.sinks.columns._SIFTING", 0.02)
    good = make_records(3)
    batch = [*good[:1], *[with_data(b"1e200000") for _ in range(300)], *good[1:]]
    writes = 0
    async with warehouse.opened() as sink:
        while len(batch) > len(good):
            with pytest.raises(SinkReject) as caught:
                await sink.write(batch)
            writes += 1
            assert caught.value.reasons
            batch = [each for index, each in enumerate(batch) if index not in caught.value.reasons]
        await sink.write(batch)
    assert batch == good
    assert writes > 1
    assert warehouse.ids() == ids_of(good)


async def test_the_same_record_twice_in_a_batch_is_one_row(warehouse: Warehouse) -> None:
    batch = make_records(3)
    async with warehouse.opened() as sink:
        await sink.write([*batch, *batch])
        more = make_records(3)
        await sink.write([*more, *batch, *more])
    assert warehouse.ids() == ids_of([*batch, *more])


async def test_two_sinks_may_write_the_same_records_at_once(warehouse: Warehouse) -> None:
    batches = [make_records(50) for _ in range(10)]
    async with warehouse.opened() as one, warehouse.opened() as other:

        async def write(sink: PostgresSink) -> None:
            for batch in batches:
                await sink.write(batch)

        await asyncio.gather(write(one), write(other))
    assert warehouse.ids() == ids_of([*chain(*batches)])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("DROP COLUMN session_id, DROP COLUMN key", "has no column key (text); it has no column session_id (text)"),
        ("ALTER COLUMN record TYPE json USING record::json", "has a column record of type json, not jsonb"),
        ("ALTER COLUMN received_at TYPE timestamp", "received_at of type timestamp without time zone, not timestamp w"),
        ("DROP CONSTRAINT ingestd_records_pkey", "has no unique index on (id), or on (id, received_at)"),
        (
            "DROP CONSTRAINT ingestd_records_pkey, ADD UNIQUE (id, position); "
            "CREATE UNIQUE INDEX ON ingestd_records (id) WHERE type = 'event'; "
            "CREATE UNIQUE INDEX ON ingestd_records (lower(id)); CREATE INDEX ON ingestd_records (id); "
            "CREATE UNIQUE INDEX ON ingestd_records (key) INCLUDE (id)",
            "has no unique index",
        ),
        ("ADD COLUMN shop text NOT NULL", "has a column shop that must be given: it needs a default"),
        ("SET UNLOGGED", "is unlogged: a crash of the server would empty it"),
        ("RENAME TO other; CREATE VIEW ingestd_records AS SELECT * FROM other", "is not a table"),
    ],
)
async def test_an_unusable_table_is_reported_with_its_fault(warehouse: Warehouse, change: str, fault: str) -> None:
    await warehouse.make_table()
    warehouse.sql(f"ALTER TABLE ingestd_records {change}")
    sink = warehouse.sink()
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match=re.escape(fault)) as caught:
            await attempt()
        assert str(caught.value).startswith("the table ingestd_records ")
    await sink.close()


@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMN note text, ADD COLUMN at timestamptz NOT NULL DEFAULT now(), "
        "ADD COLUMN number bigint NOT NULL GENERATED ALWAYS AS IDENTITY, "
        "ADD COLUMN total numeric GENERATED ALWAYS AS ((record->'data'->>'total')::numeric) STORED",
        "DROP COLUMN user_id, ADD COLUMN user_id text",
        "DROP CONSTRAINT ingestd_records_pkey, ADD UNIQUE (received_at, id)",
        "DROP CONSTRAINT ingestd_records_pkey, ADD UNIQUE (id) INCLUDE (position)",
        "DROP CONSTRAINT ingestd_records_pkey, ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
        "RENAME TO old; CREATE TABLE ingestd_records (LIKE old) PARTITION BY RANGE (received_at); "
        "ALTER TABLE ingestd_records OWNER TO CURRENT_ROLE, ADD PRIMARY KEY (id, received_at); "
        "CREATE TABLE november PARTITION OF ingestd_records FOR VALUES FROM ('2026-11-01') TO ('2026-12-01'); "
        "GRANT ALL ON ingestd_records TO PUBLIC",
    ],
)
async def test_a_table_may_have_more_than_the_sink_asks_for(warehouse: Warehouse, change: str) -> None:
    await warehouse.make_table()
    warehouse.sql(f"ALTER TABLE ingestd_records {change}")
    batch, more = make_records(3), make_records(3)
    async with warehouse.opened() as sink:
        await sink.check()
        await sink.write(batch)
        await sink.write([*batch, *more])
        await sink.close()
        await sink.write([*batch, *more])
    assert warehouse.ids() == ids_of([*batch, *more])


async def test_names_of_schema_and_table_may_be_words_of_sql(warehouse: Warehouse) -> None:
    warehouse.sql(f'CREATE SCHEMA "Order" AUTHORIZATION {warehouse.user}')
    batch = make_records(2)
    async with warehouse.opened("Order.select") as sink:
        await sink.check()
        await sink.write(batch)
        await sink.close()
        await sink.write(batch)
    assert warehouse.ids('"Order"."select"') == ids_of(batch)


async def test_a_missing_schema_is_reported(warehouse: Warehouse) -> None:
    sink = warehouse.sink("events.records")
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match='schema "events" does not exist'):
            await attempt()
    await sink.close()


@pytest.mark.parametrize("table", ["", "a.b.c", "a.", ".b", 'a"b', "a b", "1a", "a;b", "ż" * 32, "x" * 64, "a\0"])
def test_an_invalid_name_of_a_table_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match=r"^sinks\.warehouse\.table: expected"):
        PostgresSink("warehouse", PostgresSink.Options(url=Url("postgresql://host/db"), table=table))


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:hidden@host/db",
        "postgresql:hidden",
        "postgresql://user:hid/den@host/db",
        "postgresql://user:hid?den@host/db",
        "postgresql://user:hid#den@host/db",
        "postgresql://user:hid@den@host/db",
        "postgresql://user:hidden",
        "postgresql://user@host:hidden/db",
        "postgresql://host/db?hidden",
        "postgresql://host/db#hidden",
        "postgresql://host/db?password=hid@den",
    ],
)
def test_an_invalid_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^sinks\.warehouse\.url: expected postgresql://user:password@") as caught:
        PostgresSink("warehouse", PostgresSink.Options(url=Url(url)))
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///db",
        "postgres://host",
        "postgresql://user@/db?host=/run/postgresql",
        "postgresql://user:pw@[::1]:5432/db?sslmode=verify-full",
        "postgresql://user:pw@one:5432,two:5433/db?target_session_attrs=read-write",
    ],
)
def test_urls_of_every_kind_are_taken(url: str) -> None:
    PostgresSink("warehouse", PostgresSink.Options(url=Url(url)))


def test_options_are_read_and_the_password_is_not_shown() -> None:
    options = read_options(
        PostgresSink.Options, {"url": "postgresql://user:hidden@host/db"}, path="sinks.warehouse", source="x", base=ROOT
    )
    assert options.table == "ingestd_records"
    assert "hidden" not in repr(options)


def test_a_missing_library_is_reported_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError) as caught:
        PostgresSink("warehouse", PostgresSink.Options(url=Url("postgresql://host/db")))
    assert str(caught.value) == (
        "sinks.warehouse.type: needs asyncpg, which is not installed: pip install '.[postgres]' in ingestd's source"
    )


async def test_a_connection_lost_during_a_write_loses_and_repeats_nothing(warehouse: Warehouse) -> None:
    first, batch = make_records(2), make_records(500)
    async with warehouse.opened() as sink:
        await sink.write(first)
        async with warehouse.held_up(sink, batch) as write:
            await warehouse.disconnect()
            with pytest.raises(SinkRetry, match=r"terminating connection|closed in the middle"):
                await write
        await sink.write(batch)
    assert warehouse.ids() == ids_of([*first, *batch])


@pytest.mark.parametrize("end", [PostgresServer.kill, PostgresServer.stop], ids=["killed", "stopped"])
async def test_a_server_that_ends_during_a_write_and_returns_has_each_record_once(
    warehouse: Warehouse, end: Callable[[PostgresServer], None]
) -> None:
    first, batch = make_records(2), make_records(20)
    async with warehouse.opened() as sink:
        await sink.write(first)
        async with warehouse.held_up(sink, batch) as write:
            end(warehouse.server)
            try:
                with suppress(SinkRetry):  # the write succeeds if the session with the lock ends first
                    await write
                for attempt in (partial(sink.write, batch), sink.check, sink.open):
                    with pytest.raises(SinkRetry, match=r"[Cc]onnect"):
                        await attempt()
            finally:
                warehouse.server.start()
        await sink.write(batch)
    assert warehouse.ids() == ids_of([*first, *batch])


async def test_a_server_process_that_hangs_and_dies_during_a_large_write_is_survived(warehouse: Warehouse) -> None:
    first, batch = make_records(1), make_records(40, data={"text": "x" * 500_000})
    async with warehouse.opened() as sink:
        await sink.write(first)
        pid = int(warehouse.sql(f"SELECT pid FROM pg_stat_activity WHERE usename = '{warehouse.user}'")[0])
        os.kill(pid, signal.SIGSTOP)
        write = asyncio.create_task(sink.write(batch))
        try:
            await turns(200)  # until the buffers to the server are full
        finally:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(SinkRetry, match="closed in the middle"):
            await write
        warehouse.server.wait_until_it_answers()  # the server restarts when one of its processes dies
        await sink.write(batch)
    assert warehouse.ids() == ids_of([*first, *batch])


async def test_a_batch_of_several_portions_is_written_as_a_whole_or_not_at_all(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.postgres.rows._PORTION", 2000)
    first, last = make_records(20), make_records(20)
    async with warehouse.opened() as sink:
        warehouse.sql(f"""
            CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
            CREATE TRIGGER fail BEFORE INSERT ON ingestd_records FOR EACH ROW
            WHEN (new.id = '{ids_of(last)[-1]}') EXECUTE FUNCTION fail()
        """)
        with pytest.raises(SinkFailure, match="not today"):
            await sink.write([*first, *last])
        assert warehouse.ids() == []
        warehouse.sql("DROP TRIGGER fail ON ingestd_records")
        await sink.write(last)
        await sink.write([*first, *last])
    assert warehouse.ids() == ids_of([*first, *last])


async def test_a_restart_between_two_writes_fails_no_write(warehouse: Warehouse) -> None:
    batch, more = make_records(2), make_records(2)
    async with warehouse.opened() as sink:
        await sink.write(batch)
        warehouse.server.stop()
        warehouse.server.start()
        await turns()
        await sink.write(more)
    assert warehouse.ids() == ids_of([*batch, *more])


async def test_a_write_that_begins_while_the_session_ends_leaves_nothing_behind(
    warehouse: Warehouse, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop takes in the server's last message and the end of the connection in two turns, one after the other."""
    batches = []
    async with warehouse.opened() as sink:
        for count in range(6):
            batches += [make_records(1), make_records(1)]
            await sink.write(batches[-2])
            warehouse.end_sessions()
            wait_until(lambda: warehouse.sessions() == 0)  # without a turn of the loop
            await turns(count)
            with suppress(SinkRetry):
                await sink.write(batches[-1])
            await turns()  # a delivery waits before it tries again
            await sink.write(batches[-1])
    gc.collect()  # asyncio logs an exception that nobody has retrieved once its future is gone
    assert caplog.records == []
    assert warehouse.ids() == ids_of([*chain(*batches)])


async def test_what_a_lost_connection_had_committed_is_not_written_twice(warehouse: Warehouse) -> None:
    batch = make_records(5)
    async with warehouse.opened() as sink:
        await sink.write(batch)
        await warehouse.disconnect()
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)


async def test_a_write_is_cancelled_although_the_server_falls_silent(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.postgres.rows._PORTION", 2000)
    first, batch = make_records(2), make_records(20)
    port = urlsplit(warehouse.url).port or 0
    with tcp_proxy(free_port(), port) as proxy:
        url = Url(warehouse.url.replace(f":{port}", f":{proxy.port}"))
        sink = PostgresSink("warehouse", PostgresSink.Options(url=url))
        await sink.open()
        await sink.write(first)  # it queries ids, so it has no transaction
        async with warehouse.held_up(sink, batch) as write:
            proxy.hold()
            write.cancel()
            await asyncio.wait([write], timeout=20)
            assert write.cancelled()
            proxy.let_go()
        await sink.write(batch)
        await sink.close()
    assert warehouse.ids() == ids_of([*first, *batch])


async def test_a_write_that_waits_for_a_lock_is_cancelled_and_leaves_no_session_behind(warehouse: Warehouse) -> None:
    batch = make_records(50)
    async with warehouse.opened() as sink:
        async with warehouse.held_up(sink, batch) as write:
            for _ in range(3):
                write.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await write
                write = asyncio.create_task(sink.write(batch))  # noqa: PLW2901 - delivery does the same
                await until(lambda: warehouse.waiting() > 0)
            await until(lambda: warehouse.waiting() == 1)
            write.cancel()
            with suppress(asyncio.CancelledError):
                await write
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)
    await until(lambda: warehouse.sessions() == 0)


async def test_a_time_limit_of_the_server_is_blamed_on_no_record(warehouse: Warehouse) -> None:
    await warehouse.make_table()
    warehouse.sql(f"ALTER ROLE {warehouse.user} SET lock_timeout = '50ms'")
    batch = make_records(5)
    sink = warehouse.sink()
    async with warehouse.locked():
        with pytest.raises(SinkRetry, match="lock timeout"):
            await sink.write(batch)
    await sink.write(batch)
    await sink.close()
    assert warehouse.ids() == ids_of(batch)


async def test_a_read_only_database_is_blamed_on_no_record(warehouse: Warehouse) -> None:
    first, batch = make_records(5), make_records(5)
    async with warehouse.opened() as sink:
        await sink.write(first)
        warehouse.sql(f"ALTER ROLE {warehouse.user} SET default_transaction_read_only = on")
        await warehouse.disconnect()
        for again in (first, batch):  # the first batch is already there, and that does not hide the fault
            with pytest.raises(SinkRetry, match="read-only"):
                await sink.write(again)
        with pytest.raises(SinkRetry, match="the database is read-only"):
            await sink.check()
        warehouse.sql(f"ALTER ROLE {warehouse.user} RESET default_transaction_read_only")
        await sink.check()
        await sink.write(batch)
    assert warehouse.ids() == ids_of([*first, *batch])


async def test_revoked_rights_are_reported_and_blamed_on_no_record(warehouse: Warehouse) -> None:
    batch, user = make_records(5), f"{warehouse.user}_writer"
    await warehouse.make_table()
    warehouse.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {warehouse.user} TO {user};"
                  f" GRANT INSERT, SELECT (id) ON ingestd_records TO {user}")  # fmt: skip
    table = f"{warehouse.user}.ingestd_records"
    sink = PostgresSink("warehouse", PostgresSink.Options(url=Url(warehouse.server.url(user, "x")), table=table))
    await sink.write(batch)
    await sink.check()  # the sink needs only these two rights
    for right, named in (("INSERT", "INSERT id, type"), ("SELECT (id)", "SELECT id")):
        warehouse.sql(f"REVOKE {right} ON ingestd_records FROM {user}")
        with pytest.raises(SinkRetry, match=r"permission denied for table ingestd_records \(SQLSTATE 42501\)"):
            await sink.write([*batch, *make_records(1)])
        with pytest.raises(SinkRetry, match="permission denied"):
            await sink.write(batch)
        with pytest.raises(SinkRetry, match=f"no right to {named}"):
            await sink.check()
        warehouse.sql(f"GRANT {right} ON ingestd_records TO {user}")
        await sink.check()
    await sink.write(batch)
    await sink.close()
    assert warehouse.ids() == ids_of(batch)


async def test_a_user_without_the_right_to_create_the_table_gets_an_error_that_names_it(warehouse: Warehouse) -> None:
    user = f"{warehouse.user}_guest"
    warehouse.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'x'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    sink = PostgresSink("warehouse", PostgresSink.Options(url=Url(warehouse.server.url(user, "x"))))
    with pytest.raises(SinkRetry, match="no table ingestd_records, and no right to CREATE it in schema public"):
        await sink.check()
    with pytest.raises(SinkRetry, match="permission denied for schema public"):
        await sink.open()
    warehouse.sql(f"ALTER ROLE {user} SET search_path = nowhere")
    with pytest.raises(SinkRetry, match="search_path has no schema"):
        await sink.check()
    await sink.close()


async def test_a_refused_login_is_reported_and_blamed_on_no_record(warehouse: Warehouse) -> None:
    batch = make_records(5)
    sink = warehouse.sink()
    for change, undo, reason in (
        ("PASSWORD 'new'", f"PASSWORD '{warehouse.password}'", "password authentication failed"),
        ("NOLOGIN", "LOGIN", "not permitted to log in"),
        ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", "too many connections"),
    ):
        warehouse.sql(f"ALTER ROLE {warehouse.user} {change}")
        await warehouse.disconnect()
        await until(lambda: sink._connection is None or sink._connection.is_closed())
        for attempt in (partial(sink.write, batch), sink.check, sink.open):
            with pytest.raises(SinkRetry, match=reason) as caught:
                await attempt()
            assert "ss/word" not in str(caught.value)
        warehouse.sql(f"ALTER ROLE {warehouse.user} {undo}")
        await sink.write(batch)
    await sink.close()
    assert warehouse.ids() == ids_of(batch)


async def test_a_dropped_table_is_created_again(warehouse: Warehouse) -> None:
    batches = [make_records(3) for _ in range(3)]
    async with warehouse.opened() as sink:
        for batch in batches:
            await sink.write(batch)
            warehouse.sql("DROP TABLE ingestd_records")
            with pytest.raises(SinkRetry, match="does not exist"):
                await sink.write(batch)
            await sink.write(batch)
            assert warehouse.ids() == ids_of(batch)


async def test_a_table_replaced_by_an_unusable_one_is_blamed_on_no_record(warehouse: Warehouse) -> None:
    batch = make_records(5)
    async with warehouse.opened() as sink:
        await sink.write(batch)
        warehouse.sql("ALTER TABLE ingestd_records RENAME TO old;"
                      " CREATE TABLE ingestd_records AS SELECT * FROM old WHERE false;"
                      " ALTER TABLE ingestd_records ALTER position TYPE text, ALTER received_at TYPE bigint USING 0,"
                      " ALTER session_id TYPE uuid USING null, ADD PRIMARY KEY (id);"
                      " GRANT ALL ON ingestd_records TO PUBLIC")  # fmt: skip
        for _ in range(2):
            with pytest.raises(SinkRetry, match="has a column received_at of type bigint"):
                await sink.write(batch)
        warehouse.sql("DROP TABLE ingestd_records; ALTER TABLE old RENAME TO ingestd_records")
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)


async def test_changed_columns_and_partitions_are_blamed_on_no_record(warehouse: Warehouse) -> None:
    batch = make_records(5)
    async with warehouse.opened() as sink:
        warehouse.sql("ALTER TABLE ingestd_records ADD COLUMN shop text NOT NULL")
        with pytest.raises(SinkRetry, match="violates not-null constraint"):
            await sink.write(batch)
        warehouse.sql("DROP TABLE ingestd_records;"
                      " CREATE TABLE ingestd_records (id text, type text, tenant text, key text,"
                      " received_at timestamptz, timestamp timestamptz, anonymous_id text, user_id text,"
                      " session_id text, position bigint, record jsonb, PRIMARY KEY (id, received_at))"
                      " PARTITION BY RANGE (received_at);"
                      " GRANT ALL ON ingestd_records TO PUBLIC")  # fmt: skip
        for _ in range(2):
            with pytest.raises(SinkRetry, match="no partition of relation"):
                await sink.write(batch)
        warehouse.sql("CREATE TABLE rest PARTITION OF ingestd_records DEFAULT")
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)


async def test_a_full_disk_is_blamed_on_no_record(warehouse: Warehouse) -> None:
    """The device /dev/full replaces the table's file."""
    batch = make_records(50)
    await warehouse.make_table()
    file = warehouse.server.data / warehouse.sql("SELECT pg_relation_filepath('ingestd_records')")[0]
    kept = file.with_name("kept")
    async with warehouse.opened() as sink:
        file.rename(kept)
        file.symlink_to("/dev/full")
        try:
            for _ in range(2):
                with pytest.raises(SinkRetry, match="could not extend file"):
                    await sink.write(batch)
                await warehouse.disconnect()
        finally:
            kept.replace(file)
        await sink.write(batch)
    assert warehouse.ids() == ids_of(batch)


async def test_a_commit_waits_for_the_disk_whatever_the_server_s_default(warehouse: Warehouse) -> None:
    await warehouse.make_table()
    warehouse.sql(f"""
        CREATE TABLE seen (setting text);
        GRANT INSERT ON seen TO PUBLIC;
        CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN null; END $$;
        CREATE TRIGGER look AFTER INSERT ON ingestd_records EXECUTE FUNCTION look();
        ALTER ROLE {warehouse.user} SET synchronous_commit = off
    """)
    async with warehouse.opened() as sink:
        await sink.write(make_records(1))
    warehouse.sql(f"ALTER ROLE {warehouse.user} SET synchronous_commit = local")
    async with warehouse.opened() as sink:
        await sink.write(make_records(1))
    assert warehouse.sql("SELECT * FROM seen") == ["on", "local"]


async def test_a_database_without_unicode_is_refused(warehouse: Warehouse) -> None:
    warehouse.sql("CREATE DATABASE western TEMPLATE template0 ENCODING 'LATIN1'")
    url = warehouse.server.url(warehouse.user, warehouse.password, database="western")
    sink = PostgresSink("warehouse", PostgresSink.Options(url=Url(url)))
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match="encoding is LATIN1"):
            await attempt()
    await sink.close()


async def test_the_session_has_the_name_of_the_sink(warehouse: Warehouse) -> None:
    query = f"SELECT application_name FROM pg_stat_activity WHERE usename = '{warehouse.user}'"
    async with warehouse.opened():
        assert warehouse.sql(query) == ["ingestd warehouse"]
    async with warehouse.opened(more="?application_name=shop"):
        await until(lambda: warehouse.sql(query) == ["shop"])


async def test_check_creates_nothing(warehouse: Warehouse) -> None:
    sink = warehouse.sink()
    await sink.check()
    await sink.close()
    assert warehouse.sql("SELECT to_regclass('ingestd_records')") == [""]


async def test_check_tells_the_indexes_that_a_table_lacks(warehouse: Warehouse) -> None:
    """The sink makes them with a new table, and not for an existing one, because that takes a while."""
    async with warehouse.opened() as sink:
        await sink.check()
        assert not sink.risks()
        indexes = "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'ingestd_records'::regclass"
        names = warehouse.sql(f"{indexes} AND NOT indisprimary")
        assert len(names) == 6
        warehouse.sql(f"DROP INDEX {', '.join(names)}")
        await sink.write(make_records(1, orderId="o" * 10_000, userId="u" * 10_000))
        await sink.check()
        found = sink.risks()
        assert len(found) == 6
        for text in found:
            warehouse.sql(text.partition("; run ")[2])
        await sink.check()
        assert not sink.risks()


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[int]:
    """A server that sends this answer after the first bytes, and closes. Without an answer it only listens."""
    served = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        await reader.read(1000 if answer is not None else -1)
        with suppress(OSError):
            writer.write(answer or b"")
            writer.close()
            await writer.wait_closed()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]
    for writer in served:
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"S",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"N" + bytes(range(256)),
        b"NR\0\0\0\x08\0\0\0\x63",
        b"N" + b"E" * 99,
    ],
)
@pytest.mark.parametrize("more", ["", "?sslmode=disable"])
async def test_a_server_that_answers_garbage_is_a_failure_without_the_password(
    answer: bytes, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.postgres.client._CONNECTING", 0.3)

    async with listening(answer) as port:
        url = Url(f"postgresql://user:hidden@127.0.0.1:{port}/db{more}")
        sink = PostgresSink("warehouse", PostgresSink.Options(url=url))
        for attempt in (sink.open, sink.check, partial(sink.write, make_records(1))):
            with pytest.raises(SinkRetry) as caught:
                await attempt()
            assert "hidden" not in str(caught.value)
        await sink.close()


async def test_a_silent_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.postgres.client._CONNECTING", 0.1)
    async with listening(None) as port:
        sink = PostgresSink("warehouse", PostgresSink.Options(url=Url(f"postgresql://user:hidden@127.0.0.1:{port}/db")))
        with pytest.raises(SinkRetry, match=r"did not answer within 0\.1 s"):
            await sink.open()
        await sink.close()


@pytest.mark.parametrize("more", ["?sslmode=nonsense", "?sslmode=verify-full&sslrootcert=/nowhere/at/all.pem"])
async def test_invalid_options_in_the_url_are_reported(warehouse: Warehouse, more: str) -> None:
    sink = warehouse.sink(more=more)
    with pytest.raises(SinkRetry, match=r"sslmode|the connection: .*No such file"):
        await sink.open()
    await sink.close()


def make_certificates(server: PostgresServer) -> None:
    for name in ("server", "other"):
        key, certificate = server.data / f"{name}.key", server.data / f"{name}.crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        key.chmod(0o600)
        server.own(key)
        server.own(certificate)


async def test_tls_is_used_and_certificates_are_verified(warehouse: Warehouse) -> None:
    server = warehouse.server
    make_certificates(server)
    batch = make_records(2)
    with pytest.raises(SinkRetry, match="rejected SSL"):
        await warehouse.sink(more="?sslmode=require").open()
    server.sql("ALTER SYSTEM SET ssl = on")
    server.stop()
    server.start()
    try:
        with pytest.raises(SinkRetry, match=r"(?i)certificate"):
            await warehouse.sink(more=f"?sslmode=verify-full&sslrootcert={server.data}/other.crt").open()
        async with warehouse.opened(more=f"?sslmode=verify-full&sslrootcert={server.data}/server.crt") as sink:
            await sink.write(batch)
            sessions = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = "
            assert server.sql(f"{sessions}'{warehouse.user}'") == ["t"]
            async with warehouse.held_up(sink, batch) as write:
                write.cancel()
                with suppress(asyncio.CancelledError):
                    await write
            await sink.write(batch)
    finally:
        server.sql("ALTER SYSTEM RESET ssl")
        server.stop()
        server.start()
    assert warehouse.ids() == ids_of(batch)


def shown_queries() -> list[str]:
    return lines_to_read("Query PostgreSQL", "sql")


async def test_the_documented_queries_work(warehouse: Warehouse) -> None:
    order = {"key": "Order Completed", "userId": "u-17", "receivedAt": "2026-11-21T04:05:06.000Z"}
    batch = [
        *make_records(2, userId="u-17", anonymousId="visitor-1"),
        *make_records(1, anonymousId="visitor-1"),
        *make_records(1, anonymousId="visitor-2"),
        *make_records(1, **order, anonymousId="visitor-3", data={"order_id": "o-1", "total": 49.9, "currency": "EUR"}),
    ]
    person = {"tenant": "shop", "userId": "u-17", "anonymousIds": ["visitor-1"]}
    erasure = replace(make_records(1, type="erasure", **person, anonymousId=None)[0], type="erasure")
    after = make_records(1, userId="u-17", anonymousId="visitor-4")
    everything = [replace(each, position=position) for position, each in enumerate([*batch, erasure, *after], 1)]
    async with warehouse.opened() as sink:
        await sink.write(everything)
    index, orders, next_ones, of_person, forget = shown_queries()
    warehouse.sql(index.replace(" CONCURRENTLY", ""))
    assert warehouse.sql(orders) == ["2026-11-21|EUR|1|49.9"]
    assert warehouse.sql(next_ones.replace("$1", "5").replace("$2", "100")) == [
        f"{position}|{id_}" for position, id_ in zip((6, 7), ids_of([erasure, *after]), strict=True)
    ]
    statements = [orders, next_ones.replace("$1", "5").replace("$2", "100"), forget]
    for query, value, expected in zip(of_person.split(";"), ("visitor-1", "u-17", "o-1"), (3, 5, 1), strict=False):
        statements.append(query.replace("$1", f"'{value}'"))
        assert len(warehouse.sql(statements[-1])) == expected
    for statement in statements:
        plan = warehouse.sql(f"SET enable_seqscan = off; EXPLAIN {statement}")
        assert any("Index" in line for line in plan), plan
        assert not any("Seq Scan" in line for line in plan), plan
    warehouse.sql(forget)
    assert warehouse.ids() == ids_of([batch[3], erasure, *after])


def test_a_daemon_delivers_each_record_once_to_a_server_that_starts_late_and_is_killed(tmp_path: Path) -> None:
    with postgres_server() as server:
        warehouse = Warehouse(server)
        server.stop()
        sink = 'type = "postgres"\nretry.max = "500ms"\nretry.attempts = 1000\n' + f'url = "{warehouse.url}"'
        shop = Shop(tmp_path, {"sinks.warehouse": sink})
        sent = 0

        def send(daemon: Daemon, count: int) -> None:
            nonlocal sent
            for _ in range(count):
                sent += 1
                event = {"key": "Page View", "anonymousId": "visitor", "data": {"number": sent, "text": "a\0b"}}
                assert daemon.post("/track", event, shop.public.id).status == 200

        def delivered() -> int:
            return int(warehouse.sql("SELECT count(*) FROM ingestd_records")[0])

        with shop.serve() as daemon:
            send(daemon, 50)
            wait_until(lambda: daemon.metric('ingestd_sink_retries_total{sink="warehouse"}') > 1)
            server.start()
            wait_until(lambda: warehouse.sql("SELECT to_regclass('ingestd_records')") != [""])
            wait_until(lambda: delivered() == sent)
            server.kill()
            send(daemon, 50)
            wait_until(lambda: daemon.metric('ingestd_sink_pending{sink="warehouse"}') == 50)
            server.start()
            wait_until(lambda: delivered() == sent)
            assert daemon.post("/track", {"key": "Page View", "anonymousId": "visitor", "data": {}}, shop.public.id)
            sent += 1
            wait_until(lambda: delivered() == sent)
        journal = shop.exported()
        assert warehouse.values() == [without_null(value) for value in journal]
        assert not any("p@ss" in line or "p%40ss" in line for line in daemon.log)


def test_history_and_replays_leave_one_row_for_each_record(warehouse: Warehouse, tmp_path: Path) -> None:
    lines = [
        {
            "type": "track", "event": "Page View", "messageId": f"m-{number}", "anonymousId": "v", "properties": {},
            "timestamp": f"2020-01-{number + 1:02}T00:00:00Z", "receivedAt": f"2020-01-{number + 1:02}T00:00:01Z",
        }
        for number in range(25)
    ]  # fmt: skip
    (tmp_path / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shop = Shop(tmp_path, {"sinks.warehouse": f'type = "postgres"\nurl = "{warehouse.url}"'})
    with shop.serve() as daemon:
        view = {"key": "Page View", "anonymousId": "v", "data": {}}
        assert daemon.post("/track", view, shop.public.id).status == 200
        shop.command("events", "import", str(tmp_path / "history.jsonl"), "--tenant", "shop")
        wait_until(lambda: shop.is_done("sink:warehouse"))
        before = warehouse.sql("SELECT * FROM ingestd_records ORDER BY position")
        for first in ("1", "10"):
            shop.command("sinks", "replay", "warehouse", "--from", first)
        shop.command("events", "import", str(tmp_path / "history.jsonl"), "--tenant", "shop")
        wait_until(lambda: shop.is_done("sink:warehouse"))
    assert warehouse.sql("SELECT * FROM ingestd_records ORDER BY position") == before
    assert len(before) == 26
    assert warehouse.sql("SELECT count(*) FROM ingestd_records WHERE received_at < '2021-01-01'") == ["25"]
