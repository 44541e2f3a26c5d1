"""The kafka sink on a cluster of three brokers that lose their leader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.plugins.sinks.kafka import KafkaSink
from ingestd.testing.sinks import make_records
from tests.support.journals import until
from tests.support.kafka_cluster import KafkaBroker, KafkaCluster, Stored, kafka_cluster
from tests.support.kafka_sink import received_now
from tests.support.sinks import ids_of

_VISITORS = 40
_LONG = 300.0
"""The seconds that an election may take on a busy machine, where controllers miss each other's answers."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path / "cluster", brokers=3) as cluster:
        yield cluster


async def test_a_leader_that_is_killed_under_load_costs_no_record_no_order_and_no_duplicate(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: then one replica of three is left, which may not take messages alone until another one is back."""
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.producer._QUIET", 1.0)
    cluster.create("events", 3, 3, min_insync_replicas="2")
    sink = KafkaSink("bus", KafkaSink.Options(brokers=cluster.addresses, topic="events"))
    await sink.open()
    writer = _Writer(sink)
    try:
        writing = asyncio.create_task(writer.run())
        await writer.until_written(10)
        first = await asyncio.to_thread(_leader, cluster)
        first.kill()
        await writer.until_written(20)
        second = await asyncio.to_thread(_leader, cluster)
        known = len(writer.reasons)
        second.kill()
        await until(lambda: len(writer.reasons) > known, _LONG)
        await asyncio.to_thread(_restart, first)
        await writer.until_written(20)
        writer.ends = True
        await writing
        await asyncio.to_thread(_restart, second)
    finally:
        await sink.close()
    known_reasons = "of 3 replicas in sync|no leader|do not (answer|acknowledge)|refused|closed"
    assert [each for each in writer.reasons if not re.search(known_reasons, each)] == []
    stored = await asyncio.to_thread(cluster.messages, "events")
    wanted = ids_of(writer.written)
    assert sorted(message.headers["id"] for message in stored) == sorted(wanted)
    for number in range(_VISITORS):
        assert _of_visitor(stored, number) == wanted[number::_VISITORS]


def _of_visitor(stored: Sequence[Stored], number: int) -> list[str]:
    return [message.headers["id"] for message in stored if message.key == f"shop:visitor-{number + 1}"]


class _Writer:
    """Writes one batch after the other, each until the sink has it, as the daemon does."""

    def __init__(self, sink: KafkaSink) -> None:
        self.written: list[Record] = []
        self.reasons: list[str] = []
        """The reasons of failed writes."""
        self.ends = False
        self._sink = sink

    async def run(self) -> None:
        while not self.ends:
            batch = received_now(make_records(_VISITORS))
            self.written += batch
            while batch:
                try:
                    await self._sink.write(batch)
                except SinkRetry as error:
                    self.reasons.append(str(error))
                    batch = batch[error.written :]
                    await asyncio.sleep(0.1)
                else:
                    break

    async def until_written(self, batches: int) -> None:
        """Wait until so many more batches are written."""
        enough = len(self.written) + (batches + 1) * _VISITORS
        await until(lambda: len(self.written) >= enough, _LONG)


def _leader(cluster: KafkaCluster) -> KafkaBroker:
    """The leader of the first partition."""
    return cluster.brokers[cluster.leaders("events")[0] - 1]


def _restart(broker: KafkaBroker) -> None:
    broker.start()
    broker.wait_until_ready()
