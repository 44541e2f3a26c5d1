"""A connection for questions about the cluster and its topics."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

from ingestd.api.errors import SinkRetry

from .errors import HOPELESS, plain
from .options import KafkaOptions
from .settings import client_settings

__all__ = ["Cluster"]

_ANSWER_TIMEOUT = 5.0
_LAST_HOPE = 1.0  # seconds for other brokers after an error of one that would explain the failure
_LOOK = 0.05  # seconds between two looks at an answer
_FIRST_WAIT = 0.25  # seconds for the first attempt to get an answer; each further attempt has twice as long
_UNKNOWN_TOPIC, _TOPIC_EXISTS = 3, 36  # codes of the brokers
_ANY_TOPIC = "__consumer_offsets"


class Cluster:
    """A context manager. Its methods block until `stop`, and raise `SinkRetry`: no record is at fault.

    Questions go through a consumer that reads nothing, because a producer that asks for a topic may create it.
    confluent-kafka's AdminClient can ask too, but librdkafka ends the process if a late answer comes at a bad moment
    (https://github.com/confluentinc/librdkafka/issues/4605).
    """

    def __init__(self, options: KafkaOptions, stop: Event) -> None:
        self._options = options
        self._stop = stop
        self._errors: list[Any] = []

    def __enter__(self) -> Cluster:
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {**client_settings(self._options), "error_cb": self._errors.append}
        self._client = Consumer({**settings, "group.id": "ingestd"})
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def reach(self) -> None:
        """See whether a broker answers."""
        self._ask(_ANY_TOPIC)

    def find(self, name: str) -> Any:
        """The metadata of a topic, or None if there is no such topic."""
        topic = self._ask(name)
        if topic.error is None:
            return topic
        if topic.error.code() != _UNKNOWN_TOPIC:
            raise SinkRetry(f"the topic {name} cannot be inspected: {plain(topic.error)}")
        return None

    def create(self, name: str) -> None:
        """Create a topic, unless another client has just created it."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        new = NewTopic(name, self._options.partitions or -1, self._options.replicas or -1)  # -1: the brokers' default
        client = AdminClient(client_settings(self._options))
        (answer,) = client.create_topics([new], request_timeout=10 * _ANSWER_TIMEOUT).values()
        until = time.monotonic() + _ANSWER_TIMEOUT
        while not answer.done():
            client.poll(_LOOK)
            self._go_on(until)
        error = answer.exception()
        if isinstance(error, KafkaException):
            if error.args[0].code() != _TOPIC_EXISTS:
                raise SinkRetry(f"the topic {name} cannot be created: {plain(error.args[0])}")
        elif error is not None:
            raise error

    def _ask(self, name: str) -> Any:
        """The metadata of a topic, with an error if there is no such topic."""
        from confluent_kafka import KafkaException

        wait, until = _FIRST_WAIT, time.monotonic() + _ANSWER_TIMEOUT
        while True:
            try:
                return self._client.list_topics(name, timeout=wait).topics[name]
            except KafkaException:  # no answer in that time; `_errors` gets the reason
                self._client.poll(_LOOK)
            if any(error.code() in HOPELESS for error in self._errors):
                until = min(until, time.monotonic() + _LAST_HOPE)
            self._go_on(until)
            wait *= 2

    def _go_on(self, until: float) -> None:
        if self._stop.is_set():
            raise SinkRetry("it was stopped")
        if time.monotonic() > until:
            # The first error of the connections says more than the later ones.
            none = f"the brokers do not answer within {_ANSWER_TIMEOUT:g} s"
            raise SinkRetry(plain(self._errors[0]) if self._errors else none)
