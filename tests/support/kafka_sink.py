"""The kafka sink of a test, and a broker with a listener for each protocol."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.plugins.sinks.kafka import KafkaSink

from .disks import small_disk
from .kafka_cluster import KafkaCluster
from .ports import free_port
from .tcp_proxy import TcpProxy, tcp_proxy
from .webhook_server import make_certificate

__all__ = [
    "Kafka",
    "broker_with_logins",
    "incompressible",
    "make",
    "opened",
    "received_now",
    "topic_of",
    "until_written",
]

_MAP = {
    "PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "PROXIED": "PLAINTEXT", "TLS": "SSL", "MUTUAL_TLS": "SSL",
    "LOGIN": "SASL_PLAINTEXT", "LOGIN_TLS": "SASL_SSL",
}  # fmt: skip
"""The protocol of each listener."""

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Kafka(NamedTuple):
    cluster: KafkaCluster
    proxy: TcpProxy
    """A proxy before a listener of the broker."""
    ports: dict[str, int]
    """The port of each listener with TLS or logins."""
    certificate: Path

    @property
    def behind_proxy(self) -> tuple[str]:
        return (f"127.0.0.1:{self.proxy.port}",)


@contextmanager
def broker_with_logins(folder: Path, disk_megabytes: int | None = None) -> Iterator[Kafka]:
    """A broker with a user `shop`, who has no rights, and a listener for each protocol.

    `disk_megabytes`: its data get a separate disk of this size. The test is skipped if there can be none.
    """
    _, certificate = make_certificate(folder)
    keystore = folder / "keystore.pem"
    keystore.write_bytes(certificate.with_name("localhost-key.pem").read_bytes() + certificate.read_bytes())
    settings = {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in _MAP.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
        "listener.name.mutual_tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=localhost;User:plain",
    }
    for name in ("login", "login_tls"):
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = f'{_PLAIN} user_plain="correct";'
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = _SCRAM
    shown = free_port()
    cluster = KafkaCluster(folder / "cluster", settings=settings)
    target = cluster.listen("PROXIED", shown=shown)
    ports = {name: cluster.listen(name) for name in ("TLS", "MUTUAL_TLS", "LOGIN", "LOGIN_TLS")}
    with ExitStack() as stack:
        if disk_megabytes is not None:
            (broker,) = cluster.brokers
            broker.data.mkdir()
            stack.enter_context(small_disk(broker.data, megabytes=disk_megabytes))
        stack.callback(cluster.kill)
        cluster.start()
        cluster.add_user("shop", "correct")
        yield Kafka(cluster, stack.enter_context(tcp_proxy(shown, target)), ports, certificate)


def topic_of(folder: Path) -> str:
    return f"t-{hashlib.sha256(bytes(folder)).hexdigest()[:16]}"


def make(brokers: Sequence[str], topic: str, **options: Any) -> KafkaSink:
    return KafkaSink("bus", KafkaSink.Options(**{"brokers": tuple(brokers), "topic": topic, **options}))


@asynccontextmanager
async def opened(brokers: Sequence[str], topic: str, **options: Any) -> AsyncIterator[KafkaSink]:
    sink = make(brokers, topic, **options)
    try:
        await sink.open()
        yield sink
    finally:
        await sink.close()


def incompressible(size: int) -> str:
    return b"".join(hashlib.sha256(str(each).encode()).hexdigest().encode() for each in range(size // 64)).decode()


def received_now(records: Sequence[Record]) -> list[Record]:
    """The records with the present time. A broker that restarts knows no repetition of messages older than a day."""
    return [msgspec.structs.replace(record, at=int(time.time() * 1000)) for record in records]


async def until_written(sink: KafkaSink, batch: Sequence[Record]) -> list[str]:
    """Write the batch as the daemon does. Returns the reasons of the failures, which must all be the sink's."""
    reasons = []
    async with asyncio.timeout(60):
        while True:
            try:
                await sink.write(batch)
            except SinkRetry as error:
                reasons.append(str(error))
                batch = batch[error.written :]
            else:
                return reasons
            await asyncio.sleep(0.05)
