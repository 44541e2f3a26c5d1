"""The cost of the `clickhouse` sink: catching up, and `/track` with the sink and without.

Catching up is the whole way of a backlog from the journal (SQLite with synchronous=FULL) into the table, in batches of
10,000. It is compared with plain inserts of the same bytes, prepared beforehand, one after the other, into the same
table. Both sides use one core, and the server uses another.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

from ingestd.api.events import Record
from ingestd.api.options import Secret, Size, Url
from ingestd.daemon.process import tune_the_interpreter
from ingestd.delivery.options import BatchOptions
from ingestd.plugins.sinks.clickhouse import ClickHouseSink
from ingestd.plugins.sinks.clickhouse.rows import lines_of, row_of
from tests.support.clickhouse_server import ClickHouseServer, clickhouse_server

from .beside import beside, rounds_and_seconds
from .journal import usual_records
from .servers import on_core
from .shop import usual
from .sinks import CAUGHT_UP, WITHOUT, catch_up, fill_in

AT_ONCE = 10_000


def make_sink(server: ClickHouseServer, name: str = "bench") -> ClickHouseSink:
    return ClickHouseSink(name, ClickHouseSink.Options(url=Url(server.url), password=Secret(server.password)))


def catch_up_in(folder: Path, server: ClickHouseServer) -> float:
    batch = BatchOptions(max_events=AT_ONCE, max_bytes=Size.parse("16MiB"))
    return catch_up(folder, make_sink(server, f"new-{time.time_ns()}"), batch=batch)


async def make_bodies(server: ClickHouseServer, records: Sequence[Record]) -> list[bytes]:
    sink = make_sink(server)
    await sink.open()
    bodies = []
    for start in range(0, len(records), AT_ONCE):
        layout = await sink._current_layout()
        lines = lines_of([row_of(each, layout) for each in records[start : start + AT_ONCE]])
        bodies.append(b"".join([some async for some in lines]))
    return bodies


def plain(server: ClickHouseServer, bodies: Sequence[bytes]) -> float:
    credentials = b64encode(f"{server.user}:{server.password}".encode()).decode()
    query = {"query": "INSERT INTO ingestd_records FORMAT JSONEachRow", "date_time_input_format": "best_effort"}
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for body in bodies:
        connection.request("POST", f"/?{urlencode(query)}", body, {"Authorization": f"Basic {credentials}"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    connection.close()
    return time.perf_counter() - begun


def catching_up(server: ClickHouseServer, rounds: int) -> None:
    records = usual_records(CAUGHT_UP)
    bodies = asyncio.run(make_bodies(server, records))
    with tempfile.TemporaryDirectory(prefix="ingestd-bench-") as name:
        fill_in(Path(name), records)
        del records
        tune_the_interpreter()
        sides: dict[str, list[float]] = {"sink": [], "plain": []}
        cpu: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(rounds + 1):  # the first round is a warm-up
            for side, seconds in sides.items():
                server.sql("TRUNCATE TABLE ingestd_records")
                used = time.process_time()
                took = catch_up_in(Path(name), server) if side == "sink" else plain(server, bodies)
                used = time.process_time() - used
                assert server.sql("SELECT count() FROM ingestd_records").strip() == str(CAUGHT_UP)
                if number:
                    seconds.append(took)
                    cpu[side].append(used / CAUGHT_UP * 1e6)
    size = sum(map(len, bodies))
    print(f"clickhouse: a backlog of {CAUGHT_UP} records, rows of {size // CAUGHT_UP} bytes, {rounds} rounds")
    for side, seconds in sides.items():
        rate = CAUGHT_UP / median(seconds)
        print(f"  {side:6} {median(seconds):6.2f} s {rate:9.0f} records/s, CPU {median(cpu[side]):.1f} µs a record")
    pairs = [plain / sink for sink, plain in zip(*sides.values(), strict=True)]
    print(
        f"  catching up in pairs: {median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f}) of plain inserts of the"
        " same bytes"
    )


def main() -> int:
    rounds, seconds = rounds_and_seconds(__doc__)
    if shutil.which("clickhouse-server", path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
        print("clickhouse: skipped, because clickhouse-server is not installed")
        return 0
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    with clickhouse_server() as server:
        with on_core(cores[0]):
            catching_up(server, rounds)
        os.sched_setaffinity(0, cores)
        sink = (
            f'url = "{server.url}"\npassword = "{server.password}"\nbatch = {{ max_events = 20000, max_wait = "1s" }}'
        )
        print(f"clickhouse: /track with the sink and without, {rounds} rounds of {seconds} s each")
        beside((f'{WITHOUT}[sinks.warehouse]\ntype = "clickhouse"\n{sink}\n', WITHOUT), usual(), rounds, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
