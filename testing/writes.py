"""Writes to a sink as the daemon makes them: with tokens and flushes, cancelled, repeated, without rejected records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from ingestd.api.errors import SinkReject
from ingestd.api.events import Record
from ingestd.api.record_batch import Batch
from ingestd.api.sink import Sink, Span

__all__ = [
    "DeliveredSink", "Pause", "cancelled_after", "interrupted", "pauses", "rejected_of", "span_of", "until_taken",
]  # fmt: skip

_PATIENCE = 60.0
_WRITE = 10.0
"""Time limit in seconds for one write after the connection was broken."""


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


class Pause:
    """A number of turns of the event loop, or of seconds."""

    def __init__(self, turns: int = 0, seconds: float = 0.0) -> None:
        self.turns = turns
        self.seconds = seconds

    async def over(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.seconds:
            await asyncio.sleep(self.seconds)


def pauses() -> list[Pause]:
    """Pauses from none to longer than most writes take."""
    seconds = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12)
    return [*map(Pause, range(16)), *(Pause(seconds=each) for each in seconds)]


async def cancelled_after(pause: Pause, work: Coroutine[Any, Any, None]) -> bool:
    """Cancel the work after a pause. Returns whether it was done before."""
    task = asyncio.create_task(work)
    await pause.over()
    done = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return done


async def interrupted(write: Coroutine[Any, Any, None], pause: Pause, interruption: Awaitable[None]) -> None:
    """Break the connection during a write. The write may fail, or hang until the time limit."""
    writing = asyncio.create_task(write)
    await pause.over()
    await interruption
    with suppress(Exception):
        async with asyncio.timeout(_WRITE):
            await writing
    _refuse_reject(writing)


async def until_taken(sink: Sink, batch: Sequence[Record]) -> None:
    """Repeat the write until it returns, as the daemon does."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        writing = asyncio.create_task(sink.write(batch))
        try:
            async with asyncio.timeout(_WRITE):
                return await writing
        except Exception as error:
            _refuse_reject(writing)
            if time.monotonic() > deadline:
                raise AssertionError(f"no write succeeds within {_PATIENCE:g} s after the connection broke") from error
        await asyncio.sleep(0.05)


def _refuse_reject(writing: asyncio.Task[None]) -> None:
    error = None if writing.cancelled() else writing.exception()
    assert not isinstance(error, SinkReject), f"rejected for good while the connection was broken: {error.reasons}"


async def rejected_of(sink: Sink, batch: Sequence[Record]) -> set[int]:
    """The indexes of rejected records. All other records are written again, until the sink takes them."""
    left = [*range(len(batch))]
    rejected: set[int] = set()
    while left:
        try:
            await sink.write([batch[index] for index in left])
        except SinkReject as error:
            reasons, written = error.reasons, error.written
        else:
            break
        assert reasons, "a SinkReject must name the rejected records"
        assert {*reasons} <= {*range(len(left))}, f"it names {[*reasons]} of a batch of {len(left)}"
        assert all(map(str, reasons.values())), "each rejected record needs a reason, for the dead letter"
        rejected |= {left[at] for at in reasons}
        left = [index for at, index in enumerate(left) if at >= written and at not in reasons]
    return rejected
