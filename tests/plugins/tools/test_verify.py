"""`ingestd sinks verify` beside retention, which removes records meanwhile, and with a destination that is silent."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ingestd.api import times
from ingestd.api.errors import SinkRetry
from ingestd.api.events import Record
from ingestd.config import parse_config
from ingestd.delivery import make_sink_consumer
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.plugins.tools.verifying import command
from ingestd.plugins.tools.verifying.command import Result, compare
from ingestd.plugins.tools.verifying.expected import Due, Expected, kept_since
from ingestd.testing.sinks import make_records
from ingestd.testing.writes import span_of
from tests.support.backends import sqlite_backend
from tests.support.journals import append
from tests.support.passing_journal import PassingJournal
from tests.support.sinks import ids_of

RECORDS, TRIMMED = 40, 15


class _Trimmed(PassingJournal):
    """The oldest records go when it is read for the first time."""

    async def read(self, after: int, limit: int) -> Sequence[Record]:
        await self._journal.trim(TRIMMED, 1000)
        return await super().read(after, limit)


@pytest.mark.parametrize("lost", [0, 2])
async def test_what_retention_removes_meanwhile_is_not_too_many(lost: int, tmp_path: Path) -> None:
    first = (times.now() - 3_600_000) // 1000 * 1000
    records = [
        replace(each, at=first + position * 10_000 + 500, position=position)
        for position, each in enumerate(make_records(RECORDS), 1)
    ]
    config = parse_config({"sinks": {"lake": {"type": "parquet", "path": "lake"}}}, source="x", base=tmp_path)
    consumer = make_sink_consumer("lake", config.sink_tables["lake"], ParquetSink, config, transforms={})
    sink = consumer.sink
    await sink.open()
    kept = records[: RECORDS - lost] + make_records(1)
    kept[-1] = replace(kept[-1], at=records[-1].at, position=RECORDS + 1)  # a strange row
    await sink.write(kept)
    await sink.flush(span_of(kept))
    async with sqlite_backend(tmp_path) as backend:
        await append(backend, records)
        (partition,) = backend.partitions
        due = Due(partition._replace(journal=_Trimmed(partition.journal)), 0, RECORDS, ())
        assert await kept_since([due]) == 0
        result = Result(first, first + 7_200_000)
        await compare(sink, Expected([due], consumer, result.since, result.until), result)
        assert result.missing_ids == [(each.decode()["id"], str(each.position)) for each in records[RECORDS - lost :]]
        assert result.extra_ids == ids_of(kept[-1:])
        assert await kept_since([due]) == first + (TRIMMED + 1) * 10_000 + 1000
        await partition.journal.trim(RECORDS, 1000)
        assert await kept_since([due]) >= times.now() - 1000, "of an empty journal nothing is known"
    await consumer.close()


async def test_a_destination_that_is_gone_without_a_word_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        table = {"type": "clickhouse", "url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        config = parse_config({"sinks": {"out": table}}, source="x", base=tmp_path)
        consumer = make_sink_consumer("out", config.sink_tables["out"], ClickHouseSink, config, transforms={})
        until = times.now() // 1000 * 1000
        expected = Expected([], consumer, until - 60_000, until)
        with pytest.raises(SinkRetry, match=r"no answer for 0.2 s"):
            await compare(consumer.sink, expected, Result(until - 60_000, until))
        await consumer.close()
