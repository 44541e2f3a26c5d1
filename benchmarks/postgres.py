"""The cost of the `postgres` sink, compared with a plain COPY of the same rows into a table of the same kind.

In alternate rounds: one COPY of all rows, made beforehand, and the sink's writes of the same records, in batches of 500
and of 1000. Each round uses a new table. The server is a separate one with fsync off: the disk would take the same time
for both and hide the difference. The records are made of events as a shop sends them. Then follows the time for which a
write holds up the event loop, with ordinary records and with a batch of large ones.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import cycle, islice
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from ingestd.api.events import Record
from ingestd.api.options import Url
from ingestd.api.times import format_time
from ingestd.plugins.sinks.postgres import PostgresSink
from ingestd.support.ids import time_uuid
from tests.support.postgres_server import PostgresServer, postgres_server

from .shop import usual

asyncpg: Any = import_module("asyncpg")  # the module has no types

SIZES = (500, 1000)
NOW = 1_795_000_000_000
TABLE = "ingestd_records"


def make(count: int) -> list[Record]:
    records = []
    for number, event in enumerate(islice(cycle([*usual()]), count)):
        at = format_time(NOW + number)
        ids = {"id": time_uuid(), "type": "event", "tenant": "bench", "endpoint": "track", "receivedAt": at}
        body = {**ids, "timestamp": at, **event, "userId": None, "sessionId": time_uuid(), "extra": {}}
        records.append(Record("event", NOW + number, msgspec.json.encode(body), number))
    return records


def make_sink(server: PostgresServer) -> PostgresSink:
    return PostgresSink("bench", PostgresSink.Options(url=Url(server.url())))


async def written(server: PostgresServer, records: Sequence[Record], size: int) -> float:
    """Records a second that the sink writes into a new table."""
    sink = make_sink(server)
    await sink.open()
    begun = time.perf_counter()
    for start in range(0, len(records), size):
        await sink.write(records[start : start + size])
    seconds = time.perf_counter() - begun
    await sink.close()
    return len(records) / seconds


async def copied(connection: Any, rows: Sequence[Any], columns: Sequence[str]) -> float:
    begun = time.perf_counter()
    await connection.copy_records_to_table(TABLE, records=rows, columns=columns)
    return len(rows) / (time.perf_counter() - begun)


async def held_up(server: PostgresServer, batch: Sequence[Record]) -> float:
    """The longest time in milliseconds for which the event loop did nothing else during one write."""
    sink = make_sink(server)
    await sink.open()
    await sink.write([replace(batch[0], body=b'{"id":"0"}')])
    longest, write = 0.0, asyncio.create_task(sink.write(batch))
    while not write.done():
        begun = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - begun)
    await write
    await sink.close()
    return longest * 1000


async def compare(server: PostgresServer, count: int, rounds: int) -> None:
    records = make(count)
    connection = await asyncpg.connect(server.url())
    sides: dict[str, list[float]] = {"plain COPY": [], **{f"sink, batches of {size}": [] for size in SIZES}}
    await written(server, records, SIZES[0])
    rows = await connection.fetch(f"SELECT * FROM {TABLE} ORDER BY position")
    definition = f"CREATE TABLE empty (LIKE {TABLE} INCLUDING ALL)"
    await connection.execute(definition)
    for number in range(rounds + 1):  # the first round is a warm-up
        for side, size in zip(sides, (0, *SIZES), strict=True):
            await connection.execute(f"DROP TABLE {TABLE}; CREATE TABLE {TABLE} (LIKE empty INCLUDING ALL); CHECKPOINT")
            if size:
                rate = await written(server, records, size)
            else:
                rate = await copied(connection, rows, [*rows[0].keys()])
            assert await connection.fetchval(f"SELECT count(*) FROM {TABLE}") == count
            if number:
                sides[side].append(rate)
    await connection.close()
    average = sum(len(record.body) for record in records) / count
    print(f"{count} records of {average:.0f} bytes on average, {rounds} rounds in turns, records/s")
    plain = median(sides["plain COPY"])
    for side, rates in sides.items():
        middle = median(rates)
        print(f"  {side:22} {middle:8.0f} ({min(rates):.0f} to {max(rates):.0f})   ratio {middle / plain:.2f}")
    large = [Record("event", NOW, b'{"id":"%d","data":"%s"}' % (number, b"x" * (1 << 20)), 0) for number in range(50)]
    for what, batch in ((f"{SIZES[0]} records", make(SIZES[0])), ("50 records of 1 MiB", large)):
        longest = median([await held_up(server, batch) for _ in range(rounds)])
        print(f"  event loop held up by a write of {what}: {longest:.1f} ms at its longest")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="records in a round (default 20000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each (default 5)")
    arguments = parser.parse_args()
    with postgres_server() as server:
        asyncio.run(compare(server, max(SIZES[-1], arguments.records), max(1, arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
