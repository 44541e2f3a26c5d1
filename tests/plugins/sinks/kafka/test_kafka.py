"""The kafka sink on a real broker: each record in its topic, byte for byte and in order."""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import is_valid
from msgspec.structs import replace

from ingestd.api.errors import SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Url
from ingestd.plugins.sinks.kafka import KafkaSink
from ingestd.plugins.sinks.kafka.messages import MessageMaker, Subject, TopicTemplate
from ingestd.plugins.sinks.kafka.registry import Registry
from ingestd.plugins.sinks.kafka.settings import KafkaOptions
from ingestd.testing.records import make_records_of_every_type
from ingestd.testing.sinks import SinkContract, make_records
from ingestd.testing.writes import rejected_of
from ingestd.validation.schema_files import complete_schemas
from tests.support.daemon import Shop
from tests.support.event_keys import KEYS
from tests.support.kafka_cluster import Stored
from tests.support.kafka_sink import Kafka, incompressible, make, opened, topic_of, until_written
from tests.support.schema_registry import schema_registry
from tests.support.sinks import lines_to_read, options_shown, send_through_an_outage, values

NOW = 1_795_233_906_000
DOCS = (Path(__file__).parents[4] / "docs" / "sinks" / "kafka.md").read_text()


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
        return make_records(1, data={"long": incompressible(9 << 20)})[0]


# Messages


async def test_a_message_is_the_record_byte_for_byte_with_key_and_headers(kafka: Kafka, topic: str) -> None:
    batch = [
        *make_records(1, data={"name": "Łódź \x00"}, schema="5c3f1f0e"),
        Record("order_total", NOW, b'{ "id": "x", "type": "order_total", "tenant": "shop" }', 7),
        Record("receipt", NOW + 1, b'{"id":"y","type":"receipt"}', 8),
        Record("receipt", NOW + 2, b'{"id":"z","type":"receipt","tenant":"shop","key":5}', 9),
        Record("attribution", NOW, b'{"id":"a","tenant":"shop","decidedAt":"2026-11-21T04:05:06.007Z"}', 10),
    ]
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(batch)
    (first,) = values(batch[:1])
    more = {"tenant": "shop", "key": "Page View", "schema": "5c3f1f0e", "position": str(batch[0].position)}
    expected = [
        ("shop:visitor-1", {"id": first["id"], "type": "event", **more}, batch[0].at),
        ("shop", {"id": "x", "type": "order_total", "tenant": "shop", "position": "7"}, NOW),
        ("y", {"id": "y", "type": "receipt", "position": "8"}, NOW + 1),
        ("shop", {"id": "z", "type": "receipt", "tenant": "shop", "position": "9"}, NOW + 2),
        ("shop", {"id": "a", "type": "attribution", "tenant": "shop", "position": "10"}, 1_795_233_906_007),
    ]
    assert kafka.cluster.messages(topic) == [
        Stored(0, key, headers, record.body, at) for (key, headers, at), record in zip(expected, batch, strict=True)
    ]


async def test_a_record_from_the_future_has_the_present_time(kafka: Kafka, topic: str) -> None:
    """Brokers refuse a time that is more than an hour ahead of theirs, such as after a correction of the clock."""
    (record,) = make_records(1)
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write([replace(record, at=int(time.time() * 1000) + 86_400_000)])
    assert abs(kafka.cluster.messages(topic)[0].at / 1000 - time.time()) < 60


async def test_records_with_the_same_id_are_messages_each(kafka: Kafka, topic: str) -> None:
    """An import that goes on after an end without `state` stores records again."""
    (record,) = make_records(1)
    batch = [record, replace(record, position=record.position + 1)]
    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(batch)
    assert kafka.cluster.records(topic) == values(batch)


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


async def test_a_schema_registry_gets_the_schemas_and_messages_their_ids(kafka: Kafka, topic: str) -> None:
    batch = make_records(2, key="Order Completed", data={"order_id": "o-1", "total": 49.9, "products": [{"price": 1}]})
    batch += [
        *make_records(1, key="Page View"),
        *make_records(1, key="Gift Wrapped"),
        *make_records_of_every_type()[-1:],
    ]
    batch = [replace(each, position=position) for position, each in enumerate(batch, 1)]
    with schema_registry() as registry:
        sink = make(kafka.cluster.addresses, topic, schema_registry=registry.url)
        assert sink.needs_schemas
        sink.schemas = complete_schemas(None)
        assert not sink.risks()  # the registry is on this machine
        await sink.check()
        await sink.open()
        registry.refuses = 409, "the new schema is incompatible"
        with pytest.raises(
            SinkRetry,
            match=rf"127.0.0.1:\d+ answers 409 for {topic}-(Order Completed|Page View): the new schema is incompatible",
        ):
            await sink.write(batch)
        with pytest.raises(SinkRetry, match="answers 409"):
            await sink.check()
        assert kafka.cluster.messages(topic) == []
        registry.refuses = None
        for part in (batch[:1], batch[1:]):
            await sink.write(part)
        await sink.close()
        assert registry.posts == 2
    ids = {name: str(id_) for name, (id_,) in registry.subjects.items()}
    assert ids.keys() == {f"{topic}-Order Completed", f"{topic}-Page View"}
    order, page = ids[f"{topic}-Order Completed"], ids[f"{topic}-Page View"]
    headers = [
        message.headers for message in sorted(kafka.cluster.messages(topic), key=lambda each: each.headers["position"])
    ]
    assert [each.get("schema-id") for each in headers] == [order, order, page, None, None]
    schema = registry.schemas[int(order) - 1]
    assert is_valid(schema, batch[0].decode())  # without any other file
    assert not is_valid(schema, {**batch[0].decode(), "data": {"products": [{"price": "1"}]}})


# Topics


@pytest.mark.parametrize(
    ("template", "type_", "tenant", "key", "topic"),
    [
        ("events", "event", "shop", None, "events"),
        ("{tenant}.{type}", "event", "shop", None, "shop.event"),
        ("{tenant}.{type}", "shop:receipt", None, None, "_.shop_receipt"),
        ("a-{type}", "ż €/", None, None, "a-____"),
        ("{type}", "x" * 300, None, None, "x" * 249),
        ("{tenant}", "event", "..", None, "_"),
        ("{tenant}.{key}", "event", "shop", "Order Completed", "shop.Order_Completed"),
        ("{key}", "attribution", "shop", None, "_"),
    ],
)
def test_placeholders_make_valid_topics(
    template: str, type_: str, tenant: str | None, key: str | None, topic: str
) -> None:
    assert TopicTemplate(template).of(type_, tenant, key) == topic


@pytest.mark.parametrize("text", [5, True, "JSON", [], {"id": "1"}, {"id": True}, b"", b"\xff", b"[" * 100_000])
async def test_a_registry_that_answers_something_else_is_a_failure_of_the_sink(text: object) -> None:
    with schema_registry() as server:
        server.says = text
        registry = Registry(KafkaOptions(brokers=("host:9092",), schema_registry=Url(server.url)), "sinks.bus")
        registry.schemas = {"Page View": {"$schema": "x", "properties": {"\ud800": {}}}}
        with pytest.raises(SinkRetry, match="takes no JSON Schemas"):
            await registry.check()
        with pytest.raises(SinkRetry, match="gives no id for events-Page View"):
            await registry.register([Subject("events", "Page View")])


@pytest.mark.parametrize("template", ["{key}", "x" * 140 + "-{key}", "{key}-" + "x" * 235])
def test_two_keys_never_share_a_topic(template: str) -> None:
    keys = [
        "Order Completed",
        "Order_Completed",
        "Order.Completed",
        "Order/Completed",
        "Order  Completed",
        "",
        "_",
        "ż",
        "ź",
    ]
    keys += ["x" * 300, "x" * 301, ".", "..", *KEYS]
    keys.append(TopicTemplate("{key}").of("event", "shop", "Order_Completed").replace("_", " "))
    topics = [TopicTemplate(template).of("event", "shop", key) for key in keys]
    # Kafka takes a dot and `_` for the same.
    assert len({topic.replace(".", "_") for topic in topics}) == len(set(keys))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,249}", topic) for topic in topics)


def test_a_sink_makes_a_bounded_number_of_topics() -> None:
    make = MessageMaker(TopicTemplate("{key}")).make
    records = [make_records(1, key=f"Key {number}")[0] for number in range(1001)]
    for record in records[:1000]:
        make(record)
    with pytest.raises(ValueError, match="one more topic than 1000"):
        make(records[1000])
    make(records[0])


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
        await until_written(sink, make_records(2))
        kafka.cluster.delete(topic)
        batch = make_records(2)
        await until_written(sink, batch)
    assert kafka.cluster.records(topic) == values(batch)


# Rejected records


async def test_of_many_records_only_the_too_large_one_is_rejected_and_the_others_are_there_once(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.kafka._SIFTING", 60)  # however busy the machine is
    kafka.cluster.create(topic, max_message_bytes="50000")
    batch = make_records(300)
    batch[100:100] = make_records(1, data={"long": incompressible(60_000)})
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


async def test_of_two_records_that_are_too_large_the_second_costs_no_answer_although_it_takes_long(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal ends the connection if another message is sent halfway."""
    monkeypatch.setattr(kafka.proxy, "pause", 0.003)
    batch = make_records(5)
    for index in (0, 4):
        batch[index] = make_records(1, data={"long": incompressible(9 << 20)})[0]
    async with opened(kafka.behind_proxy, topic) as sink:
        assert await rejected_of(sink, batch[:1]) == {0}
        assert await rejected_of(sink, batch) == {0, 4}
    assert kafka.cluster.records(topic) == values(batch[1:4])


async def test_a_search_that_takes_long_rejects_what_it_has_found(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.kafka._SIFTING", 0)
    kafka.cluster.create(topic, max_message_bytes="50000")
    batch = make_records(20)
    for index in (5, 8):
        batch[index] = make_records(1, data={"long": incompressible(60_000)})[0]
    async with opened(kafka.cluster.addresses, topic) as sink:
        for count, at in ((20, 5), (14, 2)):
            with pytest.raises(SinkReject) as raised:
                await sink.write(batch[-count:])
            assert (raised.value.written, [*raised.value.reasons]) == (at + 1, [at])
        await sink.write(batch[9:])
    assert kafka.cluster.records(topic) == values([*batch[:5], *batch[6:8], *batch[9:]])


async def test_a_limit_that_several_records_exceed_together_rejects_none(kafka: Kafka, topic: str) -> None:
    kafka.cluster.create(topic, max_message_bytes="600000")
    batch = make_records(30, data={"long": incompressible(40_000)})
    async with opened(kafka.cluster.addresses, topic, compression="none") as sink:
        await sink.write(batch)
        await sink.write(batch)
    assert kafka.cluster.records(topic) == values([*batch, *batch])


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
    (reader,) = lines_to_read("Read a Kafka topic")
    printed: list[tuple[str, ...]] = []
    until = time.monotonic() + 30
    exec(
        reader.replace("kafka-1.example:9092", kafka.cluster.addresses[0]).replace("while True", "while goes_on()"),
        {"print": lambda *words: printed.append(words), "goes_on": lambda: not printed and time.monotonic() < until},
    )
    assert [words[:2] for words in printed] == [(value["id"], "event") for value in values(batch)]
