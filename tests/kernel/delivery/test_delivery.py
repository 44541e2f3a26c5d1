"""Every accepted record reaches every sink at least once and in order, despite failures of the sink."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from ingestd.api import times
from ingestd.api.errors import ConfigError, SinkReject, SinkRetry
from ingestd.api.events import Record
from ingestd.api.options import Duration, Options
from ingestd.api.sink import Sink
from ingestd.config import Config, parse_config
from ingestd.consumers.partitions import PartitionConsumers
from ingestd.delivery import SinkConsumer, SinkOptions, make_sink_consumer, sink_statuses
from ingestd.delivery.dead_letters import read_letters
from ingestd.delivery.progress import PROGRESS, Progress
from ingestd.observability.metrics import Metrics
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.testing.sinks import make_records
from ingestd.validation.schema_files import DRAFT
from tests.support.backends import sqlite_backend
from tests.support.journals import append, read_all, running, until

ROOT = Path(__file__).resolve().parents[3]


class Memory(Sink):
    """Keeps its records in memory. `before` is called before each write, and may raise or hang."""

    def __init__(
        self, name: str = "memory", before: Callable[[Sequence[Record]], Awaitable[None]] | None = None
    ) -> None:
        super().__init__(name, self.Options())
        self.taken: list[int] = []
        self.largest = 0
        self._before = before

    async def write(self, batch: Sequence[Record]) -> None:
        if self._before is not None:
            await self._before(batch)
        self.largest = max(self.largest, len(batch))
        self.taken += [record.position for record in batch]


def feed(sink: Sink, timeout: float = 30.0) -> SinkConsumer:
    consumer = SinkConsumer(sink, SinkOptions(type="memory", start="beginning", timeout=Duration(timeout)))
    consumer.linger = 0.0
    return consumer


@pytest.mark.logs("sink:memory: ")
async def test_a_sink_that_fails_for_a_while_gets_everything_afterwards(tmp_path: Path) -> None:
    errors = itertools.cycle([SinkRetry, ConnectionError, TimeoutError, KeyError])
    failing = True

    async def fail(batch: Sequence[Record]) -> None:
        if failing:
            raise next(errors)("busy")

    async with sqlite_backend(tmp_path) as backend:
        await append(backend, make_records(1200))
        sink = Memory(before=fail)
        async with running(backend, feed(sink)) as (status,):
            await until(lambda: status.failures > 8)
            assert (status.position, status.processed, sink.taken) == (0, 0, [])  # the cursor waits
            failing = False
        assert sink.taken == [*range(1, 1201)]
        assert sink.largest == 500
        assert status.processed == 1200


@pytest.mark.logs(r"sink:hanging: (a write|opening it) took longer than 0\.05 s")
async def test_a_hanging_sink_is_timed_out_and_harms_no_other(tmp_path: Path) -> None:
    hanging = 3

    async def hang(batch: Sequence[Record]) -> None:
        nonlocal hanging
        hanging -= 1
        if hanging >= 0:
            await asyncio.Event().wait()

    class SlowToOpen(Memory):
        tried = False

        async def open(self) -> None:
            if not self.tried:
                self.tried = True
                await asyncio.Event().wait()

    async with sqlite_backend(tmp_path) as backend:
        sink, well = SlowToOpen("hanging", hang), Memory("well")
        async with running(backend, feed(sink, 0.05), feed(well)) as (slow, quick):
            await append(backend, make_records(10))
            await until(lambda: quick.position == 10)
            assert slow.position == 0
        assert sink.taken == well.taken == [*range(1, 11)]
        assert slow.failures == 4


@pytest.mark.logs("sink:.* dead letter")
async def test_a_rejected_record_becomes_a_dead_letter_and_the_others_are_delivered(tmp_path: Path) -> None:
    async def reject(batch: Sequence[Record]) -> None:
        reasons = {index: f"no {record.position}" for index, record in enumerate(batch) if record.position in {2, 3}}
        if reasons:
            raise SinkReject(reasons)

    async with sqlite_backend(tmp_path) as backend:
        records = make_records(5)
        await append(backend, records)
        sink = Memory(before=reject)
        feeder = feed(sink)
        async with running(backend, feeder) as (status,):
            await until(lambda: status.position == 5)
        assert sink.taken == [1, 4, 5]
        assert (feeder.delivered, status.processed, status.failures) == (3, 5, 0)
        state = backend.store.begin(times.now())
        letters = [letter async for letter in read_letters(state, "memory", 0, 10)]
        assert [(letter.number, letter.position, letter.reason, letter.attempts) for letter in letters] == [
            (1, 2, "no 2", 1), (2, 3, "no 3", 1),
        ]  # fmt: skip
        assert [letter.to_record() for letter in letters] == records[1:3]
        assert await PROGRESS.load(state, "memory") == Progress(0, delivered=3, given_up=2, letters=2)


async def test_metrics_show_each_sink(tmp_path: Path) -> None:
    async def hang(batch: Sequence[Record]) -> None:
        await asyncio.Event().wait()

    async with sqlite_backend(tmp_path) as backend:
        records = make_records(4)
        metrics = Metrics()
        sinks = [feed(Memory("well")), feed(Memory("hanging", hang))]
        consumers = PartitionConsumers(backend.partitions, sinks, died=print, now=lambda: records[0].at + 7000)
        metrics.show_sinks(sink_statuses(consumers, sinks))
        metrics.show_consumers(consumers.statuses)
        await consumers.start()
        await append(backend, records)
        well, hanging = consumers.groups[0].statuses
        await until(lambda: well.processed == 4 and hanging.oldest_at)
        shown = generate_latest(metrics.registry).decode().splitlines()
        assert await consumers.stop(0) == {"sink:hanging": 4}
    for sink, delivered, pending, age in (("well", 4, 0, 0), ("hanging", 0, 4, 7)):
        assert f'ingestd_sink_delivered_total{{sink="{sink}"}} {delivered:.1f}' in shown
        assert f'ingestd_sink_retries_total{{sink="{sink}"}} 0.0' in shown
        assert f'ingestd_sink_pending{{sink="{sink}"}} {pending:.1f}' in shown
        assert f'ingestd_sink_oldest_pending_seconds{{sink="{sink}"}} {age:.1f}' in shown
        assert f'ingestd_consumer_oldest_pending_seconds{{consumer="sink:{sink}"}} {age:.1f}' in shown


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from ingestd.api.options import Duration
from ingestd.delivery import SinkConsumer, SinkOptions
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.testing.sinks import make_records
from ingestd.validation.schema_files import DRAFT
from tests.support.backends import sqlite_backend
from tests.support.journals import append, running

class Killed(JsonlSink):
    writes = 0

    async def write(self, batch):
        await super().write(batch)
        self.writes += 1
        if self.writes == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

async def main(folder):
    async with sqlite_backend(folder) as backend:
        if await backend.journal.last() == 0:
            await append(backend, make_records(100))
        sink = Killed("archive", JsonlSink.Options(path=folder / "events.jsonl"))
        consumer = SinkConsumer(sink, SinkOptions(type="jsonl", start="beginning"))
        consumer.max_records = 30
        async with running(backend, consumer):
            pass

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_kill_9_between_write_and_commit_loses_nothing(tmp_path: Path) -> None:
    codes = [
        subprocess.run(  # noqa: ASYNC221 - this event loop has no other tasks
            [sys.executable, "-c", KILLED, str(tmp_path), str(write)],
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ).returncode
        for write in (2, 1, 1, 0)
    ]
    assert codes == [-9, -9, -9, 0]
    content = (tmp_path / "events.jsonl").read_bytes()
    assert content.endswith(b"\n")
    lines = content.splitlines()
    for line in lines:
        json.loads(line)
    async with sqlite_backend(tmp_path) as backend:
        bodies = [record.body for record in await read_all(backend.journal)]
    assert len(bodies) == 100
    assert list(dict.fromkeys(lines)) == bodies  # each at least once, and the first copies in order
    assert len(lines) > 100  # each kill was after a write


@pytest.mark.logs(r"sink:archive: OSError: .*File too large")
async def test_delivery_waits_for_room_on_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk. The file starts large, so only the sink reaches the limit."""
    path = tmp_path / "events.jsonl"
    limit = 32 << 20
    with path.open("wb") as file:  # sparse: one long line
        file.seek(limit - 5000)
        file.write(b"\n")
    start = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with sqlite_backend(tmp_path) as backend:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            sink = JsonlSink("archive", JsonlSink.Options(path=path))
            async with running(backend, feed(sink)) as (status,):
                first, rest = make_records(2), make_records(100)
                await append(backend, first)
                await until(lambda: status.position == 2)
                await append(backend, rest)
                await until(lambda: status.failures >= 3)
                # Smaller batches may still fit. What counts as delivered is in the file.
                assert 2 <= status.position <= path.read_bytes()[start:].count(b"\n") < 102
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with path.open("rb") as file:
        file.seek(start)
        assert file.read() == b"".join(record.body + b"\n" for record in [*first, *rest])


class Shaped(Sink):
    class Options(Options):
        path: Path
        colour: str = "red"


def configured(folder: Path, table: dict[str, Any]) -> Config:
    return parse_config({"sinks": {"out": table}}, source="ingestd.toml", base=folder)


def made(folder: Path, sink_class: type[Sink] = Shaped, **table: Any) -> SinkConsumer:
    config = configured(folder, table)
    return make_sink_consumer("out", config.sink_tables["out"], sink_class, config, transforms={})


def test_a_table_is_split_into_common_options_and_options_of_the_sink(tmp_path: Path) -> None:
    consumer = made(tmp_path, type="shaped", path="x/y")
    assert (consumer.name, consumer.start, consumer.max_records, consumer.linger) == ("sink:out", "now", 500, 0.2)
    assert isinstance(consumer.sink, Shaped)
    assert consumer.sink.name == "out"
    assert consumer.sink.options == Shaped.Options(path=tmp_path / "x/y")
    assert made(tmp_path, type="shaped", path="x", start="beginning", timeout="5s").start == "beginning"
    assert made(tmp_path, Memory, type="memory").sink.name == "out"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"path": "x", "timout": "5s"}, r"sinks\.out\.timout: unknown option; did you mean sinks\.out\.timeout\?"),
        ({"path": "x", "color": "red"}, r"sinks\.out\.color: unknown option; did you mean sinks\.out\.colour\?"),
        ({}, r"sinks\.out\.path: must be given"),
        ({"path": 3}, r"sinks\.out\.path: expected"),
        ({"path": "x", "start": "later"}, r"sinks\.out\.start: "),
        ({"path": "x", "timeout": "0s"}, r"sinks\.out\.timeout: expected more than 0, got '0s'"),
        ({"path": "x", "timeout": 5}, r"sinks\.out\.timeout: expected a number with a unit"),
    ],
)
def test_an_invalid_option_stops_the_start(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"ingestd\.toml: " + message):
        made(tmp_path, type="shaped", **table)


def test_an_unusable_sink_class_is_named(tmp_path: Path) -> None:
    class Clashing(Sink):
        class Options(Options):
            timeout: int = 3

    class Raising(Sink):
        def __init__(self, name: str, options: Any) -> None:
            super().__init__(name, options)
            raise ZeroDivisionError

    with pytest.raises(ConfigError, match=r"sinks\.out: Clashing defines timeout, which every sink has"):
        made(tmp_path, Clashing, type="clashing")
    with pytest.raises(ConfigError, match=r"sinks\.out: the sink cannot be set up: ZeroDivisionError"):
        made(tmp_path, Raising, type="raising")


def test_a_sink_that_needs_schemas_gets_those_of_the_configuration(tmp_path: Path) -> None:
    class Registering(Sink):
        needs_schemas = True

        async def write(self, batch: Sequence[Record]) -> None:
            pass

    own = {"$schema": DRAFT, "$id": "urn:shop:gift", "title": "Gift Wrapped", "type": "object"}
    folder = tmp_path / "schemas"
    folder.mkdir()
    tables = {"schemas": {"directory": "schemas"}, "sinks": {"out": {"type": "registering"}}}
    config = parse_config(tables, source="ingestd.toml", base=tmp_path)

    def make(before: SinkConsumer | None = None) -> SinkConsumer:
        return make_sink_consumer("out", config.sink_tables["out"], Registering, config, transforms={}, before=before)

    first = make()
    order = first.sink.schemas["Order Completed"]
    used = ("order", "product_with_quantity", "product")
    assert order["$defs"].keys() == {f"urn:ingestd:definition:{name}" for name in used}
    assert make(first) is first
    (folder / "gift.json").write_text(json.dumps(own))
    second = make(first)
    assert second is not first
    assert second.sink.schemas["Gift Wrapped"] == own
