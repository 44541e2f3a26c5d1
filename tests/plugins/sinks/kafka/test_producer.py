"""The producer of the kafka sink, with a client whose answers the test chooses: no message is sent twice needlessly."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ingestd.api.errors import SinkRetry
from ingestd.plugins.sinks.kafka.errors import TOO_LARGE
from ingestd.plugins.sinks.kafka.messages import Message
from ingestd.plugins.sinks.kafka.producer import Producer, TooLarge, Unacknowledged
from ingestd.plugins.sinks.kafka.settings import KafkaOptions


class Broker:
    """Answers each message as `answers` says by its text, and no other. The clients of it are in `clients`."""

    def __init__(self) -> None:
        self.answers: dict[bytes, int | None] = {}
        """The code of an error, or None for an acknowledgement."""
        self.clients: list[Client] = []

    def connect(self, settings: dict[str, Any]) -> Client:
        self.clients.append(Client(self, settings))
        return self.clients[-1]

    @property
    def sent(self) -> list[list[bytes]]:
        """The messages of each client."""
        return [client.sent for client in self.clients]


class Client:
    """All messages are on their way at once, and an idempotent client ends with the first error, as librdkafka's."""

    def __init__(self, broker: Broker, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._is_idempotent = settings.get("enable.idempotence", False)
        self._waiting: dict[bytes, Any] = {}
        self.sent: list[bytes] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def produce(self, _topic: str, body: bytes, _key: bytes, *, on_delivery: Any, **_: object) -> None:
        self._waiting[body] = on_delivery
        self.sent.append(body)

    def poll(self, _seconds: float) -> None:
        answers = self._broker.answers
        for body in [body for body in self._waiting if body in answers]:
            code = answers[body]
            self._waiting.pop(body)(None if code is None else KafkaError(code), None)
            if code is not None and self._is_idempotent:
                raise KafkaException(KafkaError(-148))

    def purge(self, *, in_flight: bool = True, blocking: bool) -> None:
        if in_flight:
            self._waiting.clear()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr("confluent_kafka.Producer", broker.connect)
    return broker


def messages(*texts: bytes) -> list[Message]:
    return [Message((text.decode(), 1), "topic", b"key", text, [], 0) for text in texts]


def stopped() -> Event:
    stop = Event()
    stop.set()
    return stop


@pytest.fixture
def producer() -> Producer:
    return Producer(KafkaOptions(brokers=("127.0.0.1:9092",)))


def test_a_stop_behind_a_refused_message_loses_no_answer(broker: Broker, producer: Producer) -> None:
    batch = messages(b"large", b"slow")
    broker.answers[b"large"] = TOO_LARGE
    for _ in range(2):
        with pytest.raises(SinkRetry, match="it was stopped"):
            producer.send(batch, stopped())
    broker.answers[b"slow"] = None
    with pytest.raises(TooLarge):
        producer.send(batch, Event())
    assert producer.has(batch[1])
    assert broker.sent == [[b"large", b"slow"], [b"large"]]


def test_a_stop_while_messages_are_sent_alone_loses_no_answer(broker: Broker, producer: Producer) -> None:
    batch = messages(b"slow", b"next")
    with pytest.raises(Unacknowledged):
        next(producer.send_alone(batch, stopped()))
    broker.answers.update({b"slow": None, b"next": None})
    producer.send(batch, Event())
    assert broker.sent == [[b"slow"], [b"next"]]


def test_answers_that_do_not_come_are_waited_for_once(
    broker: Broker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestd.plugins.sinks.kafka.producer._LAST_ANSWERS", 0.0)
    batch = messages(b"lost")
    with pytest.raises(Unacknowledged):
        next(producer.send_alone(batch, stopped()))
    with pytest.raises(Unacknowledged):
        producer.send(batch, stopped())
    assert broker.sent == [[b"lost"], [b"lost"]]
