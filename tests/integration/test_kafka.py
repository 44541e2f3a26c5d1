"""The kafka sink on a real broker: each record in its topic, in order, despite failures of broker and connections."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ingestd.api.errors import ConfigError, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Secret
from ingestd.plugins.sinks.kafka import KafkaSink
from ingestd.plugins.sinks.kafka.topic import TopicTemplate
from ingestd.testing.records import make_records_of_every_type
from ingestd.testing.sinks import SinkContract, make_records
from tests.support.daemon import Shop
from tests.support.kafka_cluster import KafkaCluster, Stored
from tests.support.ports import free_port
from tests.support.sinks import configured, options_shown, send_through_an_outage, values
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.webhook_server import make_certificate

DOCS = (Path(__file__).parents[2] / "docs" / "sinks" / "kafka.md").read_text()


_MAP = {
    "PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "PROXIED": "PLAINTEXT", "TLS": "SSL", "MUTUAL_TLS": "SSL",
    "LOGIN": "SASL_PLAINTEXT", "LOGIN_TLS": "SASL_SSL",
}  # fmt: skip
"""The protocol of each listener."""

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Kafka(NamedTuple):
    cluster: KafkaCluster
    proxy: TcpProxy
    """A proxy before a listener of the broker."""
    ports: dict[str, int]
    """The port of each listener with TLS or logins."""
    certificate: Path

    @property
    def behind_proxy(self) -> tuple[str]:
        return (f"127.0.0.1:{self.proxy.port}",)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker with a user `shop`, who has no rights, and a listener for each protocol."""
    folder = tmp_path_factory.mktemp("kafka")
    _, certificate = make_certificate(folder)
    keystore = folder / "keystore.pem"
    keystore.write_bytes(certificate.with_name("localhost-key.pem").read_bytes() + certificate.read_bytes())
    settings = {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in _MAP.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
        "listener.name.mutual_tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=localhost;User:plain",
    }
    for name in ("login", "login_tls"):
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = f'{_PLAIN} user_plain="correct";'
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = _SCRAM
    shown = free_port()
    cluster = KafkaCluster(folder / "cluster", settings=settings)
    target = cluster.listen("PROXIED", shown=shown)
    ports = {name: cluster.listen(name) for name in ("TLS", "MUTUAL_TLS", "LOGIN", "LOGIN_TLS")}
    try:
        cluster.start()
        cluster.add_user("shop", "correct")
        with tcp_proxy(shown, target) as proxy:
            yield Kafka(cluster, proxy, ports, certificate)
    finally:
        cluster.kill()


def topic_of(folder: Path) -> str:
    return f"t-{hashlib.sha256(bytes(folder)).hexdigest()[:16]}"


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return topic_of(tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.producer._QUIET", 0.7)
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.cluster._ANSWER_TIMEOUT", 2.0)
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.cluster._LAST_HOPE", 0.2)


def make(brokers: Sequence[str], topic: str, **options: Any) -> KafkaSink:
    return KafkaSink("bus", KafkaSink.Options(**{"brokers": tuple(brokers), "topic": topic, **options}))


@asynccontextmanager
async def opened(brokers: Sequence[str], topic: str, **options: Any) -> AsyncIterator[KafkaSink]:
    sink = make(brokers, topic, **options)
    try:
        await sink.open()
        yield sink
    finally:
        await sink.close()


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def with_kafka(self, kafka: Kafka) -> None:
        self.kafka = kafka

    def make_sink(self, folder: Path) -> KafkaSink:
        return make(self.kafka.behind_proxy, topic_of(folder))

    async def read_back(self, folder: Path) -> list[Any]:
        return self.kafka.cluster.records(topic_of(folder))

    async def interrupt(self, folder: Path) -> None:
        self.kafka.proxy.cut()

    def make_rejected(self) -> Record:
        return make_records(1, data={"long": _incompressible(9 << 20)})[0]


def _incompressible(size: int) -> str:
    return b"".join(hashlib.sha256(str(each).encode()).hexdigest().encode() for each in range(size // 64)).decode()


# Messages


async def test_a_message_is_the_record_byte_for_byte_with_key_and_headers(kafka: Kafka, topic: str) -> None:
    batch = [
        *make_records(1, data={"name": "Łódź \x00"}),
        Record("order_total", 0, b'{ "id": "x", "type": "order_total", "tenant": "shop" }'),
        Record("receipt", 0, b'{"id":"y","type":"receipt"}'),
        Record("receipt", 0, b'{"id":"z","type":"receipt","tenant":"shop","key":5}'),
    ]
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(batch)
    (first,) = values(batch[:1])
    assert kafka.cluster.messages(topic) == [
        Stored(0, "shop:visitor-1", {"id": first["id"], "type": "event", "tenant": "shop"}, batch[0].body),
        Stored(0, "shop", {"id": "x", "type": "order_total", "tenant": "shop"}, batch[1].body),
        Stored(0, "y", {"id": "y", "type": "receipt"}, batch[2].body),
        Stored(0, "shop", {"id": "z", "type": "receipt", "tenant": "shop"}, batch[3].body),
    ]


async def test_the_records_of_a_visitor_are_in_one_partition_as_java_chooses_it(kafka: Kafka, topic: str) -> None:
    kafka.cluster.create(topic, 7)
    batch = [record for _ in range(5) for record in make_records(40)]
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(batch)
    stored = kafka.cluster.messages(topic)
    assert {message.partition for message in stored} == {*range(7)}
    for message in stored:
        assert message.partition == (_murmur2(message.key.encode()) & 0x7FFFFFFF) % 7
    ids = [value["id"] for value in values(batch)]
    for number in range(40):
        key = f"shop:visitor-{number + 1}"
        assert [message.headers["id"] for message in stored if message.key == key] == ids[number::40]


def _murmur2(data: bytes) -> int:
    """The hash of Java's default partitioner."""
    mask, prime = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * prime & mask
        value = value * prime & mask ^ (part ^ part >> 24) * prime & mask
    rest = data[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * prime & mask
    value = (value ^ value >> 13) * prime & mask
    return value ^ value >> 15


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_messages_are_compressed_as_configured(kafka: Kafka, topic: str, compression: str) -> None:
    batch = make_records(50)
    async with opened(kafka.cluster.addresses, topic, compression=compression) as sink:
        await sink.write(batch)
    assert kafka.cluster.records(topic) == values(batch)
    segment = (kafka.cluster.brokers[0].folder / "data" / f"{topic}-0" / f"{0:020}.log").read_bytes()
    assert segment.count(b'"anonymousId"') == (50 if compression == "none" else 0) or compression in {"snappy", "lz4"}
    assert (len(segment) > sum(len(record.body) for record in batch)) == (compression == "none")


# Topics


@pytest.mark.parametrize(
    ("template", "type_", "tenant", "topic"),
    [
        ("events", "event", "shop", "events"),
        ("{tenant}.{type}", "event", "shop", "shop.event"),
        ("{tenant}.{type}", "shop:receipt", None, "_.shop_receipt"),
        ("a-{type}", "ż €/", None, "a-____"),
        ("{type}", "x" * 300, None, "x" * 249),
        ("{tenant}", "event", "..", "_"),
    ],
)
def test_placeholders_make_valid_topics(template: str, type_: str, tenant: str | None, topic: str) -> None:
    assert TopicTemplate(template).of(type_, tenant) == topic


async def test_each_type_may_have_its_topic(kafka: Kafka, topic: str) -> None:
    batch = [*make_records(2), *make_records_of_every_type()]
    async with opened(kafka.cluster.addresses, f"{topic}.{{type}}") as sink:
        await sink.write(batch)
        await sink.check()
    for record in batch:
        there = kafka.cluster.records(f"{topic}.{record.type.replace(':', '_')}")
        assert there == [value for value in values(batch) if value["type"] == record.type]


async def test_a_topic_is_created_as_configured_and_an_existing_one_is_not_changed(kafka: Kafka, topic: str) -> None:
    async with opened(kafka.cluster.addresses, topic, partitions=3, replicas=1):
        assert len(kafka.cluster.leaders(topic)) == 3
    async with opened(kafka.cluster.addresses, topic, partitions=5) as sink:
        await sink.write(make_records(1))
    assert len(kafka.cluster.leaders(topic)) == 3
    with pytest.raises(SinkRetry, match=rf"^the topic {topic}-2 cannot be created: .*\(INVALID_REPLICATION_FACTOR\)$"):
        await make(kafka.cluster.addresses, f"{topic}-2", replicas=3).open()


async def test_without_create_a_missing_topic_is_reported(kafka: Kafka, topic: str) -> None:
    sink = make(kafka.cluster.addresses, topic, create=False)
    for attempt in (sink.open, sink.check, partial(sink.write, make_records(1))):
        with pytest.raises(SinkRetry, match=rf"^there is no topic {topic}, and create is false$"):
            await attempt()
    kafka.cluster.create(topic)
    await sink.check()
    await sink.write(make_records(1))
    await sink.close()


async def test_check_creates_nothing(kafka: Kafka, topic: str) -> None:
    await make(kafka.cluster.addresses, topic).check()
    await make(kafka.cluster.addresses, f"{topic}.{{tenant}}").check()
    assert topic not in kafka.cluster.topics()


async def test_several_sinks_may_create_the_topic_at_once(kafka: Kafka, topic: str) -> None:
    sinks = [make(kafka.cluster.addresses, topic) for _ in range(3)]
    await asyncio.gather(*[sink.open() for sink in sinks])
    for sink in sinks:
        await sink.write(make_records(1))
        await sink.close()
    assert len(kafka.cluster.records(topic)) == 3


async def test_a_deleted_topic_is_created_again(kafka: Kafka, topic: str, impatient: None) -> None:
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(make_records(2))
        kafka.cluster.delete(topic)
        batch = make_records(2)
        await _until_written(sink, batch)
    assert kafka.cluster.records(topic) == values(batch)


async def _until_written(sink: KafkaSink, batch: Sequence[Record]) -> list[str]:
    """Write the batch as the daemon does. Returns the reasons of the failures, which must all be the sink's."""
    reasons = []
    async with asyncio.timeout(60):
        while True:
            try:
                await sink.write(batch)
            except SinkRetry as error:
                reasons.append(str(error))
                batch = batch[error.written :]
            else:
                return reasons
            await asyncio.sleep(0.05)


# Rejected records


async def test_of_many_records_only_the_too_large_one_is_rejected_and_the_others_are_there_once(
    kafka: Kafka, topic: str
) -> None:
    kafka.cluster.create(topic, max_message_bytes="50000")
    batch = make_records(300)
    batch[100:100] = make_records(1, data={"long": _incompressible(60_000)})
    batch[200:200] = make_records(1, data={"long": "x" * 600_000})  # small when it is compressed
    more = make_records(10)
    async with opened(kafka.cluster.addresses, topic) as sink:
        with pytest.raises(SinkReject) as raised:
            await sink.write(batch)
        assert raised.value.written == len(batch)
        ((index, reason),) = raised.value.reasons.items()
        assert index == 100
        assert reason == (f"it has {len(batch[100].body)} bytes, and the topic {topic} takes fewer (max.message.bytes)")
        await sink.write(more)
    assert kafka.cluster.records(topic) == values([*batch[:100], *batch[101:], *more])


async def test_a_search_that_takes_long_rejects_what_it_has_found(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.kafka._SIFTING", 0)
    kafka.cluster.create(topic, max_message_bytes="50000")
    batch = make_records(20)
    for index in (5, 8):
        batch[index] = make_records(1, data={"long": _incompressible(60_000)})[0]
    async with opened(kafka.cluster.addresses, topic) as sink:
        for count, at in ((20, 5), (14, 2)):
            with pytest.raises(SinkReject) as raised:
                await sink.write(batch[-count:])
            assert (raised.value.written, [*raised.value.reasons]) == (at + 1, [at])
        await sink.write(batch[9:])
    assert kafka.cluster.records(topic) == values([*batch[:5], *batch[6:8], *batch[9:]])


async def test_a_limit_that_several_records_exceed_together_rejects_none(kafka: Kafka, topic: str) -> None:
    kafka.cluster.create(topic, max_message_bytes="600000")
    batch = make_records(12, data={"long": _incompressible(150_000)})
    async with opened(kafka.cluster.addresses, topic, compression="none") as sink:
        await sink.write(batch)
        await sink.write(batch)
    assert kafka.cluster.records(topic) == values([*batch, *batch])


# Failures


async def test_a_write_that_is_cancelled_while_nothing_is_acknowledged_leaves_no_duplicates(
    kafka: Kafka, topic: str
) -> None:
    batches = [make_records(20) for _ in range(6)]
    async with opened(kafka.behind_proxy, topic) as sink:
        await sink.write(batches[0])
        for batch in batches[1:]:
            kafka.proxy.hold()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await sink.write(batch)
            kafka.proxy.let_go()
            await sink.write(batch)
    assert kafka.cluster.records(topic) == values([record for batch in batches for record in batch])


async def test_a_connection_that_breaks_during_writes_leaves_no_duplicates(kafka: Kafka, topic: str) -> None:
    batches = [make_records(50, data={"text": _incompressible(2000)}) for _ in range(40)]
    async with opened(kafka.behind_proxy, topic) as sink:
        for number, batch in enumerate(batches):
            writing = asyncio.create_task(sink.write(batch))
            if number % 8 == 5:
                await asyncio.sleep(number / 5000)
                kafka.proxy.cut()
            await writing
    assert kafka.cluster.records(topic) == values([record for batch in batches for record in batch])


async def test_a_broker_killed_during_writes_has_all_records_once_and_in_order(
    kafka: Kafka, topic: str, impatient: None
) -> None:
    batches = [make_records(500, data={"text": _incompressible(2000)}) for _ in range(8)]
    reasons: list[str] = []
    async with opened(kafka.cluster.addresses, topic) as sink:
        for number, batch in enumerate(batches):
            writing = asyncio.create_task(_until_written(sink, batch))
            if number == 4:
                await asyncio.sleep(0.01)
                kafka.cluster.kill()
                for attempt in (sink.check, make(kafka.cluster.addresses, topic).open):
                    with pytest.raises(SinkRetry, match="Connection refused"):
                        await attempt()
                await asyncio.to_thread(kafka.cluster.start)
            reasons += await writing
    assert reasons
    assert all("Connection refused" in reason for reason in reasons)
    assert kafka.cluster.records(topic) == values([record for batch in batches for record in batch])


async def test_a_broker_that_hangs_is_reported_and_nothing_comes_twice(
    kafka: Kafka, topic: str, impatient: None
) -> None:
    batch = make_records(20)
    (broker,) = kafka.cluster.brokers
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(make_records(1))
        broker.signal(signal.SIGSTOP)
        try:
            for attempt in (partial(sink.write, batch), sink.check, make(kafka.cluster.addresses, topic).open):
                with pytest.raises(SinkRetry, match=r"do not acknowledge messages|do not answer within 2 s"):
                    await attempt()
        finally:
            broker.signal(signal.SIGCONT)
        await _until_written(sink, batch)
    assert kafka.cluster.records(topic)[1:] == values(batch)


async def test_a_quota_slows_writes_down_and_loses_nothing(kafka: Kafka, topic: str, impatient: None) -> None:
    kafka.cluster.limit_rate(60_000)
    try:
        batches = [make_records(10, data={"long": _incompressible(9_000)}) for _ in range(8)]
        async with opened(kafka.cluster.addresses, topic, compression="none") as sink:
            reasons = [reason for batch in batches for reason in await _until_written(sink, batch)]
    finally:
        kafka.cluster.limit_rate(None)
    assert all("do not acknowledge messages" in reason for reason in reasons)
    assert kafka.cluster.records(topic) == values([record for batch in batches for record in batch])


async def test_a_server_that_cannot_be_reached_is_reported_at_once(topic: str, impatient: None) -> None:
    for broker, reason in ((f"127.0.0.1:{free_port()}", "Connection refused"), ("host.invalid:9092", "resolve")):
        sink = make([broker], topic)
        for attempt in (sink.open, sink.check, partial(sink.write, make_records(1))):
            with pytest.raises(SinkRetry, match=reason):
                async with asyncio.timeout(4):
                    await attempt()
        await sink.close()


async def test_one_broker_of_several_is_enough(kafka: Kafka, topic: str) -> None:
    async with opened([f"127.0.0.1:{free_port()}", *kafka.cluster.addresses], topic) as sink:
        await sink.write(make_records(1))
    assert len(kafka.cluster.records(topic)) == 1


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\xff" * 20, b"\0\0\0\4\0\0\0\1"])
async def test_a_server_that_is_not_kafka_is_reported_in_time(topic: str, answer: bytes, impatient: None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        sink = make([f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"], topic)
        for attempt in (sink.open, sink.check):
            with pytest.raises(SinkRetry):
                async with asyncio.timeout(4):
                    await attempt()
        await sink.close()


# Logins, rights and TLS


@pytest.mark.parametrize(
    ("sasl", "user", "listener"),
    [("PLAIN", "plain", "LOGIN_TLS"), ("SCRAM-SHA-256", "shop", "LOGIN"), ("SCRAM-SHA-512", "shop", "LOGIN_TLS")],
)
async def test_a_login_is_used_and_a_wrong_one_is_reported(
    kafka: Kafka, topic: str, impatient: None, sasl: str, user: str, listener: str
) -> None:
    kafka.cluster.create(topic)
    kafka.cluster.allow("shop", "WRITE", topic)
    brokers = [f"localhost:{kafka.ports[listener]}"]
    login: dict[str, Any] = {"user": user, "sasl": sasl}
    if listener == "LOGIN_TLS":
        login["ca_file"] = kafka.certificate
    async with opened(brokers, topic, password=Secret("correct"), **login) as sink:
        await sink.write(make_records(1))
        await sink.check()
    sink = make(brokers, topic, password=Secret("hunter2"), **login)
    for attempt in (sink.open, sink.check):
        with pytest.raises(SinkRetry, match=r"uthentication") as raised:
            await attempt()
        assert "hunter2" not in str(raised.value)
    await sink.close()
    assert len(kafka.cluster.records(topic)) == 1


async def test_a_user_needs_the_documented_rights_and_missing_rights_are_reported(kafka: Kafka, topic: str) -> None:
    assert "The user needs `WRITE` on the topic, and with `create` also `CREATE`" in DOCS
    login: dict[str, Any] = {"user": "shop", "password": Secret("correct")}
    brokers = [f"localhost:{kafka.ports['LOGIN']}"]
    with pytest.raises(SinkRetry, match=rf"^the topic {topic} cannot be .*\(TOPIC_AUTHORIZATION_FAILED\)$"):
        await make(brokers, topic, **login).open()
    kafka.cluster.allow("shop", "DESCRIBE", topic)
    with pytest.raises(SinkRetry, match=r"cannot be created: .*\(TOPIC_AUTHORIZATION_FAILED\)$"):
        await make(brokers, topic, **login).open()
    kafka.cluster.allow("shop", "CREATE", topic)
    async with opened(brokers, topic, **login) as sink:
        batch = make_records(3)
        with pytest.raises(SinkRetry, match=r"\(TOPIC_AUTHORIZATION_FAILED\)$"):
            await sink.write(batch)
        kafka.cluster.allow("shop", "WRITE", topic)
        await _until_written(sink, batch)
    assert kafka.cluster.records(topic) == values(batch)


async def test_tls_with_a_private_certificate(kafka: Kafka, topic: str, impatient: None) -> None:
    port, mutual = kafka.ports["TLS"], kafka.ports["MUTUAL_TLS"]
    key = kafka.certificate.with_name("localhost-key.pem")
    async with opened([f"localhost:{port}"], topic, ca_file=kafka.certificate) as sink:
        await sink.write(make_records(1))
    async with opened(
        [f"localhost:{mutual}"], topic, ca_file=kafka.certificate, certificate=kafka.certificate, certificate_key=key
    ) as sink:
        await sink.write(make_records(1))
    assert len(kafka.cluster.records(topic)) == 2
    for brokers, options in (
        ([f"localhost:{port}"], {"tls": True}),
        ([f"127.0.0.1:{port}"], {"ca_file": kafka.certificate}),  # the certificate is for another name
        ([f"localhost:{mutual}"], {"ca_file": kafka.certificate}),
        ([f"127.0.0.1:{kafka.cluster.brokers[0].port}"], {"tls": True}),
    ):
        with pytest.raises(SinkRetry, match=r"(?i)ssl|disconnect"):
            await make(brokers, topic, **options).open()


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, None),
        ({"topic": "{tenant}.{type}"}, None),
        ({"brokers": ["[::1]:9092", "b:1"], "partitions": 12, "replicas": 3, "compression": "zstd"}, None),
        ({"brokers": []}, "brokers"),
        ({"brokers": ["host"]}, r"brokers\[0\]: expected a host and a port"),
        ({"brokers": ["host:9092", "user:hunter2@host:9092"]}, r"brokers\[1\]: expected a host and a port"),
        ({"brokers": ["kafka://host:9092"]}, r"brokers\[0\]: expected a host and a port"),
        ({"brokers": ["a:1,b:1"]}, r"brokers\[0\]: expected a host and a port"),
        ({"topic": ""}, "topic: expected 1 to 249 letters"),
        ({"topic": "a b"}, "topic: expected 1 to 249 letters"),
        ({"topic": ".."}, "topic: expected 1 to 249 letters"),
        ({"topic": "a" * 250}, "topic: expected 1 to 249 letters"),
        ({"topic": "a.{key}"}, r"topic: expected no {} except {type} and {tenant}"),
        ({"partitions": 0}, "partitions"),
        ({"compression": "brotli"}, "compression"),
        ({"sasl": "GSSAPI"}, "sasl"),
        ({"user": "shop"}, "password: give both user and password, or neither"),
        ({"password": "hunter2"}, "user: give both user and password, or neither"),
        ({"user": "", "password": "hunter2"}, "user: expected a name"),
        ({"ca_file": "none.pem"}, r"ca_file: .*none\.pem cannot be used: .*No such file"),
        ({"ca_file": "bad.pem"}, r"ca_file: .*bad\.pem cannot be used"),
        ({"certificate": "bad.pem"}, "certificate_key: give both certificate and certificate_key, or neither"),
        ({"certificate_key": "bad.pem"}, "certificate: give both certificate and certificate_key, or neither"),
        ({"certificate": "bad.pem", "certificate_key": "bad.pem"}, r"certificate: .*bad\.pem cannot be used"),
        ({"broker": "x"}, "broker: unknown option; did you mean sinks.bus.brokers"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str | None) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    table = {"brokers": ["host:9092"], **options}
    if message is None:
        configured(KafkaSink, "bus", table, tmp_path)
    else:
        with pytest.raises(ConfigError, match=rf"sinks\.bus\.{message}") as raised:
            configured(KafkaSink, "bus", table, tmp_path)
        assert "hunter2" not in str(raised.value)


def test_a_missing_library_is_reported_with_the_command_to_install_it() -> None:
    program = """
import sys
sys.modules["confluent_kafka"] = None
from ingestd.plugins.sinks.kafka import KafkaSink
KafkaSink("bus", KafkaSink.Options(brokers=("host:9092",)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (
        "ConfigError: sinks.bus.type: needs confluent-kafka, which is not installed: pip install '.[kafka]' in"
        " ingestd's source" in done.stderr
    )


# The daemon and the documentation


def test_the_daemon_delivers_each_record_once_despite_an_outage(tmp_path: Path, kafka: Kafka, topic: str) -> None:
    brokers = json.dumps(kafka.cluster.addresses)
    shop = Shop(tmp_path, {"sinks.bus": f'type = "kafka"\nbrokers = {brokers}\ntopic = "{topic}"'})
    log = send_through_an_outage(shop, "bus", kafka.cluster)
    assert kafka.cluster.records(topic) == shop.exported()
    assert not any("Traceback" in line or "ERROR" in line or "rdkafka" in line for line in log)


def test_the_documented_options_and_the_documented_reader_work(
    tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "x")
    options = options_shown(DOCS, "kafka", KafkaSink, tmp_path)
    batch = make_records(3)

    async def write() -> None:
        async with opened(kafka.cluster.addresses, options.topic) as sink:
            await sink.write(batch)

    asyncio.run(write())
    (reader,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    printed: list[tuple[str, ...]] = []
    until = time.monotonic() + 30
    exec(
        reader.replace("kafka-1.example:9092", kafka.cluster.addresses[0]).replace("while True", "while goes_on()"),
        {"print": lambda *words: printed.append(words), "goes_on": lambda: not printed and time.monotonic() < until},
    )
    assert [words[:2] for words in printed] == [(value["id"], "event") for value in values(batch)]
