"""The contract of a sink: where records go. A sink is one short file; see docs/writing-plugins.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .events import Record
from .options import Options

__all__ = ["Sink"]


class Sink:
    """Subclass it, register it in `register_sinks`, and configure it as `[sinks.NAME] type = …`.

    Batching, retries, the place in the journal and isolation are not a sink's business. Records
    come in journal order, one `write` at a time, and may come again after a crash: the record's
    `id` tells.
    """

    Options: ClassVar[type[Options]] = Options
    """The sink's own options, beside the common ones every sink has."""

    def __init__(self, name: str, options: Any) -> None:
        """`name` is NAME of `[sinks.NAME]`, `options` an instance of `Options`.

        Raise `ConfigError` for options that can never work.
        """
        self.name = name
        self.options = options

    async def open(self) -> None:
        """Connect. Failing is retried like a write; answers never wait for it."""

    async def write(self, batch: Sequence[Record]) -> None:
        """Write the batch. Returning means that it is durable there; whatever is raised, the batch comes again.

        Raise `SinkRetry` for trouble that is known to be the sink's own (full, read-only, over a quota, starting):
        it never counts against a record. Raise `SinkReject` for records that will never be taken. Any other
        exception may be a record's fault: one record that keeps failing while new ones are taken is given up.
        """
        raise TypeError(f"{type(self).__name__} has no write()")

    async def check(self) -> None:
        """Raise what a write would raise now, as far as can be told without writing."""

    async def close(self) -> None:
        """Let go of everything; nothing is written after it, unless it is opened again.

        That happens where several daemons share a journal, when this one goes on with the sink anew.
        """
