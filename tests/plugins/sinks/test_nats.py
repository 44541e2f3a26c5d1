"""The nats sink: each record once in the stream, in order, despite failures of the server and the connection."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # nkeys has no types
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from ingestd.api.errors import ConfigError, SinkFailure, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Url
from ingestd.plugins.sinks.nats import NatsSink
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.daemon import Shop
from tests.support.journals import until
from tests.support.nats_server import NatsServer, nats_server
from tests.support.ports import free_port
from tests.support.sinks import configured, lines_to_read, options_shown, send_through_an_outage, values
from tests.support.webhook_server import make_certificate

DOCS = (Path(__file__).parents[3] / "docs" / "sinks" / "nats.md").read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path / "nats", "max_payload: 8MB") as server:
        yield server


def make(server: NatsServer | str, **options: Any) -> NatsSink:
    url = server if isinstance(server, str) else server.url
    return NatsSink("bus", NatsSink.Options(**{"stream": "EVENTS", "url": Url(url), **options}))


@asynccontextmanager
async def opened(server: NatsServer | str, **options: Any) -> AsyncIterator[NatsSink]:
    before = asyncio.all_tasks()
    sink = make(server, **options)
    try:
        await sink.open()
        yield sink
    finally:
        await sink.close()
        assert asyncio.all_tasks() <= before, "a task is left after the end of the sink"


async def add_stream(server: NatsServer, **config: Any) -> None:
    await server.do(lambda jetstream: jetstream.add_stream(StreamConfig(**{"name": "EVENTS", **config})))


async def state_of(server: NatsServer) -> dict[str, Any]:
    info = await server.do(lambda jetstream: jetstream.stream_info("EVENTS"))
    return {**info.config.as_dict(), "messages": info.state.messages}


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def with_server(self, server: NatsServer) -> None:
        self.server = server

    def make_sink(self, folder: Path) -> NatsSink:
        return make(self.server)

    async def read_back(self, folder: Path) -> list[Any]:
        return await self.server.records("EVENTS")

    async def interrupt(self, folder: Path) -> None:
        self.server.kill()
        self.server.start()

    @asynccontextmanager
    async def refuse_new(self, folder: Path) -> AsyncIterator[None]:
        """The stream is full. It still acknowledges messages whose ids it knows."""

        async def fill(jetstream: JetStreamContext) -> None:
            info = await jetstream.stream_info("EVENTS")
            config = info.config.evolve(discard=DiscardPolicy.NEW, max_msgs=info.state.messages)
            await jetstream.update_stream(config)

        async def enlarge(jetstream: JetStreamContext) -> None:
            info = await jetstream.stream_info("EVENTS")
            await jetstream.update_stream(info.config.evolve(max_msgs=-1))

        await self.server.do(fill)
        yield
        await self.server.do(enlarge)

    def make_rejected(self) -> Record:
        return make_records(1, data={"long": "x" * (8 << 20)})[0]


# Messages


async def test_a_message_is_the_record_byte_for_byte_and_has_its_id(server: NatsServer) -> None:
    batch = [*make_records(2, data={"name": "Łódź \x00"}), Record("order_total", 0, b'{ "id": "x", "type": "order" }')]
    async with opened(server) as sink:
        await sink.write(batch)
    assert await server.messages("EVENTS") == [
        (
            f"ingestd.{value['type']}",
            {"Nats-Msg-Id": value["id"], "Nats-Expected-Stream": "EVENTS"},
            record.body,
        )
        for record, value in zip(batch, values(batch), strict=True)
    ]


@pytest.mark.parametrize(
    ("template", "members", "subject"),
    [
        ("events", {}, "events"),
        ("a.{type}.{tenant}.{key}", {}, "a.event.shop.Page_View"),
        ("a.{key}", {"key": None}, "a._"),
        ("a.{key}", {"key": ""}, "a._"),
        ("a.{key}.b", {"key": "*.>$JS\r\nPUB x\t\x00\x7f\u2028\u00a0"}, "a.____JS__PUB_x_____.b"),
        ("a.{key}", {"key": "Zażółć 🛒"}, "a.Zażółć_🛒"),
        ("a.{key}", {"key": "ż" * 300}, "a." + "ż" * 100),
        ("{tenant}-{type}.{tenant}", {"tenant": "$SYS"}, "_SYS-event._SYS"),
    ],
)
async def test_placeholders_are_filled_with_valid_tokens(
    server: NatsServer, template: str, members: dict[str, Any], subject: str
) -> None:
    async with opened(server, subject=template) as sink:
        await sink.write(make_records(1, **members))
        await sink.check()
    assert [each for each, _, _ in await server.messages("EVENTS")] == [subject]


async def test_a_batch_beyond_the_limit_in_flight_arrives_in_order(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.nats._IN_FLIGHT", 5000)
    batch = [*make_records(10), *make_records(2, data={"long": "x" * 6000}), *make_records(50)]
    async with opened(server) as sink:
        await sink.write(batch)
    assert await server.records("EVENTS") == values(batch)


# Duplicates


async def test_a_message_repeated_within_the_window_is_stored_once(server: NatsServer) -> None:
    batch, more = make_records(100), make_records(10)
    async with opened(server) as sink:
        await sink.write(batch)
        await sink.write(batch)
    async with opened(server) as sink:
        await sink.write([*batch[50:], *more])
    assert await server.records("EVENTS") == values([*batch, *more])


# The stream


async def test_the_stream_is_created_as_documented(server: NatsServer) -> None:
    async with opened(server, subject="a.{tenant}-x.b.{type}"):
        pass
    state = await state_of(server)
    assert state["subjects"] == ["a.*.b.*"]
    assert (state["storage"], state["num_replicas"], state["retention"]) == ("file", 1, "limits")
    assert (state["max_msgs"], state["max_bytes"], state["max_age"]) == (-1, -1, 0)
    assert state["duplicate_window"] == 120_000_000_000


async def test_an_existing_stream_is_not_changed(server: NatsServer) -> None:
    await add_stream(server, subjects=["ingestd.>", "other"], max_msgs=1000, duplicate_window=7.0)
    before = await state_of(server)
    async with opened(server) as sink:
        await sink.check()
        await sink.write(make_records(1))
    assert await state_of(server) == {**before, "messages": 1}


async def test_without_create_a_missing_stream_is_reported(server: NatsServer) -> None:
    sink = make(server, create=False)
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match=r"^there is no stream EVENTS, and create is false$"):
            await attempt()
    await add_stream(server, subjects=["ingestd.*"])
    await sink.open()
    await sink.check()
    await sink.write(make_records(1))
    await sink.close()


async def test_check_creates_nothing(server: NatsServer) -> None:
    sink = make(server)
    await sink.check()
    await sink.close()
    assert await server.do(lambda jetstream: jetstream.streams_info()) == []


async def test_several_sinks_may_create_the_stream_at_once(server: NatsServer) -> None:
    async with asyncio.TaskGroup() as group:
        sinks = [make(server) for _ in range(5)]
        for number, sink in enumerate(sinks):
            sink._stream._duplicate_window += number * 1_000_000_000  # else the server takes them for one request
            group.create_task(sink.open())
    for sink in sinks:
        await sink.write(make_records(1))
        await sink.close()
    assert (await state_of(server))["messages"] == 5


async def test_a_deleted_stream_is_created_again(server: NatsServer) -> None:
    async with opened(server) as sink:
        await sink.write(make_records(2))
        await server.do(lambda jetstream: jetstream.delete_stream("EVENTS"))
        batch = make_records(2)
        with pytest.raises(SinkRetry, match=r"^no stream takes the subject ingestd\.event$"):
            await sink.write(batch)
        await sink.write(batch)
    assert await server.records("EVENTS") == values(batch)


async def test_a_stream_with_other_subjects_is_reported(server: NatsServer) -> None:
    await add_stream(server, subjects=["ingestd.event.*", "other.>", "ingestd"])
    async with opened(server) as sink:
        with pytest.raises(SinkRetry, match=r"no stream takes the subject ingestd\.event"):
            await sink.write(make_records(1))
        with pytest.raises(SinkRetry, match=r"EVENTS takes ingestd\.event\.\*, other\.>, ingestd, and not ingestd\.\*"):
            await sink.check()


async def test_a_stream_that_acknowledges_nothing_is_reported(server: NatsServer) -> None:
    await add_stream(server, subjects=["ingestd.*"], no_ack=True)
    sink = make(server)
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match=r"^the stream EVENTS acknowledges nothing \(no_ack\)$"):
            await attempt()


async def test_a_subject_of_another_stream_is_reported(server: NatsServer) -> None:
    await add_stream(server, name="OTHER", subjects=["ingestd.event"])
    sink = make(server)
    with pytest.raises(SinkRetry, match="EVENTS cannot be created: subjects overlap with an existing stream"):
        await sink.open()
    await add_stream(server, subjects=["something.else"])
    with pytest.raises(SinkFailure, match="EVENTS refuses it: expected stream does not match"):
        await sink.write(make_records(1))
    await sink.close()
    assert await server.records("OTHER") == []


async def test_the_answer_of_another_client_is_no_acknowledgement(server: NatsServer) -> None:
    await add_stream(server, subjects=["something.else"])
    client = Client()
    await client.connect(server.url)

    async def answer(message: Any) -> None:
        await message.respond(b'{"ok": true}')

    await client.subscribe("ingestd.*", cb=answer)
    await client.flush()
    async with opened(server) as sink:
        with pytest.raises(
            SinkRetry, match=r"something other than the stream EVENTS answers the subject ingestd\.event"
        ):
            await sink.write(make_records(3))
    await client.close()


async def test_a_full_stream_is_reported_and_takes_the_rest_later(server: NatsServer) -> None:
    await add_stream(server, subjects=["ingestd.*"], max_msgs=5, discard=DiscardPolicy.NEW)
    batch = make_records(8)
    async with opened(server) as sink:
        await sink.check()
        with pytest.raises(SinkRetry, match=r"^the stream EVENTS refuses it: maximum messages exceeded$"):
            await sink.write(batch)
        with pytest.raises(SinkRetry, match=r"^the stream EVENTS is full"):
            await sink.check()
        assert await server.records("EVENTS") == values(batch[:5])
        await server.do(
            lambda jetstream: jetstream.update_stream(
                StreamConfig(name="EVENTS", subjects=["ingestd.*"], max_msgs=50, discard=DiscardPolicy.NEW)
            )
        )
        await sink.write(batch)
    assert await server.records("EVENTS") == values(batch)


# Rejected records


async def test_only_a_record_beyond_max_payload_is_rejected(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats", "max_payload: 10000") as server:
        small, (large,) = make_records(3), make_records(1, data={"long": "x" * 10_000})
        async with opened(server) as sink:
            with pytest.raises(SinkReject) as raised:
                await sink.write([small[0], large, *small[1:]])
            (reason,) = raised.value.reasons.items()
            assert reason[0] == 1
            assert re.fullmatch(r"it has \d+ bytes with its headers, and the server takes 10000 .*", reason[1])
            # The largest possible message. With one more byte the server would close the connection.
            headers = len("NATS/1.0\r\nNats-Msg-Id: a\r\nNats-Expected-Stream: EVENTS\r\n\r\n")
            body = json.dumps({"id": "a", "type": "event", "x": ""}).encode()
            most = Record("event", 0, body.replace(b'""', b'"' + b"x" * (10_000 - headers - len(body)) + b'"'))
            await sink.write([*small, most])
            with pytest.raises(SinkReject, match="1 records"):
                await sink.write([Record("event", 0, most.body + b" ")])
        assert await server.records("EVENTS") == values([*small, most])


async def test_only_a_record_beyond_max_msg_size_is_rejected(server: NatsServer) -> None:
    await add_stream(server, subjects=["ingestd.*"], max_msg_size=5000)
    small, (large,) = make_records(3), make_records(1, data={"long": "x" * 5000})
    async with opened(server) as sink:
        with pytest.raises(SinkReject) as raised:
            await sink.write([small[0], large, *small[1:]])
        assert raised.value.reasons == {1: "the stream EVENTS refuses it: message size exceeds maximum allowed"}
        await sink.write(small)
    assert await server.records("EVENTS") == values(small)


# Failures


async def test_a_server_killed_during_writes_has_all_records_once_and_in_order(server: NatsServer) -> None:
    batches = [make_records(50, data={"text": "x" * 2000}) for _ in range(60)]
    async with opened(server) as sink:
        for number, batch in enumerate(batches):
            if number % 10 == 5:
                writing = asyncio.create_task(sink.write(batch))
                for _ in range(number):  # the batch is sent, partly sent, or not sent
                    await asyncio.sleep(0)
                server.kill()
                await asyncio.gather(writing, return_exceptions=True)
                await until(lambda: sink._connection is None or sink._connection.is_lost)
                with pytest.raises(SinkRetry, match=r"Connect call failed|EOF|reset"):
                    await sink.write(batch)
                server.start()
            await _until_written(sink, batch)
    assert await server.records("EVENTS") == values([record for batch in batches for record in batch])


async def _until_written(sink: NatsSink, batch: Sequence[Record]) -> None:
    """Write the batch. The first attempt may fail because the sink notices the lost connection only then."""
    try:
        await sink.write(batch)
    except SinkRetry:
        await sink.write(batch)


async def test_the_end_of_the_server_ends_a_write_at_once(server: NatsServer) -> None:
    async with opened(server) as sink:
        server.signal(signal.SIGSTOP)
        writing = asyncio.create_task(sink.write(make_records(500, data={"long": "x" * 10_000})))
        await asyncio.sleep(0.1)
        server.kill()
        async with asyncio.timeout(2):
            with pytest.raises(SinkFailure, match=r"EOF|reset"):
                await writing


async def test_a_cancelled_write_leaves_no_task_and_no_duplicates(server: NatsServer) -> None:
    before = asyncio.all_tasks()
    async with opened(server) as sink:
        written: list[Record] = []
        for size in (10, 1000, 50_000):
            batch = make_records(100, data={"text": "x" * size})
            server.signal(signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await sink.write(batch)
            assert asyncio.all_tasks() <= before
            server.signal(signal.SIGCONT)
            await sink.write(batch)
            written += batch
    assert await server.records("EVENTS") == values(written)


async def test_a_silent_server_is_reported(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.nats.client._CONNECT_TIMEOUT", 0.2)
    before = asyncio.all_tasks()
    sink = make(server)
    server.signal(signal.SIGSTOP)
    with pytest.raises(SinkRetry, match=r"127\.0\.0\.1:\d+: no answer within 0\.2 s"):
        await sink.open()
    task = asyncio.create_task(sink.open())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert asyncio.all_tasks() <= before
    server.signal(signal.SIGCONT)
    await sink.open()
    await sink.close()


async def test_a_connection_lost_between_two_writes_is_made_again(server: NatsServer) -> None:
    async with opened(server) as sink:
        await sink.write(make_records(1))
        server.stop()
        server.start()
        await until(lambda: len(asyncio.all_tasks()) == 1)  # nats-py has noticed the end
        await sink.write(make_records(1))
    assert len(await server.records("EVENTS")) == 2


async def test_the_first_reachable_server_is_used(server: NatsServer) -> None:
    urls = (Url(f"nats://127.0.0.1:{free_port()}"), Url(server.url), Url(f"nats://127.0.0.1:{free_port()}"))
    async with opened(server, url=None, servers=urls) as sink:
        for _ in range(3):
            await sink.write(make_records(1))
            server.kill()
            server.start()
            with pytest.raises(SinkFailure):
                await sink.write(make_records(1))
        server.kill()
        with pytest.raises(SinkRetry, match=r"(127\.0\.0\.1:\d+: .*){3}"):
            await sink.open()


async def test_a_silent_jetstream_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.nats.client._ANSWER_TIMEOUT", 0.2)
    with nats_server(tmp_path / "nats", jetstream=False) as server:
        silent = Client()
        await silent.connect(server.url)
        await silent.subscribe("$JS.API.>")
        await silent.flush()
        sink = make(server)
        for attempt in (sink.open, sink.check):
            with pytest.raises(
                SinkRetry, match=rf"^127\.0\.0\.1:{server.port}: JetStream does not answer within 0\.2 s$"
            ):
                await attempt()
        await silent.close()


async def test_a_server_without_jetstream_is_reported(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats", jetstream=False) as server:
        sink = make(server)
        for attempt in (sink.open, sink.check):
            with pytest.raises(SinkRetry, match="JetStream is not enabled"):
                await attempt()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
        b"\xff\xfe\r\n",
        b"INFO {\r\n",
        b"INFO []\r\n",
        b'INFO {"max_payload": 1000}\r\n+OK\r\n',
        b"INFO {\"max_payload\": 1000}\r\n-ERR 'no'\r\n",
        b'INFO {"max_payload": 1000}\r\nPONG\r\nMSG x\r\n\r\n',
        b"INFO {\"max_payload\": 1000}\r\nPONG\r\n-ERR 'Stale Connection'\r\n",
        b"INFO {\"max_payload\": 1000}\r\nPONG\r\n-ERR 'User Authentication Expired'\r\n",
        b'INFO {"max_payload": 1000}\r\nPONG\r\nINFO {\r\n',
    ],
)
async def test_a_server_that_is_not_nats_is_reported_in_time(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.nats.client._CONNECT_TIMEOUT", 0.3)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with suppress(OSError):
            while await reader.read(100):
                pass
        writer.transport.abort()

    before = asyncio.all_tasks()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        sink = make(f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        for attempt in (sink.open, sink.check, lambda: sink.write(make_records(1))):
            with pytest.raises((SinkRetry, TimeoutError)):
                async with asyncio.timeout(1):
                    await attempt()
        await sink.close()
        await _until_only(before)


async def _until_only(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait until the tasks of the listener have ended."""
    await until(lambda: asyncio.all_tasks() <= tasks)


# Logins, rights and TLS


@pytest.mark.parametrize(
    ("settings", "right", "wrong"),
    [
        ("authorization { user: shop, password: correct }", "shop:correct@", "shop:hunter2@"),
        ('authorization { user: "a b", password: "p@ss/w%rd" }', "a%20b:p%40ss%2Fw%25rd@", "a%20b:hunter2@"),
        ("authorization { token: correct-token }", ":correct-token@", ":hunter2@"),
        ("authorization { token: correct-token }", ":correct-token@", ""),
    ],
)
async def test_a_login_in_the_url_is_used(tmp_path: Path, settings: str, right: str, wrong: str) -> None:
    with nats_server(tmp_path / "nats", settings) as server:
        address = server.url.removeprefix("nats://")
        async with opened(f"nats://{right}{address}") as sink:
            await sink.write(make_records(1))
        sink = make(f"nats://{wrong}{address}")
        for attempt in (sink.open, sink.check):
            with pytest.raises(SinkRetry, match="Authorization Violation") as raised:
                await attempt()
            assert "hunter2" not in str(raised.value)


async def test_a_user_needs_the_documented_rights_and_missing_rights_are_reported(tmp_path: Path) -> None:
    permissions = re.search(r"A user must be able to (.*?)\n\n", DOCS, re.DOTALL)
    assert permissions is not None
    info, create, inbox = "$JS.API.STREAM.INFO.EVENTS", "$JS.API.STREAM.CREATE.EVENTS", "_INBOX.>"
    assert all(each in permissions[1] for each in (info, create, inbox))

    def user(name: str, *publish: str) -> str:
        allowed = ", ".join(f'"{each}"' for each in publish)
        return (
            f'{{ user: {name}, password: x, permissions: {{ publish: [{allowed}], subscribe: ["{inbox}"] }} }}'
        )  # fmt: skip

    users = [
        user("all", "ingestd.*", info, create),
        user("writer", "ingestd.*", info),
        user("reader", info),
        user("nobody", "nothing"),
    ]
    with nats_server(tmp_path / "nats", f"authorization {{ users: [{', '.join(users)}] }}") as server:

        def url(name: str) -> str:
            return server.url.replace("://", f"://{name}:x@")

        async with asyncio.timeout(10):
            with pytest.raises(SinkRetry, match=r"ermissions violation for publish to .\$js.api.stream.create.events"):
                await make(url("writer")).open()
            for name in ("all", "writer"):
                async with opened(url(name)) as sink:
                    await sink.write(make_records(1))
            async with opened(url("reader")) as sink:
                with pytest.raises(SinkFailure, match=r"ermissions violation for publish to .ingestd\.event"):
                    await sink.write(make_records(1))
            with pytest.raises(SinkRetry, match=r"ermissions violation for publish to .\$js.api.stream.info.events"):
                await make(url("nobody")).open()


def _token(signer: Any, subject: Any, nats: dict[str, Any]) -> str:
    """A JWT of the subject, signed by the signer, as `nsc` makes it."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {
        "jti": "x", "iat": 1_700_000_000, "iss": signer.public_key.decode(), "sub": subject.public_key.decode(),
        "name": "test", "nats": {"version": 2, **nats},
    }  # fmt: skip
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    return f"{signed}.{base64.urlsafe_b64encode(signer.sign(signed.encode())).decode().rstrip('=')}"


def _key(kind: int) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


async def test_the_credentials_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    operator, user = _key(nkeys.PREFIX_BYTE_OPERATOR), _key(nkeys.PREFIX_BYTE_USER)
    account, system = _key(nkeys.PREFIX_BYTE_ACCOUNT), _key(nkeys.PREFIX_BYTE_ACCOUNT)
    limits = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "subs": -1, "data": -1,
              "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}  # fmt: skip
    accounts = [
        f"{each.public_key.decode()}: {_token(operator, each, {'type': 'account', 'limits': its})}"
        for each, its in ((account, limits), (system, {}))
    ]
    settings = [
        f"operator: {_token(operator, operator, {'type': 'operator'})}",
        f"system_account: {system.public_key.decode()}",
        f"resolver: MEMORY\nresolver_preload: {{ {', '.join(accounts)} }}",
    ]
    credentials = tmp_path / "bus.creds"

    def write_credentials(signer: Any) -> None:
        token = _token(signer, user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
        credentials.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )

    with nats_server(tmp_path / "nats", "\n".join(settings)) as server:
        write_credentials(_key(nkeys.PREFIX_BYTE_ACCOUNT))
        sink = make(server, credentials=credentials)
        with pytest.raises(SinkRetry, match="Authorization Violation"):
            await sink.open()
        write_credentials(account)
        await sink.open()
        await sink.write(make_records(3))
        await sink.close()
        credentials.write_text("nothing")
        with pytest.raises(SinkRetry, match="holds no JWT with its seed"):
            await sink.open()
        with pytest.raises(ConfigError, match=r"^sinks\.bus\.credentials: .*bus\.creds holds no JWT"):
            make(server, credentials=credentials)
        with pytest.raises(ConfigError, match=r"^sinks\.bus\.credentials: .*none cannot be read: No such file"):
            make(server, credentials=tmp_path / "none")


async def test_tls_with_a_self_signed_certificate(tmp_path: Path) -> None:
    _, certificate = make_certificate(tmp_path)
    key = certificate.with_name("localhost-key.pem")
    settings = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\nauthorization {{ token: correct }}'
    with nats_server(tmp_path / "nats", settings) as server:
        for scheme in ("tls", "nats"):
            url = f"{scheme}://:correct@localhost:{server.port}"
            async with opened(url, ca_file=certificate) as sink:
                await sink.write(make_records(500))
                await sink.check()
            with pytest.raises(SinkRetry, match=r"(?i)certificate.verify.failed"):
                await make(url).open()
        with pytest.raises(SinkRetry, match=r"(?i)certificate.verify.failed"):  # the certificate is for another name
            await make(f"tls://:correct@127.0.0.1:{server.port}", ca_file=certificate).open()


@pytest.mark.parametrize("by", ["scheme", "ca_file"])
async def test_with_required_tls_nothing_is_sent_without_it(tmp_path: Path, by: str) -> None:
    heard, before = b"", asyncio.all_tasks()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        writer.write(b'INFO {"auth_required": true, "max_payload": 1000}\r\n')
        with suppress(OSError):
            heard += await reader.read()
        writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        _, certificate = make_certificate(tmp_path)
        for login in ("shop:hunter2@", ":hunter2@"):
            if by == "scheme":
                sink = make(f"tls://{login}{address}")
            else:
                sink = make(f"nats://{login}{address}", ca_file=certificate)
            with pytest.raises(SinkRetry, match="secure connection not available"):
                await sink.open()
        await _until_only(before)
    assert heard == b""


async def test_with_required_tls_a_server_without_tls_and_login_is_refused(server: NatsServer) -> None:
    with pytest.raises(SinkRetry, match="secure connection not available"):
        await make(server.url.replace("nats://", "tls://")).open()


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, None),
        ({"subject": "{type}.{tenant}.{key}"}, None),
        ({"url": "http://host"}, "url: expected nats://"),
        ({"url": "nats://"}, "url: expected"),
        ({"url": "nats://host:4222/events"}, "url: expected nats://"),
        ({"url": "nats://host:hunter2"}, "url: expected nats://host:port with a number as the port"),
        ({"url": "nats://hunter2@host"}, "url: expected nats://user:password@host or nats://:token@host"),
        ({"url": "nats://:hunter2#x@host"}, "url: expected nats://host:port with a number as the port"),
        ({"url": "nats://u:hunter2/@host"}, "url: expected nats://host:port with a number as the port"),
        ({"servers": ["nats://a", "nats://b"]}, "url: give either url or servers"),
        ({"url": None, "servers": ["nats://a", "ws://b"]}, r"servers\[1\]: expected nats://"),
        ({"url": None, "servers": []}, "url: give either url or servers"),
        ({"stream": "a.b"}, "stream: expected text matching"),
        ({"stream": ""}, "stream: expected text matching"),
        ({"subject": ""}, "subject: expected tokens"),
        ({"subject": "a..b"}, "subject: expected tokens"),
        ({"subject": ".a"}, "subject: expected tokens"),
        ({"subject": "a b"}, "subject: expected tokens"),
        ({"subject": "a.>"}, "subject: expected tokens"),
        ({"subject": "a.*.{key}"}, "subject: expected tokens"),
        ({"subject": "a.{user}"}, "subject: expected no {}"),
        ({"subject": "a.{type!r}"}, "subject: expected no {}"),
        ({"subject": "a.{type"}, "subject: expected no {}"),
        ({"subject": "$JS.{type}"}, "subject: expected a subject that NATS does not reserve"),
        ({"subject": "_INBOX.{type}"}, "subject: expected a subject that NATS does not reserve"),
        ({"subject": "a" * 1001}, "subject: expected at most 1000 bytes"),
        ({"duplicate_window": "1h"}, "duplicate_window: unknown option; a new stream remembers ids for two minutes"),
        ({"ca_file": "none.pem"}, r"ca_file: .*none\.pem cannot be used: .*No such file"),
        ({"ca_file": "bad.pem"}, r"ca_file: .*bad\.pem cannot be used"),
        ({"server": "x"}, "server: unknown option; did you mean sinks.bus.servers"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str | None) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    table = {"url": "nats://host", "stream": "EVENTS", **options}
    if table["url"] is None:
        del table["url"]
    if message is None:
        configured(NatsSink, "bus", table, tmp_path)
    else:
        with pytest.raises(ConfigError, match=rf"sinks\.bus\.{message}") as raised:
            configured(NatsSink, "bus", table, tmp_path)
        assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("missing", ["nats", "nkeys"])
def test_a_missing_library_is_reported_with_the_command_to_install_it(tmp_path: Path, missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
from pathlib import Path
from ingestd.plugins.sinks.nats import NatsSink
NatsSink("bus", NatsSink.Options(stream="EVENTS", url="nats://host", credentials=Path("x")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "ConfigError: sinks.bus.type: needs nats-py, which is not installed: pip install '.[nats]' in ingestd's source"
        in done.stderr
    )


# The daemon and the documentation


def test_the_daemon_delivers_each_record_once_despite_an_outage(tmp_path: Path, server: NatsServer) -> None:
    shop = Shop(tmp_path, {"sinks.bus": f'type = "nats"\nurl = "{server.url}"\nstream = "EVENTS"'})
    log = send_through_an_outage(shop, "bus", server)
    assert asyncio.run(server.records("EVENTS")) == shop.exported()
    assert not any("Traceback" in line or "ERROR" in line or "nats.aio" in line for line in log)


def test_the_documented_options_and_the_documented_reader_work(
    tmp_path: Path, server: NatsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_shown(DOCS, "nats", NatsSink, tmp_path)
    batch = make_records(3)

    async def write() -> None:
        async with opened(server, stream=options.stream, subject=options.subject) as sink:
            await sink.write(batch)

    asyncio.run(write())
    (reader,) = lines_to_read("Read a NATS stream")
    exec(reader.replace("nats://nats.example:4222", server.url), {})
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["ingestd.shop.event", value["id"]] for value in values(batch)
    ]
