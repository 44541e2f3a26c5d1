"""A stop after a pause repeats no batch that a sink has written ahead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingestd.api.events import Record
from ingestd.api.options import Duration
from ingestd.api.sink import Sink
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.operator_commands import set_paused
from ingestd.delivery.options import BatchOptions
from ingestd.testing.sinks import make_records
from tests.support.backends import sqlite_backend
from tests.support.journals import append, running, until


class Slow(Sink):
    def __init__(self) -> None:
        self.name = "slow"
        self.taken: Counter[int] = Counter()

    async def write(self, batch: Sequence[Record]) -> Any:
        await asyncio.sleep(0.05)
        self.taken.update(record.position for record in batch)


async def test_a_stop_while_paused_repeats_nothing(tmp_path: Path) -> None:
    sink = Slow()
    options = SinkOptions(
        type="slow", start="beginning", timeout=Duration(5.0), batch=BatchOptions(max_events=5, max_wait=Duration(0.0))
    )
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(200))
        async with running(backend, SinkConsumer(sink, options)) as (status,):
            await until(lambda: status.position >= 20)
            await set_paused(backend.store, "slow", paused=True)
            await until(lambda: status.paused)
            await until(lambda: status.position == max(sink.taken))
        await set_paused(backend.store, "slow", paused=False)
        async with running(backend, SinkConsumer(sink, options)) as (status,):
            await until(lambda: status.position == 200)
    repeated = [position for position, times in sink.taken.items() if times > 1]
    assert not repeated
