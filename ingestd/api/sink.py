"""The contract of a sink, a destination of records. A sink is one short file; see docs/sink-contract.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import md5
from typing import Any, ClassVar, NamedTuple

from .events import Record
from .options import Options

__all__ = ["Digest", "Sink", "Span", "Transform"]

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Takes the JSON object of a record, and returns the object for the sink, or None to leave the record out.

It may change the object that it is given. The `id` must stay. It runs on the event loop and must not block it. If it
raises, the record becomes a dead letter of the sink.
"""


class Span(NamedTuple):
    """A part of the journal that a buffering sink makes durable in one flush."""

    first: int
    """The position of the first record."""
    last: int
    """The position of the last record."""
    at: int
    """The time of the last record in milliseconds. It tells this span from the span of another journal."""
    partition: str = ""
    """The name of the partition, if the store has several. Each has a separate journal with its own positions."""


class Digest(NamedTuple):
    """The ids that a destination has of some time, for a comparison without the ids themselves."""

    size: int
    """The number of ids."""
    sum: int
    """The sum of their numbers (`number_of`), modulo 2**64."""

    @classmethod
    def of(cls, ids: Iterable[str]) -> Digest:
        numbers = [*map(cls.number_of, ids)]
        return cls(len(numbers), sum(numbers) % (1 << 64))

    @staticmethod
    def number_of(id: str) -> int:
        """The first 60 bits of the MD5 of an id, which any database can compute."""
        return int(md5(id.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:15], 16)


class Sink:
    """Subclass it, register it in `register_sinks`, and configure it as `[sinks.NAME] type = …`.

    The daemon does batching, retries, cursors and isolation. Records come in journal order, one `write` at a time. A
    record may come again after a crash or a failure; its `id` identifies it.

    If the store has several partitions, a batch has records of one of them, and the partitions take turns. All records
    of a tenant are in the same partition.
    """

    Options: ClassVar[type[Options]] = Options
    """The options of this kind of sink, in addition to the options that every sink has."""

    stable_batches: ClassVar[bool] = False
    """Whether the end of a batch is stored before its first write, so that a crash does not change the batch.

    Then `write` gets a `Batch` of `ingestd.api.record_batch`, which has a `token`. This costs one more commit a batch.
    """

    buffering: ClassVar[bool] = False
    """Whether `write` only adds records to a buffer, and `flush` makes them durable.

    If the store has several partitions, each of them has an instance of the sink and so a buffer.
    """

    can_verify: ClassVar[bool] = False
    """Whether `digests` and `ids` ask the destination which records it has."""

    flush_after: float = 60.0
    """The seconds after which the daemon flushes records of a buffering sink, even if the buffer is not full."""

    needs_schemas: bool = False
    """Whether the sink uses `schemas`."""

    schemas: Mapping[str, Mapping[str, Any]] = {}
    """The JSON Schema of the `data` of each event key, each complete without other files. It is set before `open`."""

    def __init__(self, name: str, options: Any) -> None:
        """`name` is NAME of `[sinks.NAME]`, `options` an instance of `Options`.

        Raise `ConfigError` for options that can never work.
        """
        self.name = name
        self.options = options

    async def open(self) -> None:
        """Connect. A failure is retried like a write; answers never wait for it. The buffer is empty afterwards."""

    async def write(self, batch: Sequence[Record]) -> None:
        """Write the batch. Returning means that it is durable in the destination. If it raises, the batch comes again.

        Raise `SinkRetry` only for a failure of the sink itself (full, read-only, over a quota, starting). Such a
        failure never counts against a record. Raise `SinkReject` for records that the destination will never accept.
        Any other exception may be the fault of a record. A record that keeps failing while the sink takes new records
        becomes a dead letter.

        A buffering sink only adds the batch to its buffer. If it raises, the buffer must be as before.
        """
        raise TypeError(f"{type(self).__name__} has no write()")

    def is_full(self) -> bool:
        """Whether the buffer must be flushed before the next write. Only buffering sinks need it."""
        return False

    async def flush(self, span: Span | None) -> None:
        """Make the buffer durable and empty it. If it raises, the buffer stays, and `flush` is called again.

        The buffer has the records of `span` that the sink was given. A flush that a crash or a failure has interrupted
        is made again with the same span. Without a span, any of the records may be in the destination already.
        """

    async def check(self) -> None:
        """Raise the error that a write would raise now, as far as the sink can tell without writing."""

    async def digests(self, begin: int, end: int, step: int) -> Mapping[int, Digest]:
        """The digests of the ids that the destination has, for `ingestd sinks verify`, if `can_verify` is set.

        They cover the records received (`Record.received_at`) from `begin` to before `end`, by the time of receipt
        divided by `step`, rounded down. All three are whole seconds in milliseconds. Called without `open`, before
        `close`.
        """
        raise TypeError(f"{type(self).__name__} has no digests()")

    async def ids(self, begin: int, end: int) -> Sequence[str]:
        """The ids of the same records, of a day at most. An id that is there twice may come twice."""
        raise TypeError(f"{type(self).__name__} has no ids()")

    def risks(self) -> Sequence[str]:
        """What somebody on the way to the destination could read or fake with these options, each with its cure.

        `ingestd check` shows them as warnings. `password_in_clear` of `ingestd.api.options` makes most of them. It is
        called after `check()`, so it can also return what that call has found slow or outdated.
        """
        return ()

    async def close(self) -> None:
        """Release everything, and empty the buffer. No write follows, unless `open` is called again.

        That happens if several daemons share a journal and this daemon takes the sink again.
        """
