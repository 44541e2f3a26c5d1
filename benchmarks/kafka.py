"""The cost of the `kafka` sink, with a real broker on another core.

A backlog is delivered in alternate rounds: by a new sink, from the journal on SQLite, and by a plain producer of
confluent-kafka that has the same messages in memory, with the same settings. Each uses one core for its interpreter
and for the threads of the library. Then `/track` is measured with the sink and without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from ingestd.daemon.process import tune_the_interpreter
from ingestd.plugins.sinks.kafka import KafkaSink
from ingestd.plugins.sinks.kafka.messages import Message, MessageMaker, TopicTemplate
from ingestd.plugins.sinks.kafka.settings import producer_settings
from tests.support.kafka_cluster import KafkaCluster, is_installed, kafka_cluster

from .beside import beside, rounds_and_seconds
from .journal import usual_records
from .servers import on_core
from .shop import usual
from .sinks import CAUGHT_UP, WITHOUT, catch_up, fill_in


def sent(cluster: KafkaCluster, topic: str, messages: Sequence[Message]) -> float:
    """Seconds in which a plain producer sends all messages. Every one must be acknowledged."""
    settings = producer_settings(KafkaSink.Options(brokers=cluster.addresses), 1_000_000)
    producer = Producer(settings)
    acknowledged = 0

    def count(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    begun = time.perf_counter()
    for message in messages:
        producer.produce(topic, message.body, message.key, on_delivery=count, headers=[*message.headers])
        producer.poll(0)
    producer.flush()
    seconds = time.perf_counter() - begun
    assert acknowledged == len(messages)
    return seconds


def catching_up(cluster: KafkaCluster, rounds: int) -> None:
    records = usual_records(CAUGHT_UP)
    messages = [*map(MessageMaker(TopicTemplate("any")).make, records)]
    seconds: dict[str, list[float]] = {"sink": [], "producer": []}
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as name:
        folder = Path(name)
        fill_in(folder, records)
        size = sum(len(each.body) for each in records)
        del records
        tune_the_interpreter()
        for number in range(rounds + 1):  # the first round is a warm-up
            topics = {side: f"{side}-{number}" for side in seconds}
            for topic in topics.values():
                cluster.create(topic)
            sink = KafkaSink(topics["sink"], KafkaSink.Options(brokers=cluster.addresses, topic=topics["sink"]))
            taken = {
                "sink": catch_up(folder, sink),
                "producer": sent(cluster, topics["producer"], messages),
            }
            for side, each in taken.items():
                if number:
                    seconds[side].append(each)
    took = {side: median(each) for side, each in seconds.items()}
    print(f"kafka: a backlog of {CAUGHT_UP} records of {size // CAUGHT_UP} bytes, {rounds} rounds")
    for side, each in took.items():
        print(f"  {side:8} {each:6.2f} s {CAUGHT_UP / each:9.0f} records/s {size / each / 1e6:7.1f} MB/s")
    print(f"  kafka catching up: {took['producer'] / took['sink']:.2f} of a plain producer")


def main() -> int:
    rounds, seconds = rounds_and_seconds(__doc__, 5)
    if not is_installed:
        print("kafka: skipped, because there is no broker: `make tests/kafka/lib/installed` installs one")
        return 0
    first, *_, last = cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as name:
        os.sched_setaffinity(0, {last})
        with kafka_cluster(Path(name) / "cluster") as cluster:
            with on_core(first):
                catching_up(cluster, rounds)
            os.sched_setaffinity(0, cores)
            brokers = ", ".join(f'"{address}"' for address in cluster.addresses)
            config = f'{WITHOUT}[sinks.bus]\ntype = "kafka"\nbrokers = [{brokers}]\n'
            print(f"kafka: /track with a kafka sink and without, {rounds} rounds of {seconds} s each")
            beside((config, WITHOUT), usual(), rounds, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
