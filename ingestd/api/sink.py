"""The contract of a sink, a destination of records. A sink is one short file; see docs/writing-plugins.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .events import Record
from .options import Options

__all__ = ["Sink"]


class Sink:
    """Subclass it, register it in `register_sinks`, and configure it as `[sinks.NAME] type = …`.

    The daemon does batching, retries, cursors and isolation. Records come in journal order, one `write` at a time. A
    record may come again after a crash or a failure; its `id` identifies it.
    """

    Options: ClassVar[type[Options]] = Options
    """The options of this kind of sink, in addition to the options that every sink has."""

    def __init__(self, name: str, options: Any) -> None:
        """`name` is NAME of `[sinks.NAME]`, `options` an instance of `Options`.

        Raise `ConfigError` for options that can never work.
        """
        self.name = name
        self.options = options

    async def open(self) -> None:
        """Connect. A failure is retried like a write; answers never wait for it."""

    async def write(self, batch: Sequence[Record]) -> None:
        """Write the batch. Returning means that it is durable in the destination. If it raises, the batch comes again.

        Raise `SinkRetry` only for a failure of the sink itself (full, read-only, over a quota, starting). Such a
        failure never counts against a record. Raise `SinkReject` for records that the destination will never accept.
        Any other exception may be the fault of a record. A record that keeps failing while the sink takes new records
        becomes a dead letter.
        """
        raise TypeError(f"{type(self).__name__} has no write()")

    async def check(self) -> None:
        """Raise the error that a write would raise now, as far as the sink can tell without writing."""

    async def close(self) -> None:
        """Release everything. No write follows, unless `open` is called again.

        That happens if several daemons share a journal and this daemon takes the sink again.
        """
