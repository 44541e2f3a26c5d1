"""A sink as delivery uses it: batches with tokens, and a flush after each write to a buffering sink."""

from __future__ import annotations

from collections.abc import Sequence

from ingestd.api.errors import SinkReject
from ingestd.api.events import Record
from ingestd.api.record_batch import Batch
from ingestd.api.sink import Sink, Span

__all__ = ["DeliveredSink", "span_of"]


def span_of(records: Sequence[Record]) -> Span:
    return Span(records[0].position, records[-1].position, records[-1].at)


class DeliveredSink(Sink):
    """Passes each batch on like delivery. A write of this sink means that the batch is durable."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink.name, sink.options)
        self._sink = sink
        self._is_empty = True

    async def open(self) -> None:
        await self._sink.open()
        self._is_empty = True

    async def write(self, batch: Sequence[Record]) -> None:
        given = Batch(batch) if self._sink.stable_batches else batch
        if not self._sink.buffering:
            await self._sink.write(given)
            return
        if not self._is_empty:  # after a failed or cancelled flush
            await self._sink.close()
            await self._sink.open()
        self._is_empty = False
        try:
            await self._sink.write(given)
        except SinkReject:
            self._is_empty = True
            raise
        await self._sink.flush(span_of(batch))
        self._is_empty = True

    async def check(self) -> None:
        await self._sink.check()

    async def close(self) -> None:
        await self._sink.close()
        self._is_empty = True
