"""The redis_stream sink: complete batches in order, almost never twice, despite failures of Redis or its connection."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Url
from ingestd.plugins.sinks.redis_stream import RedisStreamSink
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.daemon import Shop
from tests.support.ports import free_port
from tests.support.redis_proxy import redis_proxy
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sinks import configured, ids_of, lines_to_read, options_shown, send_through_an_outage
from tests.support.webhook_server import make_certificate

DOCS = (Path(__file__).parents[3] / "docs" / "sinks" / "redis_stream.md").read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


def make(url: str, *, stream: str = "events", max_length: int | None = None) -> RedisStreamSink:
    return RedisStreamSink("feed", RedisStreamSink.Options(url=Url(url), stream=stream, max_length=max_length))


@asynccontextmanager
async def opened(url: str, *, stream: str = "events", max_length: int | None = None) -> AsyncIterator[RedisStreamSink]:
    sink = make(url, stream=stream, max_length=max_length)
    try:
        await sink.open()
        yield sink
    finally:
        await sink.close()


def entries(server: RedisServer) -> list[dict[bytes, bytes]]:
    found: Any = server.client().xrange("events")
    return [fields for _, fields in found]


def ids(server: RedisServer) -> list[str]:
    return [entry[b"id"].decode() for entry in entries(server)]


async def refused(sink: RedisStreamSink, reason: str) -> None:
    """A write and a check fail with this reason."""
    with pytest.raises(SinkRetry, match=reason):
        await sink.write(make_records(2))
    with pytest.raises(SinkRetry, match=reason):
        await sink.check()


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def with_server(self, tmp_path: Path) -> Iterator[None]:
        with redis_server(tmp_path / "redis", {"proto-max-bulk-len": "8mb"}) as self.server:
            yield

    def make_sink(self, folder: Path) -> RedisStreamSink:
        return make(self.server.url)

    async def read_back(self, folder: Path) -> list[Any]:
        return [json.loads(entry[b"record"]) for entry in entries(self.server)]

    @asynccontextmanager
    async def refuse_new(self, folder: Path) -> AsyncIterator[None]:
        """Redis has no memory left."""
        client = self.server.client()
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)

    async def interrupt(self, folder: Path) -> None:
        self.server.kill()
        self.server.start()

    def make_rejected(self) -> Record:
        return make_records(1, data={"long": "x" * (8 << 20)})[0]


# Entries


async def test_an_entry_has_the_id_the_type_and_the_record_byte_for_byte(server: RedisServer) -> None:
    batch = [*make_records(2, data={"name": "Łódź \x00"}), Record("order_total", 0, b'{ "id": "x" }')]
    async with opened(server.url) as sink:
        await sink.write(batch)
    assert entries(server) == [
        {b"id": record.decode()["id"].encode(), b"type": record.type.encode(), b"record": record.body}
        for record in batch
    ]


async def test_the_stream_keeps_about_max_length_entries(server: RedisServer) -> None:
    batches = [make_records(100) for _ in range(10)]
    async with opened(server.url, max_length=250) as sink:
        for batch in batches:
            await sink.write(batch)
    stayed = ids(server)
    assert 250 <= len(stayed) < 450
    assert ids_of([record for batch in batches for record in batch])[-len(stayed) :] == stayed


async def test_a_batch_is_added_as_a_whole_or_not_at_all(server: RedisServer) -> None:
    async with opened(server.url) as sink, opened(server.url) as other:
        one, another = make_records(500), make_records(500)
        await asyncio.gather(sink.write(one), other.write(another))
        assert ids(server) in (ids_of([*one, *another]), ids_of([*another, *one]))
        server.client().config_set("maxmemory", server.client().info("memory")["used_memory"] + 20_000)
        with pytest.raises(SinkRetry, match="no memory"):
            await sink.write(make_records(500))
    assert len(ids(server)) == 1000


async def test_a_batch_too_large_for_one_transaction_comes_in_several(tmp_path: Path) -> None:
    # Redis disconnects a client whose transaction is larger.
    with redis_server(tmp_path / "redis", {"client-query-buffer-limit": "24mb"}) as server:
        batch = make_records(40, data={"long": "x" * (1 << 20)})
        async with opened(server.url) as sink:
            await sink.write(batch)
            await sink.check()
        assert ids(server) == ids_of(batch)


# Duplicates


async def test_a_batch_whose_answer_was_lost_is_not_added_again(server: RedisServer) -> None:
    async with redis_proxy(server.port) as proxy, opened(proxy.url) as sink:
        before, batch, after = make_records(3), make_records(50), make_records(3)  # sent in one transaction
        await sink.write(before)
        proxy.loses_reply = lambda sent: b"EXEC" in sent
        with pytest.raises(SinkFailure, match="closed"):
            await sink.write(batch)
        proxy.loses_reply = lambda _: False
        assert ids(server) == ids_of([*before, *batch])
        await sink.write(batch)
        await sink.write(after)
    assert proxy.lost == 1
    assert ids(server) == ids_of([*before, *batch, *after])


async def test_a_batch_that_did_not_arrive_is_added(server: RedisServer) -> None:
    async with redis_proxy(server.port) as proxy, opened(proxy.url) as sink:
        before, batch = make_records(3), make_records(3)
        await sink.write(before)
        proxy.loses_request = lambda sent: b"EXEC" in sent
        with pytest.raises(SinkFailure, match="closed"):
            await sink.write(batch)
        proxy.loses_request = lambda _: False
        await sink.write(batch)
    assert ids(server) == ids_of([*before, *batch])


async def test_after_a_crash_only_missing_records_are_added(server: RedisServer) -> None:
    batch = make_records(500)
    async with opened(server.url) as sink:
        await sink.write(batch[:300])
    async with opened(server.url) as other:
        others = make_records(200)
        await other.write(others)
    async with opened(server.url) as sink:  # with other limits of batches
        await sink.write(batch[:100])
    async with opened(server.url) as sink:
        await sink.write(batch[100:])
    assert ids(server) == ids_of([*batch[:300], *others, *batch[300:]])


async def test_records_whose_entries_are_gone_are_added_again(server: RedisServer) -> None:
    batch = make_records(5)
    client = server.client()
    for removal in (["DEL", "events"], ["XTRIM", "events", "MAXLEN", "0"]):
        async with opened(server.url) as sink:
            await sink.write(batch)
        client.execute_command(*removal)
    async with opened(server.url) as sink:
        await sink.write(batch)
    assert ids(server) == ids_of(batch)


async def test_entries_of_others_do_no_harm(server: RedisServer) -> None:
    client = server.client()
    client.xadd("events", {"id": "1", "type": "x"})
    client.xadd("events", {"unrelated": b"\xff\x00"}, id="9999999999999-5")
    batch = make_records(3)
    async with opened(server.url) as sink:
        await sink.write(batch)
        await sink.write(batch)
    assert ids_of(batch) == [entry[b"id"].decode() for entry in entries(server)[2:5]]


# Failures


async def test_a_server_killed_during_writes_has_all_records_once_and_in_order(server: RedisServer) -> None:
    batches = [make_records(50) for _ in range(60)]
    killed = 0
    async with opened(server.url) as sink:
        for number, batch in enumerate(batches):
            if number % 20 == 10:
                writing = asyncio.create_task(sink.write(batch))
                await asyncio.sleep(0)  # the batch is sent, partly sent, or not sent
                server.kill()
                killed += 1
                await asyncio.gather(writing, return_exceptions=True)
                with pytest.raises(SinkRetry, match=r"Connect call failed|closed|reset"):
                    await sink.write(batch)
                server.start()
            await sink.write(batch)
    assert killed == 3
    assert ids(server) == ids_of([record for batch in batches for record in batch])


async def test_a_cancelled_write_leaves_no_duplicates(server: RedisServer) -> None:
    async with opened(server.url) as sink:
        written: list[Record] = []
        for size in (10, 1000, 20_000):
            batch = make_records(100, data={"text": "x" * size})
            server.signal(signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await sink.write(batch)
            server.signal(signal.SIGCONT)
            await sink.write(batch)
            written += batch
    assert ids(server) == ids_of(written)


async def test_a_full_memory_is_reported_and_temporary(server: RedisServer) -> None:
    async with opened(server.url) as sink:
        client = server.client()
        client.config_set("maxmemory", 1)
        await refused(sink, "^Redis has no memory left")
        client.config_set("maxmemory", 0)
        await sink.write(make_records(1))


async def test_a_replica_is_reported(server: RedisServer) -> None:
    async with opened(server.url) as sink:
        client = server.client()
        client.replicaof("127.0.0.1", "1")
        await refused(sink, "^this Redis is a replica")
        client.replicaof("NO", "ONE")
        await sink.write(make_records(1))


async def test_missing_replicas_are_reported(server: RedisServer) -> None:
    async with opened(server.url) as sink:
        client = server.client()
        client.config_set("min-replicas-to-write", 1)
        await refused(sink, "^Redis: NOREPLICAS Not enough good replicas")
        client.config_set("min-replicas-to-write", 0)
        await sink.write(make_records(1))


async def test_a_server_that_still_loads_is_reported(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", {"appendonly": "no", "loading-process-events-interval-bytes": "1024"})
    try:
        server.start()
        async with opened(server.url) as sink:
            client = server.client()
            client.mset({f"key-{number}": "x" * 1000 for number in range(200)})
            client.save()
            server.kill()
            server.options["key-load-delay"] = "5000"  # microseconds
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            reasons = set()
            while not starting.done():
                try:
                    await sink.check()
                except SinkRetry as error:
                    reasons.add(str(error))
                await asyncio.sleep(0.001)
            await starting
            assert "Redis is still loading its data" in reasons
            await sink.write(make_records(1))
    finally:
        server.kill()


async def test_a_key_of_another_type_is_reported_and_left_alone(server: RedisServer) -> None:
    client = server.client()
    async with opened(server.url) as sink:
        await sink.write(make_records(1))
        client.delete("events")
        client.set("events", "a text")
        await refused(sink, "^the key events does not hold a stream$")
    with pytest.raises(SinkRetry, match="does not hold a stream"):
        async with opened(server.url):
            pass
    assert client.get("events") == b"a text"


@pytest.mark.parametrize("login", ["", ":hunter2@", "somebody:hunter2@"])
async def test_a_wrong_login_is_reported_without_the_password(tmp_path: Path, login: str) -> None:
    with redis_server(tmp_path / "redis") as server:
        client = server.client()
        client.config_set("requirepass", "correct")
        sink = make(server.url.replace("://", f"://{login}"))
        for attempt in (sink.check, sink.open):
            with pytest.raises(SinkRetry, match=r"^Redis does not accept the user or password$"):
                await attempt()
        await sink.close()
        async with opened(server.url.replace("://", "://:correct@")) as right:
            await right.write(make_records(1))


@pytest.mark.parametrize(
    "fault",
    [
        ["ACL", "SETUSER", "default", "-xadd"],
        ["CONFIG", "SET", "maxmemory", "1"],
        ["SET", "events", "a text"],
    ],
    ids=" ".join,
)
async def test_errors_contain_no_part_of_a_record(server: RedisServer, fault: list[str]) -> None:
    async with opened(server.url) as sink:
        await sink.write(make_records(1))
        server.client().execute_command(*fault)
        for _ in range(2):  # the second write first looks for existing entries
            with pytest.raises(SinkRetry) as raised:
                await sink.write([Record("event", 0, b'{"id": "x of pipeline caused error: private"}')])
            assert not re.search(r"private|pipeline|x of", str(raised.value))


async def test_a_user_needs_only_the_documented_rights(server: RedisServer) -> None:
    (line,) = re.findall(r"^ACL SETUSER .*", DOCS, re.MULTILINE)
    client = server.client()
    client.execute_command(*line.split())
    url = server.url.replace("://", "://ingestd:password@")
    async with opened(url) as sink:
        await sink.check()
        await sink.write(make_records(2))
    denied = client.acl_log()
    assert denied == []
    client.execute_command("ACL", "SETUSER", "ingestd", "-config|get")  # the sink works without this right
    async with opened(url) as sink:
        await sink.write(make_records(2))
        client.execute_command("ACL", "SETUSER", "ingestd", "-xadd")
        await refused(sink, "^Redis: .*no permissions to run the 'xadd' command")
    assert client.xlen("events") == 4


async def test_only_a_record_too_large_for_redis_is_rejected(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", {"proto-max-bulk-len": "1mb"}) as server:
        small, large = make_records(3), make_records(2, data={"long": "x" * (1 << 20)})
        async with opened(server.url) as sink:
            with pytest.raises(SinkReject) as raised:
                await sink.write([small[0], large[0], small[1], large[1], small[2]])
            assert raised.value.reasons == {
                index: f"it has {len(large[0].body)} bytes, and this Redis takes 1048576 (proto-max-bulk-len)"
                for index in (1, 3)
            }
            await sink.write(small)
            most = Record("event", 0, json.dumps({"id": "most", "x": "x" * 1_048_553}).encode())
            assert len(most.body) == 1 << 20
            await sink.write([most])
        assert ids(server) == [*ids_of(small), "most"]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\r\n", b"*1\r\n", b"+\r\n", b""])
async def test_a_server_that_is_not_redis_is_reported(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        sink = make(f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0")
        for attempt in (sink.open(), sink.check(), sink.write(make_records(1))):
            with pytest.raises(SinkRetry):
                await attempt
        await sink.close()


async def test_an_unreachable_server_is_reported_with_its_address(tmp_path: Path) -> None:
    for url, address in [
        (f"redis://somebody:hunter2@127.0.0.1:{free_port()}/0", r"127\.0\.0\.1"),
        (f"unix://{tmp_path}/none.sock", "none.sock"),
    ]:
        sink = make(url)
        for attempt in (sink.open, sink.check):
            with pytest.raises(SinkRetry, match=address) as raised:
                await attempt()
            assert "hunter2" not in str(raised.value)
        await sink.close()


async def test_check_leaves_nothing_behind(server: RedisServer) -> None:
    sink = make(server.url)
    await sink.check()
    await sink.close()
    assert server.client().keys() == []


# Connections


async def test_a_unix_socket_and_a_database_number_work(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", {"unixsocket": "redis.sock"}) as server:
        async with opened(f"unix://{tmp_path}/redis/redis.sock?db=3") as sink:
            await sink.write(make_records(2))
        assert redis.Redis(port=server.port, db=3).xlen("events") == 2


async def test_tls_is_used_and_certificates_are_verified(tmp_path: Path) -> None:
    port = free_port()
    _, certificate = make_certificate(tmp_path)
    options = {
        "tls-port": str(port), "tls-cert-file": str(certificate), "tls-ca-cert-file": str(certificate),
        "tls-key-file": str(certificate.with_name("localhost-key.pem")), "tls-auth-clients": "no",
    }  # fmt: skip
    with redis_server(tmp_path / "redis", options):
        async with opened(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}") as sink:
            await sink.write(make_records(2))
        stranger = make(f"rediss://localhost:{port}/0")
        with pytest.raises(SinkRetry, match="certificate"):
            await stranger.open()
        await stranger.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://host"}, "url: .*redis://"),
        ({"url": "redis:events"}, "url: expected redis://host:port/db"),
        ({"url": "redis://host:hunter2@x/0"}, None),
        ({"url": "redis://:hunter2/@host:1/0"}, "url: expected redis://host:port/db with a number as the port"),
        ({"url": "redis://host/events"}, "url: expected the number of a database"),
        ({"url": "unix://?db=1"}, "url: expected redis://"),
        ({"url": "redis://host?hunter=2"}, "url: redis-py does not know its option hunter"),
        ({"url": "redis://host?socket_timeout=x"}, "url: .*socket_timeout"),
        ({"stream": ""}, "stream: expected text of length >= 1"),
        ({"max_length": 0}, "max_length: expected a whole number >= 1"),
        ({"max_len": 1}, "max_len: unknown option; did you mean sinks.feed.max_length"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str | None) -> None:
    table = {"url": "redis://host/0", "stream": "events", **options}
    if message is None:
        configured(RedisStreamSink, "feed", table, tmp_path)
    else:
        with pytest.raises(ConfigError, match=rf"sinks\.feed\.{message}") as raised:
            configured(RedisStreamSink, "feed", table, tmp_path)
        assert "hunter2" not in str(raised.value)


# The daemon and the documentation


def test_the_daemon_delivers_each_record_once_despite_an_outage(tmp_path: Path, server: RedisServer) -> None:
    shop = Shop(tmp_path, {"sinks.feed": f'type = "redis_stream"\nurl = "{server.url}"\nstream = "events"'})
    log = send_through_an_outage(shop, "feed", server)
    assert [json.loads(entry[b"record"]) for entry in entries(server)] == shop.exported()
    assert not any("Traceback" in line or "ERROR" in line for line in log)


def test_the_documented_options_and_the_documented_reader_work(
    tmp_path: Path, server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_shown(DOCS, "redis_stream", RedisStreamSink, tmp_path)
    batch = make_records(3)

    async def write() -> None:
        async with opened(server.url, stream=options.stream, max_length=options.max_length) as sink:
            await sink.write(batch)

    asyncio.run(write())
    (reader,) = lines_to_read("Read a Redis stream")
    exec(reader.replace("redis://redis.example:6379/0", server.url), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ids_of(batch)
    assert server.client().xpending("events", "warehouse")["pending"] == 0
