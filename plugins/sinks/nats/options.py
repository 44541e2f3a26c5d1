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
    """`nats://host:4222`, or `tls://` where there must be TLS; with `user:password@` or `:token@`."""
    servers: tuple[Url, ...] = ()
    """Several URLs in its place: the servers of a cluster, tried in turn."""
    subject: str = "ingestd.{type}"
    """May have {type}, {tenant} and {key}, the event key."""
    create: bool = True
    """Whether a stream that is not there is made. One that is there is never changed."""
    duplicate_window: PositiveDuration = Duration.parse("2m")
    """For how long the stream that is made remembers ids."""
    credentials: Path | None = None
    """A file with a JWT and its seed, as `nsc` makes it."""
    ca_file: Path | None = None
    """The certificates that vouch for the servers, in place of the system's; there must be TLS then."""
