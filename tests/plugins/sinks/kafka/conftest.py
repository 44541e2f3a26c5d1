"""Fixtures of the tests of the kafka sink: a broker, a topic, and a sink that does not wait long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka_sink import Kafka, broker_with_logins, topic_of


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with broker_with_logins(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return topic_of(tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kafka sink soon gives a broker up."""
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.producer._QUIET", 0.7)
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.topics._ANSWER_TIMEOUT", 2.0)
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.topics._LAST_HOPE", 0.2)
