"""Writes to a sink as delivery makes them: cancelled, made again, without what was rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from ingestd.api.errors import SinkReject
from ingestd.api.events import Record
from ingestd.api.sink import Sink

__all__ = ["Pause", "cancelled_after", "interrupted", "pauses", "rejected_of", "until_taken"]

_PATIENCE = 60.0
_WRITE = 10.0
"""Seconds that one write may take where the connection has been broken."""


class Pause:
    """So many turns of the event loop, or so many seconds."""

    def __init__(self, turns: int = 0, seconds: float = 0.0) -> None:
        self.turns = turns
        self.seconds = seconds

    async def over(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.seconds:
            await asyncio.sleep(self.seconds)


def pauses() -> list[Pause]:
    """From none at all up to longer than most writes take."""
    seconds = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12)
    return [*map(Pause, range(16)), *(Pause(seconds=each) for each in seconds)]


async def cancelled_after(pause: Pause, work: Coroutine[Any, Any, None]) -> bool:
    """Returns whether the work was done by then."""
    task = asyncio.create_task(work)
    await pause.over()
    done = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return done


async def interrupted(write: Coroutine[Any, Any, None], pause: Pause, interruption: Awaitable[None]) -> None:
    """Break the connection amid a write, which may fail, and may hang for as long as a time limit lets it."""
    writing = asyncio.create_task(write)
    await pause.over()
    await interruption
    with suppress(Exception):
        async with asyncio.timeout(_WRITE):
            await writing
    _refuse_reject(writing)


async def until_taken(sink: Sink, batch: Sequence[Record]) -> None:
    """Write again and again until it returns, as delivery does."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        writing = asyncio.create_task(sink.write(batch))
        try:
            async with asyncio.timeout(_WRITE):
                return await writing
        except Exception as error:
            _refuse_reject(writing)
            if time.monotonic() > deadline:
                raise AssertionError(f"nothing is taken {_PATIENCE:g} s after the connection broke") from error
        await asyncio.sleep(0.05)


def _refuse_reject(writing: asyncio.Task[None]) -> None:
    error = None if writing.cancelled() else writing.exception()
    assert not isinstance(error, SinkReject), f"rejected for good while the connection was broken: {error.reasons}"


async def rejected_of(sink: Sink, batch: Sequence[Record]) -> set[int]:
    """The indexes of what the sink rejects; all others are written again, until it takes them."""
    left = [*range(len(batch))]
    while left:
        try:
            await sink.write([batch[index] for index in left])
        except SinkReject as error:
            reasons = error.reasons
        else:
            break
        assert reasons, "a SinkReject must name what is rejected"
        assert {*reasons} <= {*range(len(left))}, f"it names {[*reasons]} of a batch of {len(left)}"
        assert all(map(str, reasons.values())), "each one needs a reason, for the dead letter"
        left = [index for at, index in enumerate(left) if at not in reasons]
    return {*range(len(batch))} - {*left}
