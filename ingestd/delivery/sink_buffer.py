"""The buffer of a buffering sink, as delivery knows it: its records, and calls that keep its content known."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ingestd.api.errors import SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.sink import Sink, Span

from .batch_writer import GivenUp, StepResult
from .shared_sink import within

__all__ = ["Buffered", "SinkBuffer"]

_MOST_GIVEN_UP = 2 << 20  # bytes of given-up records that may wait for a flush


class Buffered:
    """The records since the cursor that wait for a flush, including filtered and given-up ones."""

    def __init__(self) -> None:
        self.first = 0
        """The position of the first record."""
        self.last: Record | None = None
        """The last record, or None while there are none."""
        self.delivered = 0
        """The number of records that the sink has in its buffer."""
        self.filtered = 0
        self.given_up: list[tuple[Record, GivenUp]] = []
        self.since = 0.0
        """When the first record came, on the monotonic clock."""
        self.is_durable = False
        """Whether a flush has succeeded, and only its commit is missing."""
        self._given_up_bytes = 0

    def add(self, result: StepResult) -> None:
        if self.last is None:
            self.first, self.since = result.records[0].position, time.monotonic()
        self.last = result.records[result.done - 1]
        self.delivered += result.delivered
        self.filtered += result.filtered
        self.given_up += result.given_up
        self._given_up_bytes += sum(len(record.body) for record, _ in result.given_up)

    @property
    def age(self) -> float:
        return time.monotonic() - self.since

    @property
    def has_much_given_up(self) -> bool:
        return self._given_up_bytes >= _MOST_GIVEN_UP


class SinkBuffer:
    """The calls to a buffering sink. Closing and opening the sink empties a buffer with unknown content first."""

    def __init__(self, sink: Sink, timeout: float) -> None:
        self._sink = sink
        self._timeout = timeout
        self._is_known = True
        self.flushes_each = False
        """Whether `write` makes each batch durable, like a sink without a buffer."""

    def forget(self) -> None:
        """The sink was closed, so its buffer is empty."""
        self._is_known = True

    def discard(self) -> None:
        """Empty the buffer before the next call."""
        self._is_known = False

    async def write(self, batch: Sequence[Record]) -> None:
        """Add a batch to the buffer."""
        if self.flushes_each:
            await self.write_through(batch)
        else:
            await self._empty_unknown()
            await self._sink.write(batch)

    async def prepare(self) -> None:
        """Empty the buffer if its content is unknown."""
        await within(self._timeout, self._empty_unknown(), "opening it again", SinkRetry)

    async def flush(self, span: Span | None) -> None:
        # A flush that takes long is no sign of a faulty record.
        await within(self._timeout, self._sink.flush(span), "a flush", SinkRetry)

    async def write_through(self, batch: Sequence[Record]) -> None:
        """Write a batch like a sink without a buffer."""
        await self._empty_unknown()
        self._is_known = False
        try:
            await self._sink.write(batch)
        except SinkReject:
            self._is_known = True
            raise
        await self._sink.flush(None)
        self._is_known = True

    async def _empty_unknown(self) -> None:
        if not self._is_known:
            await self._sink.close()
            await self._sink.open()
            self._is_known = True
