"""The topics: creating and checking them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from threading import Event
from typing import Any

from ingestd.api.errors import SinkRetry

from .errors import HOPELESS, plain
from .settings import KafkaOptions, client_settings

__all__ = ["Cluster", "Topics"]

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


class Topics:
    """The topics of a sink. All methods block until `stop`, and raise `SinkRetry`: no record is at fault."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._known: set[str] = set()

    def forget(self) -> None:
        """Look for all topics again before the next messages, because a topic may be gone."""
        self._known.clear()

    def reach(self, names: Iterable[str], stop: Event) -> None:
        """Connect to the cluster, and create the topics that do not exist."""
        with Cluster(self._options, stop) as cluster:
            cluster.reach()
            for name in names:
                if self._find(cluster, name) is None:
                    cluster.create(name)
                self._known.add(name)

    def ensure(self, names: AbstractSet[str], stop: Event) -> None:
        """Create the topics that do not exist."""
        if not names <= self._known:
            self.reach(names - self._known, stop)

    def check(self, names: Iterable[str], stop: Event) -> None:
        """Raise the reason why messages to these topics, or to all known ones, would fail."""
        with Cluster(self._options, stop) as cluster:
            cluster.reach()
            for name in names or [*self._known]:
                _check(name, self._find(cluster, name))

    def shortage(self, names: Iterable[str], stop: Event) -> str | None:
        """The reason why the brokers acknowledge no messages to these topics, if they can tell it."""
        try:
            with Cluster(self._options, stop) as cluster:
                for name in names:
                    found = cluster.find(name)
                    _check(name, found)
                    _check_replicas(name, found)
        except SinkRetry as error:
            return str(error)
        return None

    def _find(self, cluster: Cluster, name: str) -> Any:
        found = cluster.find(name)
        if found is None and not self._options.create:
            raise SinkRetry(f"there is no topic {name}, and create is false")
        return found


def _check(name: str, found: Any) -> None:
    for partition in found.partitions.values() if found is not None else ():  # a missing topic is to be created
        if partition.leader < 0:
            raise SinkRetry(f"partition {partition.id} of the topic {name} has no leader")


def _check_replicas(name: str, found: Any) -> None:
    for partition in found.partitions.values() if found is not None else ():
        in_sync, all_ = len(partition.isrs), len(partition.replicas)
        if in_sync < all_:
            raise SinkRetry(f"partition {partition.id} of the topic {name} has {in_sync} of {all_} replicas in sync")
