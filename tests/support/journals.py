"""Helpers to append records to a journal, to run consumers, and to wait for their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from ingestd.api import times
from ingestd.api.backend import Backend
from ingestd.api.consumer import Consumer
from ingestd.api.events import Record
from ingestd.api.journal import Journal
from ingestd.consumers.group import Consumers, ConsumerStatus
from ingestd.support.backoff import Backoff

__all__ = ["QUICK", "append", "read_all", "running", "until"]

QUICK = Backoff(initial=0.001, maximum=0.01)


async def append(backend: Backend, records: Sequence[Record]) -> int:
    """Append records as the pipeline does; returns the position of the last."""
    return await backend.journal.commit(records, backend.store.begin(times.now()))


async def read_all(journal: Journal) -> list[Record]:
    await journal.last()  # other daemons may have appended the newest ones
    records: list[Record] = []
    while some := await journal.read(records[-1].position if records else 0, 10_000):
        records += some
    return records


async def until(condition: Callable[[], object], patience: float = 10.0) -> None:
    """Waits until a condition holds, and fails after `patience` seconds. It asks less often after a while."""
    begun = asyncio.get_running_loop().time()
    while not condition():
        waited = asyncio.get_running_loop().time() - begun
        assert waited < patience, "the condition does not become true"
        await asyncio.sleep(min(max(waited / 20, 0.005), 0.02))


@asynccontextmanager
async def running(
    backend: Backend,
    *consumers: Consumer,
    journal: Journal | None = None,
    now: Callable[[], int] = times.now,
    patience: float = 10.0,
    partitions: int = 1,
) -> AsyncIterator[Sequence[ConsumerStatus]]:
    """Runs consumers of one of so many partitions.

    At the end they must catch up within `patience`, and none of their tasks may have failed.
    """
    died: list[tuple[str, BaseException]] = []
    runtime = Consumers(
        journal or backend.journal,
        backend.store,
        consumers,
        died=lambda *death: died.append(death),
        now=now,
        backoff=QUICK,
        grace=0.2,
        partitions=partitions,
    )
    await runtime.start()
    try:
        yield runtime.statuses
    finally:
        await runtime.stop(patience)
    assert not died
