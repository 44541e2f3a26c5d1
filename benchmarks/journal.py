"""A journal with a shop's records in this process, on SQLite with synchronous=FULL, and consumers that work it off."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ingestd.api.consumer import Consumer
from ingestd.api.events import Record
from ingestd.api.times import format_time
from ingestd.consumers.group import Consumers
from ingestd.plugins.stores.sqlite.backend import SqliteBackend

from .shop import usual

__all__ = ["NOW", "fill", "opened", "record", "usual_records", "work_off"]

NOW = 1_795_000_000_000


def record(number: int, **members: Any) -> Record:
    at = format_time(NOW + number)
    body = {"id": f"{number:036d}", "type": "event", "tenant": "bench", "endpoint": "track", "key": "Page View",
            "receivedAt": at, "timestamp": at, "data": {},
            "userId": None, "sessionId": "s", "dispatchId": None, "context": {}, **members}  # fmt: skip
    return Record(str(body["type"]), NOW + number, msgspec.json.encode(body))


def usual_records(count: int) -> list[Record]:
    sent = [*usual()]
    return [record(number, **sent[number % len(sent)]) for number in range(count)]


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(folder / "ingestd.db", cache=200_000, busy_timeout=1.0)
    await backend.open(serving=True)
    try:
        yield backend
    finally:
        await backend.close()


async def fill(backend: SqliteBackend, records: Sequence[Record]) -> None:
    for start in range(0, len(records), 5000):
        await backend.journal.commit(records[start : start + 5000], backend.store.begin(NOW))


async def work_off(backend: SqliteBackend, consumer: Consumer) -> float:
    """Seconds until the consumer has processed the whole journal."""
    consumers = Consumers(backend.journal, backend.store, [consumer], died=_died, now=lambda: NOW)
    begun = time.perf_counter()
    await consumers.start()
    left = await consumers.stop(600)
    assert not left
    return time.perf_counter() - begun


def _died(name: str, error: BaseException | None) -> None:
    sys.exit(f"{name} died: {error!r}")
