"""The cost of sinks: `/track` with a sink and without, the speed of catching up, and the memory of a backlog.

Catching up includes the whole way of records that a shop's events make, on SQLite with synchronous=FULL: reading the
journal, writing batches durably, and moving the cursor after each. It is compared with a plain write of the same lines
in parts of as many bytes, each on the disk (fsync) before the next part, and with a write that has a single fsync at
its end. A `parquet` sink is compared with pyarrow, which makes one table of the same records in memory and writes it.
An `iceberg` sink is compared with pyiceberg, which makes and appends one table with the same columns and no partitions.
All of it runs on one core. The memory is compared between a daemon with a million records that wait for an unreachable
sink, and a daemon without them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ingestd.api.events import Record
from ingestd.api.options import Secret
from ingestd.api.sink import Sink
from ingestd.daemon.process import tune_the_interpreter
from ingestd.delivery import BufferedSinkConsumer, SinkConsumer, SinkOptions
from ingestd.plugins.sinks.jsonl import JsonlSink
from ingestd.plugins.sinks.parquet import ParquetSink
from ingestd.validation.schema_files import complete_schemas

from .beside import beside, rounds_and_seconds
from .journal import fill, opened, record, usual_records, work_off
from .servers import CONFIG, ingestd, on_core
from .shop import usual
from .soak import MIB

WITHOUT = CONFIG.partition("[sinks.")[0]
AWAY = WITHOUT + '[sinks.away]\ntype = "webhook"\nurl = "http://127.0.0.1:9"\nstart = "beginning"\n'
LAKE = WITHOUT + '[sinks.lake]\ntype = "parquet"\npath = "lake"\nflush_every = "2s"\n'
HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
HAS_PYICEBERG = importlib.util.find_spec("pyiceberg") is not None
CAUGHT_UP = 100_000
WAITING = 1_000_000


def fill_in(folder: Path, records: Sequence[Record], times: int = 1) -> None:
    """Make the journal of a daemon in the folder."""

    async def write() -> None:
        async with opened(folder) as backend:
            for _ in range(times):
                await fill(backend, records)

    asyncio.run(write())


def new_jsonl(folder: Path) -> Sink:
    name = f"new-{time.time_ns()}"
    return JsonlSink(name, JsonlSink.Options(path=folder / f"{name}.jsonl"))


def new_parquet(folder: Path) -> Sink:
    name = f"new-{time.time_ns()}"
    return ParquetSink(name, ParquetSink.Options(path=folder / name))


def catalog_in(folder: Path, name: str) -> dict[str, Secret]:
    return {"uri": Secret(f"sqlite:///{folder}/{name}.db"), "warehouse": Secret(f"file://{folder}/{name}")}


def new_iceberg(folder: Path) -> Sink:
    from ingestd.plugins.sinks.iceberg import IcebergSink

    name = f"new-{time.time_ns()}"
    sink = IcebergSink(name, IcebergSink.Options(catalog=catalog_in(folder, name)))
    sink.schemas = complete_schemas(None)
    return sink


def plain_append(folder: Path, records: Sequence[Record]) -> float:
    """Seconds in which pyiceberg makes a table with the columns of the sink, and appends these records."""
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    from ingestd.plugins.sinks.columns import read
    from ingestd.plugins.sinks.iceberg.buffer import RowBuffer
    from ingestd.plugins.sinks.iceberg.columns import columns_of_events

    maker = RowBuffer(columns_of_events(complete_schemas(None), {}))
    catalog = SqlCatalog(
        "plain", **{name: str(each) for name, each in catalog_in(folder, f"plain-{time.time_ns()}").items()}
    )
    catalog.create_namespace("plain")
    begun = time.perf_counter()
    tables = [table for _, _, table in maker.made([read(each) for each in records], records)]
    rows = pa.concat_tables(tables, promote_options="default")
    catalog.create_table("plain.records", schema=rows.schema).append(rows)
    return time.perf_counter() - begun


def catch_up(folder: Path, sink: Sink, **options: Any) -> float:
    """Seconds in which a new sink takes the whole journal in the folder."""
    consumer = BufferedSinkConsumer if sink.buffering else SinkConsumer

    async def take() -> float:
        async with opened(folder) as backend:
            return await work_off(backend, consumer(sink, SinkOptions(type="any", start="beginning", **options)))

    return asyncio.run(take())


def plain(path: Path, lines: bytes, at_once: int, *, each: bool) -> float:
    """Seconds of a plain write. `each`: every part is on the disk before the next."""
    path.unlink(missing_ok=True)  # freeing the pages of the last round is not measured
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(lines), at_once):
            file.write(lines[start : start + at_once])
            if each:
                os.fsync(file.fileno())
        os.fsync(file.fileno())
    return time.perf_counter() - begun


def plain_table(path: Path, records: Sequence[Record]) -> tuple[float, float]:
    """Seconds in which pyarrow makes a table of these records, and in which it writes the table to the disk."""
    import pyarrow.parquet as pq

    from ingestd.plugins.sinks.columns import read
    from ingestd.plugins.sinks.parquet.rows import make_table

    begun = time.perf_counter()
    table = make_table([read(each) for each in records], records)
    made = time.perf_counter()
    with path.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        os.fsync(file.fileno())
    return made - begun, time.perf_counter() - made


def catching_up(rounds: int) -> None:
    records = usual_records(CAUGHT_UP)
    lines = b"".join(each.body + b"\n" for each in records)
    at_once = len(lines) // CAUGHT_UP * SinkOptions(type="jsonl").batch.max_events
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as name:
        folder = Path(name)
        fill_in(folder, records)
        tune_the_interpreter()
        seconds: dict[str, list[float]] = {"sink": [], "in steps": [], "at once": []}
        if HAS_PYARROW:
            seconds |= {"parquet": [], "a table": [], "pyarrow": []}
        if HAS_PYICEBERG:
            seconds |= {"iceberg": [], "pyiceberg": []}
        for _ in range(rounds):
            seconds["sink"].append(catch_up(folder, new_jsonl(folder)))
            seconds["in steps"].append(plain(folder / "plain", lines, at_once, each=True))
            seconds["at once"].append(plain(folder / "plain", lines, 4 << 20, each=False))
            if HAS_PYARROW:
                seconds["parquet"].append(catch_up(folder, new_parquet(folder)))
                made, written = plain_table(folder / "plain.parquet", records)
                seconds["a table"].append(made)
                seconds["pyarrow"].append(written)
            if HAS_PYICEBERG:
                seconds["iceberg"].append(catch_up(folder, new_iceberg(folder)))
                seconds["pyiceberg"].append(plain_append(folder, records))
    took = {name: median(each) for name, each in seconds.items()}
    print(f"sinks: a backlog of {CAUGHT_UP} records of {len(lines) // CAUGHT_UP} bytes, {rounds} rounds")
    for name, each in took.items():
        print(f"  {name:9} {each:6.2f} s {CAUGHT_UP / each:9.0f} records/s {len(lines) / each / 1e6:7.1f} MB/s")
    print(f"  jsonl catching up: {took['in steps'] / took['sink']:.2f} of a plain write in steps of as many bytes,"
          f" {took['at once'] / took['sink']:.2f} of one at once")  # fmt: skip
    if HAS_PYARROW:
        whole = took["a table"] + took["pyarrow"]
        print(f"  parquet catching up: {whole / took['parquet']:.2f} of pyarrow making and writing the same table in"
              f" memory, {took['pyarrow'] / took['parquet']:.2f} of writing it, {took['sink'] / took['parquet']:.2f}"
              " of jsonl")  # fmt: skip
    else:
        print("  parquet: skipped, because pyarrow is not installed (pip install '.[parquet]')")
    if HAS_PYICEBERG:
        pairs = sorted(plain / sink for sink, plain in zip(seconds["iceberg"], seconds["pyiceberg"], strict=True))
        print(f"  iceberg catching up: {median(pairs):.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f}) of pyiceberg's append")
    else:
        print("  iceberg: skipped, because pyiceberg is not installed (pip install '.[iceberg]')")


def resident(folder: Path) -> float:
    """Megabytes of the daemon in that folder, some seconds after its start."""
    with ingestd(folder, AWAY) as daemon:
        time.sleep(5)
        return daemon.memory("VmHWM") / MIB


def waiting() -> None:
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as empty, tempfile.TemporaryDirectory() as full:
        records = [record(number) for number in range(5000)]
        fill_in(Path(full), records, WAITING // len(records))
        without, with_ = resident(Path(empty)), resident(Path(full))
    print(f"sinks: {WAITING} records wait for an unreachable sink: {with_:.0f} MB, {without:.0f} MB without,"
          f" {with_ - without:+.0f} MB")  # fmt: skip


def main() -> int:
    rounds, seconds = rounds_and_seconds(__doc__)
    print(
        f"sinks: /track with a jsonl sink and without, {rounds} rounds of {seconds} s each, events as a shop sends them"
    )
    beside((CONFIG, WITHOUT), usual(), rounds, seconds)
    if HAS_PYARROW:
        print(f"sinks: /track with a parquet sink and without, {rounds} rounds of {seconds} s each")
        beside((LAKE, WITHOUT), usual(), rounds, seconds)
    with on_core(min(os.sched_getaffinity(0))):
        catching_up(rounds)
    waiting()
    return 0


if __name__ == "__main__":
    sys.exit(main())
