"""The settings of librdkafka, made of the options of the sink."""

from __future__ import annotations

import logging
import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from ingestd.api.errors import ConfigError
from ingestd.api.options import Options, Secret, Url

__all__ = ["KafkaOptions", "check_options", "client_settings", "lone_settings", "producer_settings"]

_Count = Annotated[int, Meta(ge=1, le=10_000)]


class KafkaOptions(Options):
    brokers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Some brokers of the cluster as `host:port`. They tell the others."""
    topic: str = "ingestd"
    """May contain {type}, {tenant} and {key}, the event key."""
    create: bool = True
    """Whether the sink creates a missing topic. It never changes an existing one."""
    partitions: _Count | None = None
    """The partitions of a topic that the sink creates. The default is the brokers'."""
    replicas: _Count | None = None
    """The replicas of a topic that the sink creates. The default is the brokers'."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    tls: bool = False
    ca_file: Path | None = None
    """Certificates to trust instead of the system's. The connection then uses TLS."""
    certificate: Path | None = None
    """A certificate of the client, for brokers that want one. The connection then uses TLS."""
    certificate_key: Path | None = None
    """The private key of the certificate."""
    user: str | None = None
    password: Secret | None = None
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """The SASL mechanism, if there is a user."""
    schema_registry: Url | None = None
    """A registry with Confluent's API, perhaps with user and password, that gets the schemas of events."""


_LARGEST = 1_000_000_000  # bytes of a message, the most that librdkafka has. The topic's own limit is lower.

_silent = logging.Logger("librdkafka")
_silent.disabled = True
"""librdkafka logs errors, the gravest on standard error. The sink raises the same errors, and the daemon logs them."""


def check_options(path: str, options: KafkaOptions) -> None:
    """Raises `ConfigError` for options that can never work."""
    for index, broker in enumerate(options.brokers):
        if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,@\[\]]+):[0-9]{1,5}", broker):
            raise ConfigError(f'{path}.brokers[{index}]: expected a host and a port, such as "kafka.example:9092"')
    if options.user == "":
        raise ConfigError(f"{path}.user: expected a name")
    if (options.user is None) != (options.password is None):
        missing = "user" if options.user is None else "password"
        raise ConfigError(f"{path}.{missing}: give both user and password, or neither")
    if (options.certificate is None) != (options.certificate_key is None):
        missing = "certificate" if options.certificate is None else "certificate_key"
        raise ConfigError(f"{path}.{missing}: give both certificate and certificate_key, or neither")
    _check_files(path, options)


def _check_files(path: str, options: KafkaOptions) -> None:
    """Read the certificates once, because librdkafka's message names neither the option nor the reason."""
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
    except OSError as error:
        raise ConfigError(f"{path}.ca_file: {options.ca_file} cannot be used: {error}") from None
    if options.certificate is not None and options.certificate_key is not None:
        try:
            # An empty password makes a protected key an error. Otherwise OpenSSL would ask on the terminal.
            context.load_cert_chain(options.certificate, options.certificate_key, password="")
        except OSError as error:
            raise ConfigError(
                f"{path}.certificate: {options.certificate} with {options.certificate_key} cannot be used: {error}"
            ) from None


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """The settings of every client: addresses, TLS and credentials."""
    uses_tls = options.tls or options.ca_file is not None or options.certificate is not None
    uses_sasl = options.user is not None
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(options.brokers),
        "client.id": "ingestd",
        "security.protocol": ("SASL_" if uses_sasl else "") + ("SSL" if uses_tls else "PLAINTEXT"),
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1000,
        "enable.metrics.push": False,
        "log.connection.close": False,  # brokers close idle connections
        "log_level": 0,
        "logger": _silent,
    }
    if uses_tls:
        settings["ssl.ca.location"] = "probe" if options.ca_file is None else str(options.ca_file)
        if options.certificate is not None:
            settings["ssl.certificate.location"] = str(options.certificate)
            settings["ssl.key.location"] = str(options.certificate_key)
    if uses_sasl:
        settings |= {
            "sasl.mechanism": options.sasl,
            "sasl.username": options.user,
            "sasl.password": str(options.password),
        }
    return settings


def producer_settings(options: KafkaOptions, batch_size: int) -> dict[str, Any]:
    """The settings of a producer that neither loses, repeats nor reorders messages while it lives.

    After an error that leaves a gap in a partition, the producer sends nothing more.
    """
    return _producer_settings(options) | {
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "batch.size": batch_size,
        "linger.ms": 1,  # the first message of a batch waits for the others
    }


def lone_settings(options: KafkaOptions) -> dict[str, Any]:
    """The settings of a producer for one message at a time."""
    return _producer_settings(options) | {"linger.ms": 0}


def _producer_settings(options: KafkaOptions) -> dict[str, Any]:
    """A producer never gives a message up. The sink decides how long it waits."""
    return client_settings(options) | {
        "acks": "all",
        "message.timeout.ms": 0,
        "message.max.bytes": _LARGEST,
        "queue.buffering.max.messages": 0,
        "compression.type": options.compression,
        "partitioner": "murmur2_random",  # as in Kafka's Java clients
    }
