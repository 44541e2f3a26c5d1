"""The kafka sink on a broker whose process or connections fail: each record is there once and in order."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from functools import partial

import pytest

from ingestd.api.errors import SinkRetry
from ingestd.api.sink import Sink
from ingestd.testing.sinks import make_records
from tests.support.kafka_sink import Kafka, incompressible, make, opened, until_written
from tests.support.ports import free_port
from tests.support.sinks import ids_of, values
from tests.support.standstill import stand_still


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


async def test_a_write_whose_time_ends_while_the_process_stands_still_leaves_no_duplicates(
    kafka: Kafka, topic: str
) -> None:
    batch = make_records(60)

    async def write_in_time(sink: Sink) -> None:
        async with asyncio.timeout(0.2):
            await sink.write(batch)

    async with opened(kafka.cluster.addresses, topic) as sink:
        await sink.write(make_records(1))
        with pytest.raises(TimeoutError):
            await stand_still(write_in_time(sink), 3.0)
        await sink.write(batch)
    assert kafka.cluster.records(topic)[1:] == values(batch)


async def test_a_connection_that_breaks_during_writes_leaves_no_duplicates(kafka: Kafka, topic: str) -> None:
    batches = [make_records(50, data={"text": incompressible(2000)}) for _ in range(40)]
    async with opened(kafka.behind_proxy, topic) as sink:
        for number, batch in enumerate(batches):
            writing = asyncio.create_task(sink.write(batch))
            if number % 8 == 5:
                await asyncio.sleep(number / 5000)
                kafka.proxy.cut()
            await writing
    assert kafka.cluster.records(topic) == values([record for batch in batches for record in batch])


async def test_a_broker_killed_before_it_answers_has_all_records_and_repeats_only_the_unanswered(
    kafka: Kafka, topic: str, impatient: None
) -> None:
    batches = [make_records(500, data={"text": incompressible(2000)}) for _ in range(4)]
    reasons: list[str] = []
    async with opened(kafka.behind_proxy, topic) as sink:
        for number, batch in enumerate(batches):
            if number == 2:
                kafka.proxy.hold_answers()
            writing = asyncio.create_task(until_written(sink, batch))
            if number == 2:
                while len(await asyncio.to_thread(kafka.cluster.messages, topic)) == 2 * 500:
                    pass
                kafka.cluster.kill()
                kafka.proxy.cut()
                kafka.proxy.let_go()
                other = make(kafka.cluster.addresses, topic)
                for attempt in (other.check, other.open):
                    with pytest.raises(SinkRetry, match="Connection refused"):
                        await attempt()
                await other.close()
                await asyncio.to_thread(kafka.cluster.start)
            reasons += await writing
    assert reasons
    found = Counter(message.headers["id"] for message in kafka.cluster.messages(topic))
    assert [*found] == ids_of([record for batch in batches for record in batch])
    assert {id_ for id_, times in found.items() if times > 1} <= {*ids_of(batches[2])}


async def test_a_broker_that_hangs_is_reported_and_nothing_comes_twice(
    kafka: Kafka, topic: str, impatient: None
) -> None:
    batch = make_records(20)
    (broker,) = kafka.cluster.brokers
    async with opened(kafka.cluster.addresses, topic) as sink:
        await until_written(sink, make_records(1))
        broker.signal(signal.SIGSTOP)
        try:
            for attempt in (partial(sink.write, batch), sink.check, make(kafka.cluster.addresses, topic).open):
                with pytest.raises(SinkRetry, match=r"do not acknowledge messages|do not answer within 2 s"):
                    await attempt()
        finally:
            broker.signal(signal.SIGCONT)
        await until_written(sink, batch)
    assert kafka.cluster.records(topic)[1:] == values(batch)


async def test_a_quota_slows_writes_down_and_loses_nothing(kafka: Kafka, topic: str, impatient: None) -> None:
    kafka.cluster.limit_rate(60_000)
    try:
        batches = [make_records(10, data={"long": incompressible(9_000)}) for _ in range(8)]
        async with opened(kafka.cluster.addresses, topic, compression="none") as sink:
            reasons = [reason for batch in batches for reason in await until_written(sink, batch)]
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
