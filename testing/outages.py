"""Delivery to a sink from a real journal, while the sink refuses all new records."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ingestd.api import times
from ingestd.api.events import Record
from ingestd.api.options import Duration
from ingestd.api.sink import Sink
from ingestd.config import parse_config
from ingestd.consumers.group import Consumers
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.delivery.options import BatchOptions, RetryOptions
from ingestd.delivery.progress import PROGRESS
from ingestd.hooks.loader import load_plugins
from ingestd.storage.backends import Backends
from ingestd.support.backoff import Backoff

__all__ = ["RefusesNew", "deliver_through", "of_visitor"]

_ATTEMPTS = 2
_FAILURES = 30
"""Number of failed writes to wait for, many times the number after which a record is suspected."""
_PATIENCE = 60.0


class RefusesNew(Sink):
    """A sink in front of another one. While it refuses, only records that it has passed on before get through."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink.name, sink.options)
        self._sink = sink
        self._known: set[str] = set()
        self._refuses = False

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self._refuses = True
        try:
            yield
        finally:
            self._refuses = False

    async def open(self) -> None:
        await self._sink.open()

    async def write(self, batch: Sequence[Record]) -> None:
        ids = {record.decode()["id"] for record in batch}
        if self._refuses and ids - self._known:
            raise ConnectionError("no new records are taken")
        await self._sink.write(batch)
        self._known |= ids

    async def check(self) -> None:
        await self._sink.check()

    async def close(self) -> None:
        await self._sink.close()


def of_visitor(record: Record, number: int) -> Record:
    """The record with the id of this visitor, if it has a visitor."""
    value = record.decode()
    if "anonymousId" not in value:
        return record
    value["anonymousId"] = f"visitor-{number}"
    return replace(record, body=msgspec.json.encode(value))


async def deliver_through(
    sink: Sink,
    before: Sequence[Record],
    during: Sequence[Record],
    refusal: Callable[[], AbstractAsyncContextManager[None]],
) -> None:
    """Deliver records before and during a refusal of all new ones, and assert that the sink gets all of them.

    The refusal lasts for many more failures than `retry.attempts`.
    """
    options = SinkOptions(
        type="tested",
        start="beginning",
        batch=BatchOptions(max_events=4, max_wait=Duration(0.0)),
        retry=RetryOptions(attempts=_ATTEMPTS),
    )
    consumer = SinkConsumer(sink, options)
    async with _backends() as backends, _running(backends, consumer) as consumers:
        (status,) = consumers.statuses
        await _append(backends, before)
        await _until(lambda: consumer.delivered == len(before))
        async with refusal():
            await _append(backends, during)
            await _until(lambda: status.failures >= _FAILURES or consumer.given_up > 0)
            progress = await PROGRESS.load(backends.store.begin(times.now()), sink.name)
            assert progress is not None
            assert progress.given_up == 0, f"{progress.given_up} records became dead letters in the outage"
        await _until(lambda: consumer.delivered + consumer.given_up == len(before) + len(during))
        assert consumer.given_up == 0, f"{consumer.given_up} records became dead letters after the outage"


@asynccontextmanager
async def _backends() -> AsyncIterator[Backends]:
    with tempfile.TemporaryDirectory(prefix="ingestd-") as folder:
        config = parse_config({"store": {"url": "sqlite:journal.db"}}, source="test", base=Path(folder))
        backends = Backends(config, load_plugins(config))
        await backends.open(serving=True)
        try:
            yield backends
        finally:
            await backends.close()


@asynccontextmanager
async def _running(backends: Backends, consumer: SinkConsumer) -> AsyncIterator[Consumers]:
    died: list[BaseException] = []
    consumers = Consumers(
        backends.partitions[0].journal,
        backends.store,
        [consumer],
        died=lambda _, error: died.append(error),
        backoff=Backoff(initial=0.001, maximum=0.02),
    )
    log = logging.getLogger("ingestd.consumers")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the test causes these failures
    try:
        await consumers.start()
        yield consumers
    finally:
        await consumers.stop(0)
        log.setLevel(level)
    assert not died


async def _append(backends: Backends, records: Sequence[Record]) -> None:
    await backends.partitions[0].journal.commit(records, backends.store.begin(times.now()))


async def _until(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while not condition():
        assert loop.time() < deadline, f"no result within {_PATIENCE:g} s"
        await asyncio.sleep(0.005)
