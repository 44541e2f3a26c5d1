"""The options of a nats sink."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ingestd.api.options import Duration, Options, PositiveDuration, Url

__all__ = ["NatsOptions"]


class NatsOptions(Options):
    stream: Annotated[str, Meta(pattern=r"^[^\s.*>/\\\x00-\x1f\x7f]+$")]
    url: Url | None = None
    """`nats://host:4222`, or `tls://…` to require TLS. It may have `user:password@` or `:token@`."""
    servers: tuple[Url, ...] = ()
    """Several URLs instead of `url`: the servers of a cluster, tried in turn."""
    subject: str = "ingestd.{type}"
    """May contain {type}, {tenant} and {key}, the event key."""
    create: bool = True
    """Whether the sink creates a missing stream. It never changes an existing one."""
    duplicate_window: PositiveDuration = Duration.parse("2m")
    """How long a stream that the sink creates remembers ids."""
    credentials: Path | None = None
    """A file with a JWT and its seed, as made by `nsc`."""
    ca_file: Path | None = None
    """Certificates to trust instead of the system's. The connection must then use TLS."""
