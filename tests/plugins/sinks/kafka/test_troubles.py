"""What the kafka sink does in each trouble that its page lists, through a real daemon.

In each trouble the sink is failing, and its status, metrics and log say why. It waits, although it fails for many more
times than `retry.attempts`. Afterwards its target has each record once, and there is no dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.disks import full
from tests.support.kafka_sink import Kafka, broker_with_logins
from tests.support.ports import free_port
from tests.support.troubled_sink import TroubledSink, check_page, troubled_sink


class Bus(NamedTuple):
    kafka: Kafka
    disk: Path
    sink: TroubledSink

    @contextmanager
    def full(self) -> Iterator[None]:
        """A broker whose only disk is full ends, and does not start again until there is space."""
        (broker,) = self.kafka.cluster.brokers
        with full(self.disk):
            broker.wait_until_ended()
            yield
        self.kafka.cluster.start()

    @contextmanager
    def changed(self, old: str, new: str) -> Iterator[None]:
        self.sink.reconfigure(old, new)
        try:
            yield
        finally:
            self.sink.reconfigure(new, old)

    def away_at_the_start(self) -> Any:
        return self.changed(f":{self.kafka.ports['LOGIN']}", f":{free_port()}")

    @contextmanager
    def without_rights(self) -> Iterator[None]:
        self.kafka.cluster.deny("shop", "WRITE", "events")
        try:
            yield
        finally:
            self.kafka.cluster.allow("shop", "WRITE", "events")


KAFKA: dict[str, tuple[Callable[[Bus], Any], str, int]] = {
    "full": (Bus.full, "Connection refused", 3),
    "unreachable at the start": (Bus.away_at_the_start, "Connection refused", 3),
    "wrong password": (lambda bus: bus.changed('"correct"', '"incorrect"'), "uthentication", 3),
    "a right is missing": (Bus.without_rights, r"\(TOPIC_AUTHORIZATION_FAILED\)", 4),
    "no topic": (lambda bus: bus.changed('"events"', '"other"'), "there is no topic other", 3),
}


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("kafka")
    with broker_with_logins(folder, disk_megabytes=64) as kafka:
        kafka.cluster.create("events")
        for topic in ("events", "other"):
            kafka.cluster.allow("shop", "WRITE", topic)

        def read() -> list[Any]:
            return [record for record in kafka.cluster.records("events") if record["type"] == "event"]

        options = (
            f'type = "kafka"\nbrokers = ["127.0.0.1:{kafka.ports["LOGIN"]}"]\ntopic = "events"\ncreate = false\n'
            'user = "shop"\npassword = "correct"'
        )
        with troubled_sink(tmp_path_factory.mktemp("shop"), options, read) as sink:
            yield Bus(kafka, kafka.cluster.brokers[0].data, sink)


@pytest.mark.parametrize("trouble", KAFKA)
def test_kafka(bus: Bus, trouble: str) -> None:
    begin, message, failures = KAFKA[trouble]
    bus.sink.waits_through(lambda: begin(bus), message, failures)


def test_the_page_lists_these_troubles_and_their_reasons() -> None:
    check_page("kafka.md", {name: message for name, (_, message, _) in KAFKA.items()})
