"""Real Apache Kafka for a test: brokers in KRaft mode on free ports, with separate data. They are killed at the end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from .ports import free_port
from .signals import send_signal

__all__ = [
    "ARCHIVE",
    "CLASSES",
    "FORMATTED",
    "KafkaBroker",
    "KafkaCluster",
    "Stored",
    "is_installed",
    "kafka_cluster",
]

_admin: Any = import_module("confluent_kafka.admin")  # its types name only a part of it

_LIB = Path(__file__).parents[1] / "kafka" / "lib"
is_installed = (_LIB / "installed").exists() and shutil.which("java") is not None
FORMATTED = _LIB / "formatted"
"""The data of a broker that has never run. The program that makes them takes as long as a broker to start."""
CLASSES = _LIB / "classes.jsa"
# With it, a broker needs 40 % less CPU time for its start. Java ignores an archive that does not fit.
ARCHIVE = [f"-XX:SharedArchiveFile={CLASSES}"] if CLASSES.exists() else []
_NONE: Mapping[str, str] = MappingProxyType({})
_PATIENCE = 60.0
_PATIENCE_AT_START = 300.0
"""A start takes a second of CPU time, which a broker does not always get in a minute beside thirty other processes."""
_CLUSTER_ID = "aW5nZXN0ZC10ZXN0cy0wMA"
_SETTINGS = {
    "log.cleaner.dedupe.buffer.size": str(2 << 20),  # a broker fills this memory with zeros when it starts
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "log.retention.ms": "-1",  # the records of tests are older than a week, and messages have their times
    "message.max.bytes": str(8 << 20),
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    # Few threads: each costs a start some time, and tests have few clients.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    # A cluster of a test notices soon that a broker is gone.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}


class Stored(NamedTuple):
    """A message in a topic."""

    partition: int
    key: str
    headers: dict[str, str]
    body: bytes
    at: int
    """The time of the message in milliseconds."""


class KafkaBroker:
    """A process that is both a broker and a controller."""

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.data = folder / "data"
        self.number = number
        self.port = free_port()
        self.controller_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, settings: Mapping[str, str], listeners: Mapping[str, tuple[int, int]]) -> None:
        """Writes the configuration. `listeners`: the port of each further listener, and the port that clients use."""
        ports = {"PLAINTEXT": (self.port, self.port), **listeners}
        own = {
            "node.id": str(self.number),
            "log.dirs": str(self.data),
            "listeners": ",".join(
                [f"{name}://127.0.0.1:{port}" for name, (port, _) in ports.items()]
                + [f"CONTROLLER://127.0.0.1:{self.controller_port}"]
            ),
            "advertised.listeners": ",".join(
                f"{name}://{'localhost' if 'TLS' in name else '127.0.0.1'}:{port}" for name, (_, port) in ports.items()
            ),
        }
        lines = [f"{name}={value}" for name, value in {**_SETTINGS, **own, **settings}.items()]
        (self.folder / "server.properties").write_text("\n".join(lines))

    def format(self) -> None:
        """Makes the folder of the data."""
        with (self.folder / "log").open("ab") as log:
            subprocess.run(
                _java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)),
                check=True, stdout=log, stderr=log, cwd=_LIB,
            )  # fmt: skip

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def start(self) -> None:
        """Starts the process, without waiting until it is ready."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                _java("kafka.Kafka", str(self._properties)), stdout=log, stderr=log, cwd=_LIB
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_AT_START
        while not self._listens():
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def log(self) -> str:
        return (self.folder / "log").read_text()[-5000:]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal: SIGSTOP suspends the broker, and SIGCONT resumes it."""
        assert self._process is not None
        send_signal(self._process, number)

    def wait_until_ended(self) -> None:
        """Waits until the process ends because of a failure."""
        assert self._process is not None
        self._process.wait(_PATIENCE_AT_START)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(20)


class KafkaCluster:
    """Brokers that know each other. Topics are made with one partition, unless they are made by hand."""

    def __init__(self, folder: Path, brokers: int = 1, settings: Mapping[str, str] = _NONE) -> None:
        self.brokers = [KafkaBroker(folder / f"broker-{number}", number) for number in range(1, brokers + 1)]
        self._listeners: dict[str, tuple[int, int]] = {}
        self._is_formatted = False
        voters = ",".join(f"{each.number}@127.0.0.1:{each.controller_port}" for each in self.brokers)
        self._settings = {"controller.quorum.voters": voters, **settings}

    def listen(self, name: str, *, shown: int | None = None) -> int:
        """Adds a listener to the first broker before the start. `shown`: the port of a proxy before it."""
        port = free_port()
        self._listeners[name] = (port, shown or port)
        return port

    def start(self) -> None:
        """Starts all brokers, again after `kill`."""
        if not self._is_formatted:
            self.format()
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            broker.wait_until_ready()
        self.admin = _admin.AdminClient({"bootstrap.servers": ",".join(self.addresses), "log_level": 0})

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def format(self) -> None:
        """Configures the brokers and makes the folders of their data."""
        for broker in self.brokers:
            broker.configure(self._settings, self._listeners)
        formatted = FORMATTED
        if not formatted.exists():
            self.brokers[0].format()
            formatted = self.brokers[0].data
        for broker in self.brokers:
            if broker.data != formatted:
                _copy_format(formatted, broker)
        self._is_formatted = True

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    def create(self, topic: str, partitions: int = 1, replicas: int = 1, **config: str) -> None:
        """Creates a topic. In the names of its options, `_` stands for a dot."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        self._wait(self.admin.create_topics([_admin.NewTopic(topic, partitions, replicas, config=named)]))

    def delete(self, topic: str) -> None:
        self._wait(self.admin.delete_topics([topic]))

    def alter(self, topic: str, **config: str) -> None:
        entries = [
            _admin.ConfigEntry(name.replace("_", "."), value, incremental_operation=_admin.AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = _admin.ConfigResource(_admin.ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._wait(self.admin.incremental_alter_configs([resource]))

    def add_user(self, name: str, password: str) -> None:
        """Adds a user for both mechanisms of SCRAM."""
        for mechanism in (_admin.ScramMechanism.SCRAM_SHA_256, _admin.ScramMechanism.SCRAM_SHA_512):
            info = _admin.ScramCredentialInfo(mechanism, 4096)
            upsertion = _admin.UserScramCredentialUpsertion(name, info, password.encode())
            self._wait(self.admin.alter_user_scram_credentials([upsertion]))

    def allow(self, user: str, operation: str, topic: str) -> None:
        self._wait(self.admin.create_acls([_right(_admin.AclBinding, user, operation, topic)]))

    def deny(self, user: str, operation: str, topic: str) -> None:
        """Takes a right away that `allow` has given."""
        self._wait(self.admin.delete_acls([_right(_admin.AclBindingFilter, user, operation, topic)]))

    def limit_rate(self, bytes_a_second: float | None) -> None:
        """Sets or removes the quota of every client. confluent-kafka cannot, so this sends the request of Kafka."""

        def text(value: str) -> bytes:
            return struct.pack(">h", len(value)) + value.encode()

        head = struct.pack(">hhi", 49, 0, 1) + text("tests")  # AlterClientQuotas
        entity = struct.pack(">i", 1) + text("client-id") + struct.pack(">h", -1)  # no name: the default of all clients
        change = text("producer_byte_rate") + struct.pack(">d?", bytes_a_second or 0.0, bytes_a_second is None)
        request = head + struct.pack(">i", 1) + entity + struct.pack(">i", 1) + change + b"\0"
        with socket.create_connection(("127.0.0.1", self.brokers[0].port), _PATIENCE) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(1 << 16)
        # Its length, the number of the request, a pause, the number of entries, and the error of the first.
        assert struct.unpack_from(">iiiih", answer)[4] == 0, answer

    def leaders(self, topic: str) -> list[int]:
        """The number of the leader of each partition."""
        partitions = self.admin.list_topics(topic, timeout=_PATIENCE).topics[topic].partitions
        return [partitions[number].leader for number in sorted(partitions)]

    def topics(self) -> set[str]:
        return {*self.admin.list_topics(timeout=_PATIENCE).topics}

    @staticmethod
    def _wait(answers: Mapping[Any, Any]) -> None:
        for answer in answers.values():
            answer.result(_PATIENCE)

    def messages(self, topic: str) -> list[Stored]:
        """All messages of a topic, partition by partition, each in order."""
        consumer = Consumer(
            {
                "bootstrap.servers": ",".join(self.addresses),
                "group.id": "tests",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        found: list[Stored] = []
        try:
            metadata = consumer.list_topics(topic, timeout=_PATIENCE).topics[topic]
            if metadata.error is not None:
                assert metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART, metadata.error
                return []
            for partition in sorted(metadata.partitions):
                found += _read(consumer, TopicPartition(topic, partition, 0))
        finally:
            consumer.close()
        return found

    def records(self, topic: str) -> list[Any]:
        return [json.loads(message.body) for message in self.messages(topic)]


def _right(kind: Any, user: str, operation: str, topic: str) -> Any:
    return kind(
        _admin.ResourceType.TOPIC, topic, _admin.ResourcePatternType.LITERAL, f"User:{user}", "*",
        _admin.AclOperation[operation], _admin.AclPermissionType.ALLOW,
    )  # fmt: skip


def _read(consumer: Consumer, partition: TopicPartition) -> Iterator[Stored]:
    deadline = time.monotonic() + _PATIENCE
    end = _end(consumer, partition)
    if end == 0:
        return
    consumer.assign([partition])
    while consumer.position([partition])[0].offset < end:
        assert time.monotonic() < deadline, "the topic cannot be read"
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            yield _stored(message)


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """The offset of the next message. It is unknown for a moment while the partition has no leader."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            _, end = consumer.get_watermark_offsets(partition, timeout=5)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return end


def _stored(message: Any) -> Stored:
    headers = {name: value.decode() for name, value in message.headers() or []}
    return Stored(message.partition(), message.key().decode(), headers, message.value(), message.timestamp()[1])


def _java(*arguments: str) -> list[str]:
    """The command line, to be run in `_LIB`. The archive fits the same names in the same order only.

    So they are sorted, and relative: a copy of this tree, such as one that CI keeps, has an archive that fits.
    """
    assert is_installed, "Apache Kafka is not installed: make test does it"
    class_path = ":".join(sorted(jar.name for jar in _LIB.glob("*.jar")))
    return [
        "java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", *ARCHIVE,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path, *arguments,
    ]  # fmt: skip


def _copy_format(formatted: Path, other: KafkaBroker) -> None:
    """Copies the data of a broker that has never run. Those of two brokers differ only in two ids."""
    for path in formatted.rglob("*"):
        target = other.data / path.relative_to(formatted)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "meta.properties":
            directory = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            lines = [line for line in path.read_text().splitlines() if not line.startswith(("node.id", "directory.id"))]
            target.write_text("\n".join([*lines, f"node.id={other.number}", f"directory.id={directory}", ""]))
        elif path.is_file():
            target.write_bytes(path.read_bytes())


@contextmanager
def kafka_cluster(folder: Path, brokers: int = 1) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(folder, brokers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
