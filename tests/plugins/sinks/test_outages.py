"""Each built-in sink on its real server, which refuses new records for longer than all attempts.

Afterwards delivery continues: the sink has all records, in order for each visitor, and no dead letters.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from ingestd.api.options import Secret, Url
from ingestd.api.sink import Sink
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.plugins.sinks.nats import NatsSink
from ingestd.plugins.sinks.postgres import PostgresSink
from ingestd.plugins.sinks.redis_stream import RedisStreamSink
from ingestd.plugins.sinks.stdout import StdoutSink
from ingestd.plugins.sinks.webhook import WebhookSink
from ingestd.testing.outages import deliver_through
from ingestd.testing.sinks import make_records
from tests.support.clickhouse_server import ClickHouseServer, clickhouse_server
from tests.support.daemon import Reply
from tests.support.disks import small_disk
from tests.support.nats_server import NatsServer, nats_server
from tests.support.ports import free_port
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.redis_server import RedisServer, redis_server
from tests.support.webhook_server import Received, WebhookServer, webhook_server

Refusal = Callable[[], AbstractAsyncContextManager[None]]

_names = count(1)


async def assert_survives(
    sink: Sink, refusal: Refusal, read: Callable[[], Sequence[dict[str, Any]]], size: int = 0
) -> None:
    """Deliver through the outage, with three records of each visitor during it, and check the content of the sink."""
    before, during = make_records(4), []
    for _ in range(3):
        during += make_records(5, data={"fill": "x" * size})
    await deliver_through(sink, before, during, refusal)
    wanted = [record.decode() for record in [*before, *during]]
    held = {record["id"]: record for record in await asyncio.to_thread(read)}
    for visitor in {record["anonymousId"] for record in wanted}:
        own = [record["id"] for record in wanted if record["anonymousId"] == visitor]
        assert [each for each, record in held.items() if record["anonymousId"] == visitor] == own
    assert len(held) == len(wanted)


# NATS


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.mark.parametrize("limit", ["max_msgs", "max_bytes"])
async def test_nats_with_a_full_stream_loses_no_record(nats: NatsServer, limit: str) -> None:
    """A full stream acknowledges messages with known ids, and refuses all others."""
    name = f"S{next(_names)}"
    config = StreamConfig(name=name, subjects=[f"{name}.*"], discard=DiscardPolicy.NEW)
    await nats.do(lambda jetstream: jetstream.add_stream(config))

    @asynccontextmanager
    async def full() -> AsyncIterator[None]:
        async def fill(jetstream: JetStreamContext) -> None:
            state = (await jetstream.stream_info(name)).state
            most = state.messages if limit == "max_msgs" else state.bytes
            await jetstream.update_stream(config.evolve(**{limit: most}))

        await nats.do(fill)
        yield
        await nats.do(lambda jetstream: jetstream.update_stream(config))

    sink = NatsSink("bus", NatsSink.Options(stream=name, subject=f"{name}.{{type}}", url=Url(nats.url)))
    await assert_survives(sink, full, lambda: asyncio.run(nats.records(name)))


async def test_nats_without_storage_loses_no_record(tmp_path: Path) -> None:
    """The storage of the account is used up, like on a full disk."""
    with nats_server(tmp_path / "nats") as server:
        config = server.folder / "nats.conf"
        unlimited = config.read_text()
        limited = unlimited.replace("store_dir", "max_file_store: 60000, store_dir")
        sink = NatsSink("bus", NatsSink.Options(stream="EVENTS", url=Url(server.url)))

        @asynccontextmanager
        async def full() -> AsyncIterator[None]:
            await _restart(server, config, limited)
            yield
            await _restart(server, config, unlimited)

        await assert_survives(sink, full, lambda: asyncio.run(server.records("EVENTS")), size=30_000)


async def _restart(server: NatsServer, config: Path, text: str) -> None:
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(config.write_text, text)
    await asyncio.to_thread(server.start)


# Redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.mark.parametrize("trouble", ["memory", "replica", "replicas", "rights"])
async def test_redis_that_refuses_writes_loses_no_record(redis: RedisServer, trouble: str) -> None:
    """The sink does not write records that it finds in the stream, so repeated records always succeed."""
    client, stream = redis.client(), f"s{next(_names)}"
    begin, end = {
        "memory": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        "replica": (f"REPLICAOF 127.0.0.1 {free_port()}", "REPLICAOF NO ONE"),
        "replicas": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        "rights": ("ACL SETUSER default -xadd", "ACL SETUSER default +xadd"),
    }[trouble]

    @asynccontextmanager
    async def refusing() -> AsyncIterator[None]:
        client.execute_command(*begin.split())
        yield
        client.execute_command(*end.split())

    def read() -> list[dict[str, Any]]:
        found: Any = client.xrange(stream)
        return [json.loads(fields[b"record"]) for _, fields in found]

    sink = RedisStreamSink("feed", RedisStreamSink.Options(url=Url(redis.url), stream=stream))
    await assert_survives(sink, refusing, read)


# PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


_TRIGGER = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{}'; END$$;
CREATE TRIGGER refuse BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION refuse()
"""
_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename <> ''"


@pytest.mark.parametrize("trouble", ["53100", "53400", "57014", "58030", "40001", "55P03", "P0001", "read-only"])
async def test_postgres_that_refuses_rows_loses_no_record(postgres: PostgresServer, trouble: str) -> None:
    """Errors that the sink recognises as the server's, and one (P0001) that it does not."""
    table = f"t{next(_names)}"

    begin, end = [_TRIGGER.format(trouble, table)], [f"DROP TRIGGER refuse ON {table}"]
    if trouble == "read-only":
        begin = [f"ALTER ROLE {postgres.user} SET default_transaction_read_only = on", _END_SESSIONS]
        end = [
            "SET default_transaction_read_only = off;"
            f" ALTER ROLE {postgres.user} RESET default_transaction_read_only"
        ]  # fmt: skip

    @asynccontextmanager
    async def refusing() -> AsyncIterator[None]:
        for command in begin:
            await asyncio.to_thread(postgres.sql, command)
        yield
        for command in end:
            await asyncio.to_thread(postgres.sql, command)

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in postgres.sql(f"SELECT record FROM {table} ORDER BY position")]

    sink = PostgresSink("warehouse", PostgresSink.Options(url=Url(postgres.url()), table=table))
    await assert_survives(sink, refusing, read)


# ClickHouse


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[ClickHouseServer]:
    with clickhouse_server() as server:
        yield server


_SWAPPED_BACK = "RENAME TABLE {0} TO {0}_other, {0}_kept TO {0}"
_TROUBLES = {
    # The statements that begin the trouble, those that end it, and the settings of the server meanwhile.
    "too many parts": (
        [
            "CREATE TABLE {0}_full AS {0} ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(received_at)"
            " ORDER BY (received_at, id) SETTINGS parts_to_delay_insert = 1, parts_to_throw_insert = 1",
            "INSERT INTO {0}_full SELECT * FROM {0}",
            "RENAME TABLE {0} TO {0}_kept, {0}_full TO {0}",
        ],
        [_SWAPPED_BACK],
        None,
    ),
    "another table": (
        [
            "CREATE TABLE {0}_new (id String) ENGINE = MergeTree ORDER BY id",
            "RENAME TABLE {0} TO {0}_kept, {0}_new TO {0}",
        ],
        [_SWAPPED_BACK],
        None,
    ),
    "a column is gone": (
        ["ALTER TABLE {0} DROP COLUMN user_id"],
        ["ALTER TABLE {0} ADD COLUMN user_id Nullable(String)"],
        None,
    ),
    "read-only": ([], [], "<readonly>1</readonly>"),
    "memory": ([], [], "<max_memory_usage>1000</max_memory_usage>"),
}


@pytest.mark.parametrize("trouble", _TROUBLES)
async def test_clickhouse_that_refuses_rows_loses_no_record(clickhouse: ClickHouseServer, trouble: str) -> None:
    table = f"t{next(_names)}"
    begin, end, settings = _TROUBLES[trouble]

    async def run(statements: Sequence[str]) -> None:
        for statement in statements:
            await asyncio.to_thread(clickhouse.sql, statement.format(table))

    def restart(settings: str, query: str | None) -> None:
        clickhouse.kill()
        clickhouse.configure(settings=settings)
        clickhouse.start(query)

    @asynccontextmanager
    async def refusing() -> AsyncIterator[None]:
        await run(begin)
        if settings is not None:
            await asyncio.to_thread(restart, settings, None)
        yield
        if settings is not None:
            await asyncio.to_thread(restart, "", "SELECT 1")
        await run(end)

    options = ClickHouseSink.Options(url=Url(clickhouse.url), password=Secret(clickhouse.password), table=table)
    await assert_survives(ClickHouseSink("warehouse", options), refusing, lambda: _rows(clickhouse, table))


async def test_clickhouse_that_is_killed_loses_no_record(clickhouse: ClickHouseServer) -> None:
    table = f"t{next(_names)}"

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        clickhouse.kill()
        yield
        await asyncio.to_thread(clickhouse.start)

    options = ClickHouseSink.Options(url=Url(clickhouse.url), password=Secret(clickhouse.password), table=table)
    await assert_survives(ClickHouseSink("warehouse", options), away, lambda: _rows(clickhouse, table))


def _rows(server: ClickHouseServer, table: str) -> list[dict[str, Any]]:
    return [json.loads(row["record"]) for row in server.rows(f"SELECT record FROM {table} FINAL ORDER BY position")]


# Webhook


@pytest.fixture(scope="module")
def webhook() -> Iterator[WebhookServer]:
    with webhook_server() as server:
        yield server


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 507, 403, 404])
async def test_a_webhook_that_accepts_known_records_only(webhook: WebhookServer, status: int) -> None:
    """For the sink, 403 and 404 may be the fault of a record. The other answers are the receiver's fault."""
    known: dict[str, dict[str, Any]] = {}
    refuses = False

    def answer(received: Received) -> Reply | None:
        if refuses and any(record["id"] not in known for record in received.records):
            return Reply(status, {}, b"")
        known.update((record["id"], record) for record in received.records if record["id"] not in known)
        return Reply(204, {}, b"")

    @asynccontextmanager
    async def refusing() -> AsyncIterator[None]:
        nonlocal refuses
        refuses = True
        yield
        refuses = False

    webhook.answer = answer
    sink = WebhookSink("crm", WebhookSink.Options(url=Url(webhook.url)))
    await assert_survives(sink, refusing, lambda: [*known.values()])


# Files


async def test_jsonl_on_a_full_disk_loses_no_record(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=1):
        ballast, path = tmp_path / "ballast", tmp_path / "events.jsonl"

        @asynccontextmanager
        async def full() -> AsyncIterator[None]:
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            yield
            ballast.unlink()

        await assert_survives(
            JsonlSink("archive", JsonlSink.Options(path=path)), full, lambda: _lines(path.read_bytes()), size=5000
        )


async def test_jsonl_with_an_unwritable_path_loses_no_record(tmp_path: Path) -> None:
    folder, file, link = tmp_path / "folder", tmp_path / "file", tmp_path / "link"
    folder.mkdir()
    file.touch()
    link.symlink_to(folder)
    path = link / "events.jsonl"

    def point_to(target: Path) -> None:
        """Replace the link at once, so that the sink never misses it and makes a new file."""
        (tmp_path / "new").symlink_to(target)
        (tmp_path / "new").replace(link)

    @asynccontextmanager
    async def in_the_way() -> AsyncIterator[None]:
        point_to(file)
        yield
        point_to(folder)

    sink = JsonlSink("archive", JsonlSink.Options(path=path))
    await assert_survives(sink, in_the_way, lambda: _lines(path.read_bytes()))


async def test_stdout_on_a_full_disk_loses_no_record(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @asynccontextmanager
    async def full() -> AsyncIterator[None]:
        kept, no_room = os.dup(descriptor), os.open("/dev/full", os.O_WRONLY)
        os.dup2(no_room, descriptor)
        yield
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(no_room)

    try:
        sink = StdoutSink("out", StdoutSink.Options(), descriptor=descriptor)
        await assert_survives(sink, full, lambda: _lines(path.read_bytes()))
    finally:
        os.close(descriptor)


def _lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]
