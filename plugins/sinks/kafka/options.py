"""The options of a kafka sink."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from ingestd.api.options import Options, Secret

__all__ = ["KafkaOptions"]

_Count = Annotated[int, Meta(ge=1, le=10_000)]


class KafkaOptions(Options):
    brokers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Some brokers of the cluster as `host:port`. They tell the others."""
    topic: str = "ingestd"
    """May contain {type} and {tenant}."""
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
